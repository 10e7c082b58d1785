"""What a platform proves itself by when it calls, from a file that is replaced meanwhile."""

from collections.abc import Callable
from pathlib import Path

import structlog

from bot.ports import Clock
from bot.runtime.secret_file import SecretFile
from bot.telemetry.secret_masker import mask_from_now_on

_log = structlog.get_logger(__name__)


class WebhookSecret:
    """The secret as it is now.

    Args:
        without_file: gives the secret where there is no file.
        file: has it instead; None: there is none.
        is_valid: whether the platform accepts a secret.
        clock: time.
    """

    def __init__(
        self,
        without_file: Callable[[], str],
        file: Path | None,
        is_valid: Callable[[str], bool],
        clock: Clock,
    ) -> None:
        self._without_file = without_file
        self._is_valid = is_valid
        self._file = None if file is None else SecretFile(file, clock)
        self._from_file = self._file.secrets[-1] if self._file and self._file.secrets else None

    def read(self) -> str:
        """Return the secret; the file is looked at every five seconds."""
        if self._file is not None and self._file.has_changed():
            self._take(*self._file.secrets)
        return self._without_file() if self._from_file is None else self._from_file

    def _take(self, secret: str, *more: str) -> None:
        mask_from_now_on([secret, *more])
        if more or not self._is_valid(secret):
            _log.error("webhook_secret_not_used")
            return
        self._from_file = secret
        _log.info("webhook_secret_replaced")
