"""The HTTP server of a process: one port for everything that is served over HTTP."""

import contextlib
import errno
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeAlias

from aiohttp import web

from bot.errors import SettingsError
from bot.settings import ConsoleSettings

_MORE_PORTS = 20
"""So many ports after the usual one are tried where that is in use."""
_MAX_BODY_BYTES = 20 * 2**20

AddRoutes: TypeAlias = Callable[[web.Application], None]
"""Adds what a part of the service serves; it answers for its own access rules."""


@contextlib.asynccontextmanager
async def serve_http(
    console: ConsoleSettings, add_routes: Sequence[AddRoutes], *, any_port: bool = False
) -> AsyncIterator[str]:
    """Serve within the block; yields the address.

    Where no port was set, or with `any_port`, and the port is in use, the next free one is taken.

    Raises:
        SettingsError: the port that was set is in use, the host is no address of this machine, or
            the certificate cannot be read.
    """
    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    for add in add_routes:
        add(app)
    tls = _load_certificate(console)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1)
    await runner.setup()
    try:
        await _listen(runner, console, tls, any_port=any_port or not console.port_is_set)
        host, port = runner.addresses[0][:2]
        yield f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        await runner.cleanup()


def _load_certificate(console: ConsoleSettings) -> ssl.SSLContext | None:
    if console.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(console.tls_certificate, console.tls_key)
    except OSError as error:
        raise SettingsError(
            f"TROUPE_CONSOLE__TLS_CERTIFICATE: {console.tls_certificate} and its key cannot be"
            f" used ({error.strerror or error})"
        ) from None
    return context


async def _listen(
    runner: web.AppRunner, console: ConsoleSettings, tls: ssl.SSLContext | None, *, any_port: bool
) -> None:
    more = (*range(console.port + 1, console.port + _MORE_PORTS), 0) if any_port else ()
    for port in (console.port, *more):
        site = web.TCPSite(runner, console.host, port, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            await site.stop()
            if error.errno == errno.EADDRINUSE and any_port:
                continue
            raise SettingsError(
                f"cannot listen on {console.host}:{port} ({error.strerror}); "
                "set TROUPE_CONSOLE__PORT to a free port, or to 0 for any"
            ) from None
        else:
            return
