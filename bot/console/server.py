"""The HTTP server of a process: one port for everything, and its published address."""

import asyncio
import contextlib
import errno
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias, cast

import structlog
from aiohttp import web

from bot.errors import SettingsError
from bot.ports import Clock
from bot.runtime.clock import SystemClock
from bot.runtime.head_timeout import HeadTimeout
from bot.runtime.secret_file import LOOK_EVERY_SECONDS
from bot.runtime.tasks import cancel_and_wait
from bot.settings import ConsoleSettings

_log = structlog.get_logger(__name__)
_MORE_PORTS = 20
"""How many ports after the usual one are tried if that is in use."""
_MAX_BODY_BYTES = 20 * 2**20
_BACKLOG = 128
_KEEP_ALIVE_SECONDS = 75.0
"""After a response, for the next request and its head; proxies reuse connections for 60 s."""

AddRoutes: TypeAlias = Callable[[web.Application], None]
"""Adds the routes of a part of the service, which has its own access rules."""


@contextlib.asynccontextmanager
async def serve_http(
    console: ConsoleSettings,
    add_routes: Sequence[AddRoutes],
    *,
    any_port: bool = False,
    head_seconds: float = 10.0,
) -> AsyncIterator[str]:
    """Serve within the block; yields the address.

    Where no port was set, or with `any_port`, and the port is in use, the next free one is taken.
    A caller may take `head_seconds` to send the head of the first request.

    Raises:
        SettingsError: the port that was set is in use, the host is no address of this machine, or
            the certificate cannot be read.
    """
    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    for add in add_routes:
        add(app)
    certificate = _load_certificate(console)
    tls = certificate.context if certificate else None
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=1,
        keepalive_timeout=_KEEP_ALIVE_SECONDS,
    )
    await runner.setup()
    following = [asyncio.create_task(certificate.follow(SystemClock()))] if certificate else []
    serve = cast("web.Server", runner.server)
    try:
        server = await _listen(
            lambda: HeadTimeout(serve, head_seconds),
            console,
            tls,
            any_port=any_port or not console.port_is_set,
        )
        try:
            host, port = server.sockets[0].getsockname()[:2]
            yield f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
        finally:
            server.close()
    finally:
        await cancel_and_wait(following)
        await runner.cleanup()


class ServedCertificate:
    """The certificate of the HTTPS server, reloaded when its files (in PEM) are replaced.

    Raises:
        OSError: they cannot be read, or do not belong together (`ssl.SSLError`).
    """

    def __init__(self, chain: Path, key: Path) -> None:
        self._files = chain, key
        self._versions = self._read_versions()
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(*self._files)

    async def follow(self, clock: Clock) -> None:
        """Look for other files every five seconds, until cancelled."""
        while True:
            await clock.sleep(LOOK_EVERY_SECONDS)
            self.read_changed_files()

    def read_changed_files(self) -> None:
        """Use the files if both were replaced; only in the event loop, as handshakes are."""
        try:
            versions = self._read_versions()
            if versions == self._versions:
                return
            # Try another context first: one keeps what was loaded even if the key does not match.
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*self._files)
            self.context.load_cert_chain(*self._files)
        except OSError as error:
            _log.warning("certificate_not_read", reason=error.strerror or type(error).__name__)
            return
        self._versions = versions
        _log.info("certificate_replaced")

    def _read_versions(self) -> list[tuple[int, int, int]]:
        found = [file.stat() for file in self._files]
        return [(one.st_mtime_ns, one.st_ino, one.st_size) for one in found]


def _load_certificate(console: ConsoleSettings) -> ServedCertificate | None:
    if console.tls_certificate is None or console.tls_key is None:  # neither, as settings say
        return None
    try:
        return ServedCertificate(console.tls_certificate, console.tls_key)
    except OSError as error:
        raise SettingsError(
            f"TROUPE_CONSOLE__TLS_CERTIFICATE: {console.tls_certificate} and its key cannot be"
            f" used ({error.strerror or error})"
        ) from None


async def _listen(
    make_protocol: Callable[[], asyncio.Protocol],
    console: ConsoleSettings,
    tls: ssl.SSLContext | None,
    *,
    any_port: bool,
) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    more = (*range(console.port + 1, console.port + _MORE_PORTS), 0) if any_port else ()
    for port in (console.port, *more):
        try:
            return await loop.create_server(
                make_protocol, console.host, port, ssl=tls, backlog=_BACKLOG
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port != 0 and any_port:
                continue
            raise SettingsError(
                f"cannot listen on {console.host}:{port} ({error.strerror}); "
                "set TROUPE_CONSOLE__PORT to a free port, or to 0 for any"
            ) from None
    raise AssertionError("the last port is any free one")


_FILE = "console-address"


@contextlib.contextmanager
def published_address(data_dir: Path, address: str) -> Iterator[None]:
    """Keep the address in the data directory while the block runs."""
    file = data_dir / _FILE
    file.write_text(address, encoding="utf-8")
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def find_address(data_dir: Path) -> str | None:
    """Return the address of the console that uses this data directory; None if none runs."""
    try:
        return (data_dir / _FILE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
