"""A bot's token, from a setting or from a file that may be replaced while the service runs."""

from pathlib import Path
from typing import Generic, Self, TypeVar

import structlog
from pydantic import Field, SecretStr, model_validator
from typing_extensions import override

from bot.errors import TokenRejected
from bot.platforms.spec import PlatformSettings
from bot.ports import Clock
from bot.runtime.secret_file import CHECK_INTERVAL_SECONDS, SecretFile, resolve_secret
from bot.telemetry.secret_masker import register_secrets

_RETRY_SECONDS = 30.0  # the wait after a rejected token if its file has no new token
_log = structlog.get_logger(__name__)


class BotTokenSettings(PlatformSettings):
    """The settings of a platform whose bots have tokens."""

    token: SecretStr | None = None
    token_file: Path | None = Field(
        None,
        description="A file that contains the token, such as a mounted secret. If it is replaced"
        " while the service runs, the new token is used within seconds.",
    )

    @property
    @override
    def is_configured(self) -> bool:
        return self.token is not None

    @model_validator(mode="after")
    def _read_token_file(self) -> Self:
        self.token = resolve_secret(self.token, self.token_file, "token")
        return self


SettingsT = TypeVar("SettingsT", bound=BotTokenSettings)


class BotToken(Generic[SettingsT]):
    def __init__(self, settings: SettingsT, clock: Clock) -> None:
        self.settings = settings  # always contains the current token
        self._clock = clock
        file = settings.token_file
        self._token_file = None if file is None else SecretFile(file, clock)

    def read(self, *, check_now: bool = False) -> str:
        """Return the current token, or "" if none is set.

        The token's file is checked for a new token every five seconds, or now if `check_now`. A new
        token that belongs to a different bot is ignored.
        """
        if self._token_file is not None and self._token_file.reload_if_changed(check_now=check_now):
            self._use_token(self._token_file.secrets[-1])
        return self.settings.token.get_secret_value().strip() if self.settings.token else ""

    async def wait_for_retry(self, rejected_token: str, error: TokenRejected) -> None:
        """Log that the platform rejected a token; wait up to 30 seconds until the token changes."""
        restart_hint = "; restart Troupe to change a setting" if self._token_file is None else ""
        _log.error("token_rejected", reason=str(error), retry=f"every 30 s{restart_hint}")
        deadline = self._clock.monotonic() + _RETRY_SECONDS
        while self.read() == rejected_token and self._clock.monotonic() < deadline:
            await self._clock.sleep(CHECK_INTERVAL_SECONDS)

    def _use_token(self, token: str) -> None:
        register_secrets([token])
        new_settings = self.settings.model_copy(update={"token": SecretStr(token)})
        if new_settings.bot_account != self.settings.bot_account:
            _log.error("token_of_another_bot_ignored", bot=self.settings.bot_account)
            return
        self.settings = new_settings
        _log.info("token_replaced", bot=self.settings.bot_account)
