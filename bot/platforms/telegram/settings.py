"""The Telegram settings."""

import hashlib
import re
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from typing_extensions import override

from bot.platforms.tokens import BotTokenSettings
from bot.runtime.secret_file import resolve_secret

_SECRET_PATTERN = re.compile(r"[A-Za-z0-9_-]{16,256}")
_SECRET_RULE = "use 16 to 256 letters, digits, _ and -"  # noqa: S105 # not a secret


def is_webhook_secret(text: str) -> bool:
    return _SECRET_PATTERN.fullmatch(text) is not None


class TelegramSettings(BotTokenSettings):
    """A Telegram bot and the address of the Bot API."""

    token: SecretStr | None = Field(
        None, description="The bot's token from @BotFather. Without it Telegram is not used."
    )
    api_base: str = Field(
        "https://api.telegram.org", description="The address of the Bot API server."
    )
    poll_seconds: int = Field(
        30,
        ge=0,
        le=50,
        description="How many seconds a request for new messages may wait for a message to arrive.",
    )
    mode: Literal["polling", "webhook"] = Field(
        "polling",
        description="How messages arrive. `polling`: the service asks Telegram; `webhook`: "
        "Telegram calls the service. The service sets and removes the webhook itself.",
    )
    webhook_url: str | None = Field(
        None,
        description="The public address that Telegram calls in webhook mode, such as "
        "https://bot.example.org/telegram. The console's port serves the path of this address.",
    )
    webhook_secret: SecretStr | None = Field(
        None,
        description="The secret that Telegram sends with each webhook call: 16 to 256 letters,"
        " digits, _ and -. By default it is derived from the token.",
    )
    webhook_secret_file: Path | None = Field(
        None,
        description="A file that contains the webhook secret, such as a mounted secret. It may be"
        " replaced while the service runs.",
    )

    @field_validator("webhook_secret")
    @classmethod
    def _check_secret(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and not is_webhook_secret(secret.get_secret_value()):
            raise ValueError(_SECRET_RULE)
        return secret

    @model_validator(mode="after")
    def _read_secret_file(self) -> Self:
        """Set the webhook secret from its file, so that logs mask it; raises `ValueError`."""
        if self.webhook_secret_file is None:
            return self
        secret = resolve_secret(self.webhook_secret, self.webhook_secret_file, "webhook_secret")
        if secret is None or not is_webhook_secret(secret.get_secret_value()):
            raise ValueError(f"the webhook secret in {self.webhook_secret_file}: {_SECRET_RULE}")
        self.webhook_secret = secret
        return self

    @model_validator(mode="after")
    def _check_webhook(self) -> Self:
        if self.mode == "webhook" and len(self.webhook_path or "") < len("/x"):
            raise ValueError(
                "with TROUPE_TELEGRAM__MODE=webhook, set TROUPE_TELEGRAM__WEBHOOK_URL to a URL with"
                " a path, such as https://bot.example.org/telegram"
            )
        return self

    @property
    def webhook_path(self) -> str | None:
        """The path of the webhook's URL, or None in polling mode."""
        if self.mode != "webhook":
            return None
        return urlsplit(self.webhook_url or "").path

    @property
    def webhook_token(self) -> str:
        """The webhook's secret, the same in all processes."""
        if self.webhook_secret is not None:
            return self.webhook_secret.get_secret_value()
        token = self.token.get_secret_value() if self.token else ""
        return hashlib.sha256(f"webhook {token}".encode()).hexdigest()

    drafts: bool = Field(
        False,
        description="Whether to show unfinished answers in private chats as drafts, which"
        " notify nobody, and send them when complete. Telegram shows its own stop"
        " button.",
    )

    @property
    @override
    def bot_account(self) -> str:
        """The bot's user id, which is the number before the token's colon; "" without a token."""
        number = self.token.get_secret_value().partition(":")[0] if self.token else ""
        return number if number.isdecimal() else ""
