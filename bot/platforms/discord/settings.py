"""The Discord settings."""

import base64

from pydantic import Field, SecretStr
from typing_extensions import override

from bot.platforms.tokens import BotTokenSettings
from bot.texts.text import translatable

BOT_REJECTED = translatable(
    "Discord does not accept the bot token; copy a new one from the developer portal"
    " (Bot > Reset Token) into TROUPE_DISCORD__TOKEN"
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
        description="The address of Discord's gateway; by default the one that the REST API names.",
    )
    shards: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="The number of gateway connections that the bot's servers are divided among;"
        " unset: what Discord recommends. Processes on one database share them out.",
    )

    faces: bool = Field(
        True,
        description="Characters speak under their own names and pictures, by one webhook for each"
        " channel, where the bot may manage webhooks. Off: in the bot's own voice.",
    )

    @property
    @override
    def bot_account(self) -> str:
        """The bot's user id, taken from the start of the token; empty if there is none."""
        encoded = self.token.get_secret_value().partition(".")[0] if self.token else ""
        try:
            decoded = base64.b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
        except ValueError:  # not base64, or not text
            return ""
        return decoded if decoded.isdecimal() else ""
