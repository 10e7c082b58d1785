"""The Telegram settings."""

import hashlib
import re
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from typing_extensions import override

from bot.platforms.tokens import BotTokenSettings
from bot.runtime.secret_file import take_from_file

_SECRET = re.compile(r"[A-Za-z0-9_-]{16,256}")
_SECRET_RULE = "use 16 to 256 letters, digits, _ and -"  # noqa: S105 # no secret itself


def is_webhook_secret(text: str) -> bool:
    return _SECRET.fullmatch(text) is not None


class TelegramSettings(BotTokenSettings):
    """A Telegram bot and the address of the Bot API."""

    token: SecretStr | None = Field(
        None, description="The bot's token from @BotFather. Without it Telegram is not used."
    )
    api_base: str = Field(
        "https://api.telegram.org", description="The address of the Bot API server."
    )
    poll_seconds: int = Field(
        30, ge=0, le=50, description="How long one request for new messages may wait for some."
    )

    mode: Literal["polling", "webhook"] = Field(
        "polling",
        description="How messages arrive: this service asks Telegram (polling), or Telegram calls"
        " this service (webhook). The service sets or removes the webhook itself.",
    )
    webhook_url: str | None = Field(
        None,
        description="With a webhook, the public address that Telegram calls, such as"
        " https://bot.example.org/telegram. Its path is served at the port of the console.",
    )
    webhook_secret: SecretStr | None = Field(
        None,
        description="What Telegram proves itself by when it calls: 16 to 256 letters, digits, _ and"
        " -. By default it is derived from the token.",
    )
    webhook_secret_file: Path | None = Field(
        None,
        description="A file with that secret instead, such as a mounted secret. It may be replaced"
        " while the service runs.",
    )

    @field_validator("webhook_secret")
    @classmethod
    def _check_secret(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and not is_webhook_secret(secret.get_secret_value()):
            raise ValueError(_SECRET_RULE)
        return secret

    @model_validator(mode="after")
    def _read_secret_file(self) -> Self:
        """Read the webhook secret from its file, so that it is masked."""
        if self.webhook_secret_file is None:
            return self
        found = take_from_file(self.webhook_secret, self.webhook_secret_file, "webhook_secret")
        if found is None or not is_webhook_secret(found.get_secret_value()):
            raise ValueError(f"the webhook secret in {self.webhook_secret_file}: {_SECRET_RULE}")
        self.webhook_secret = found
        return self

    @model_validator(mode="after")
    def _check_webhook(self) -> Self:
        if self.mode == "webhook" and len(self.webhook_path or "") < len("/x"):
            raise ValueError(
                "TROUPE_TELEGRAM__MODE=webhook needs TROUPE_TELEGRAM__WEBHOOK_URL with a path, such"
                " as https://bot.example.org/telegram"
            )
        return self

    @property
    def webhook_path(self) -> str | None:
        """The webhook's path; None when polling."""
        if self.mode != "webhook":
            return None
        return urlsplit(self.webhook_url or "").path

    @property
    def webhook_token(self) -> str:
        """The webhook's secret, identical in all processes."""
        if self.webhook_secret is not None:
            return self.webhook_secret.get_secret_value()
        token = self.token.get_secret_value() if self.token else ""
        return hashlib.sha256(f"webhook {token}".encode()).hexdigest()

    drafts: bool = Field(
        False,
        description="Whether a growing answer is shown as a draft in private chats, which notifies"
        " nobody, and is sent when it is complete. Telegram's own button stops it.",
    )

    @property
    @override
    def bot_account(self) -> str:
        """The number before the token's colon; empty without one."""
        number = self.token.get_secret_value().partition(":")[0] if self.token else ""
        return number if number.isdecimal() else ""
