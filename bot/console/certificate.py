"""The certificate of the HTTPS server, read again when its files are replaced."""

import ssl
from pathlib import Path
from typing import TypeAlias

import structlog

from bot.ports import Clock
from bot.runtime.secret_file import LOOK_EVERY_SECONDS

_log = structlog.get_logger(__name__)
_Versions: TypeAlias = tuple[tuple[int, int, int], ...]


class ServedCertificate:
    """A certificate chain and its key; connections that are open keep the one they began with.

    Args:
        chain: the file of the chain, in PEM.
        key: the file of its key, in PEM; None: it stands in the same file.

    Raises:
        OSError: they cannot be read, or do not belong together (`ssl.SSLError`).
    """

    def __init__(self, chain: Path, key: Path | None) -> None:
        self._chain, self._key = chain, key
        self._versions = self._read_versions()
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._load(self.context)

    async def follow(self, clock: Clock) -> None:
        """Look for other files every five seconds, until cancelled."""
        while True:
            await clock.sleep(LOOK_EVERY_SECONDS)
            self.read_changed_files()

    def read_changed_files(self) -> None:
        """Use what the files hold now, if they were replaced, both of them.

        To be called in the event loop, where handshakes use the context: OpenSSL lets no other
        thread change it meanwhile.
        """
        try:
            versions = self._read_versions()
            if versions == self._versions:
                return
            # What is loaded into a context stays there, also if the key is of another certificate.
            self._load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
            self._load(self.context)
        except OSError as error:
            _log.warning("certificate_not_read", reason=error.strerror or type(error).__name__)
            return
        self._versions = versions
        _log.info("certificate_replaced")

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self._chain, self._key)

    def _read_versions(self) -> _Versions:
        found = [file.stat() for file in (self._chain, self._key) if file is not None]
        return tuple((one.st_mtime_ns, one.st_ino, one.st_size) for one in found)
