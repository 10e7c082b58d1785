"""The settings of Telegram."""

from pydantic import Field, SecretStr
from typing_extensions import override

from bot.platforms.spec import PlatformSettings


class TelegramSettings(PlatformSettings):
    """The bot on Telegram and the address of the Bot API."""

    token: SecretStr | None = Field(
        None, description="The bot's token from @BotFather. Without it Telegram is not used."
    )
    api_base: str = Field(
        "https://api.telegram.org", description="The address of the Bot API server."
    )
    poll_seconds: int = Field(
        30, ge=0, le=50, description="How long one request for new messages may wait for some."
    )

    @property
    @override
    def is_configured(self) -> bool:
        return self.token is not None

    @property
    @override
    def bot_account(self) -> str:
        """The number before the colon of the token; empty if it has none."""
        number = self.token.get_secret_value().partition(":")[0] if self.token else ""
        return number if number.isdecimal() else ""
