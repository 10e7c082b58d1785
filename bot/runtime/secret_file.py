"""Read secrets from files, which may be replaced while the service runs, as in Kubernetes."""

from collections.abc import Sequence
from pathlib import Path

import structlog
from pydantic import SecretStr

from bot.ports import Clock

CHECK_INTERVAL_SECONDS = 5.0
"""The interval at which files are checked for changes."""
_log = structlog.get_logger(__name__)


def read_secrets(file: Path) -> list[str]:
    """Return the secrets in a file, one per line; raises `OSError` or `UnicodeDecodeError`."""
    return list(dict.fromkeys(file.read_text("utf-8").split()))


def read_setting_secrets(file: Path, label: str) -> list[str]:
    """Return a file's secrets; raises `ValueError`, whose message calls them `label`."""
    try:
        return read_secrets(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"{label} in {file} cannot be read: {reason}") from None


def read_single_secret(file: Path, name: str) -> str:
    """Return a file's only secret, or raise `ValueError` with a message about `name`."""
    secrets = read_setting_secrets(file, f"the {name}")
    if len(secrets) != 1:
        raise ValueError(f"{file} should contain exactly one {name}, but contains {len(secrets)}")
    return secrets[0]


def resolve_secret(secret: SecretStr | None, file: Path | None, field: str) -> SecretStr | None:
    """Return the secret from a setting or its file, if any; raises `ValueError` naming `field`."""
    if file is None:
        return secret
    file_secret = SecretStr(read_single_secret(file, field.replace("_", " ")))
    if secret not in {None, file_secret}:
        raise ValueError(f"{field} and {field}_file are both set; remove one of them")
    return file_secret


class SecretFile:
    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._last_checked_at = clock.monotonic()
        self._version = self._read_version()
        self.secrets: Sequence[str] = self._read_or_log_problem() or []

    def reload_if_changed(self, *, check_now: bool = False) -> bool:
        """Read the file again and return whether `secrets` changed.

        Unless `check_now`, return False without reading if the last check was less than five
        seconds ago.
        """
        now = self._clock.monotonic()
        if not check_now and now - self._last_checked_at < CHECK_INTERVAL_SECONDS:
            return False
        self._last_checked_at = now
        version = self._read_version()
        if version is None or version == self._version:
            return False
        secrets = self._read_or_log_problem()
        if not secrets or secrets == self.secrets:  # being written right now, or only touched
            return False
        self._version, self.secrets = version, secrets
        return True

    def _read_version(self) -> tuple[int, int, int] | None:
        try:
            file_status = self._path.stat()
        except OSError:  # it is being replaced right now
            return None
        return file_status.st_mtime_ns, file_status.st_ino, file_status.st_size

    def _read_or_log_problem(self) -> list[str] | None:
        try:
            return read_secrets(self._path)
        except (OSError, UnicodeDecodeError) as error:
            _log.warning("secret_file_not_read", reason=type(error).__name__)
            return None
