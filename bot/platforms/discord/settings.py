"""The settings of Discord."""

from pydantic import Field, SecretStr
from typing_extensions import override

from bot.platforms.spec import PlatformSettings


class DiscordSettings(PlatformSettings):
    """The bot user on Discord and the addresses of Discord's APIs."""

    token: SecretStr | None = Field(
        None,
        description="The bot's token from the developer portal (Bot > Reset Token). Without it"
        " Discord is not used.",
    )
    api_base: str = Field(
        "https://discord.com/api/v10", description="The address of Discord's REST API."
    )
    gateway_url: str | None = Field(
        None, description="The address of Discord's gateway; by default the one of discord.py."
    )

    @property
    @override
    def is_configured(self) -> bool:
        return self.token is not None
