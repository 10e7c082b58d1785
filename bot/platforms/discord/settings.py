"""The Discord settings."""

import base64

from pydantic import Field, SecretStr
from typing_extensions import override

from bot.platforms.tokens import BotTokenSettings
from bot.texts.text import translatable

TOKEN_REJECTED_TEXT = translatable(
    "Discord does not accept the bot token (TROUPE_DISCORD__TOKEN); copy a new one from the"
    " developer portal (Bot > Reset Token)"
)


class DiscordSettings(BotTokenSettings):
    """A Discord bot and the addresses of Discord's APIs."""

    token: SecretStr | None = Field(
        None,
        description="The bot's token from the developer portal (Bot > Reset Token). Without it"
        " Discord is not used.",
    )
    api_base: str = Field(
        "https://discord.com/api/v10", description="The address of Discord's REST API."
    )
    gateway_url: str | None = Field(
        None,
        description="The address of Discord's gateway; by default the one the REST API returns.",
    )
    shards: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="The number of gateway connections (shards); by default what Discord"
        " recommends. Processes on one database divide the shards among themselves.",
    )
    faces: bool = Field(
        True,
        description="Whether characters post under their own names and pictures, where the bot may"
        " manage webhooks (it creates one in each channel). If off, the bot posts for them.",
    )

    @property
    @override
    def bot_account(self) -> str:
        """The bot's user id, decoded from the start of the token, or "" if there is no token."""
        encoded_user_id = self.token.get_secret_value().partition(".")[0] if self.token else ""
        try:
            user_id = base64.b64decode(encoded_user_id + "=" * (-len(encoded_user_id) % 4)).decode()
        except ValueError:  # not base64, or not UTF-8
            return ""
        return user_id if user_id.isdecimal() else ""
