"""The HTTP endpoints /healthz, /readyz and /metrics."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from bot.errors import SettingsError, TroupeError
from bot.settings import ConsoleSettings

_MORE_PORTS = 20
"""So many ports after the usual one are tried where that is in use."""

Probe = Callable[[], Awaitable[str | None]]
"""Return None if a part of the service works, else the reason in a few words."""


@contextlib.asynccontextmanager
async def serve_health(
    console: ConsoleSettings, probes: Mapping[str, Probe], *, probe_seconds: float = 2.0
) -> AsyncIterator[str]:
    """Serve /healthz, /readyz and /metrics within the block; yields the address.

    Where no port was set and the usual one is in use, the next free one is taken.

    Raises:
        SettingsError: the port that was set is in use, or the host is no address of this machine.
    """

    async def ready(_: web.Request) -> web.Response:
        return await _readyz(probes, probe_seconds)

    app = web.Application()
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/metrics", _metrics_page)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1)
    await runner.setup()
    try:
        await _listen(runner, console)
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, console: ConsoleSettings) -> None:
    more = () if console.port_is_set else (*range(console.port + 1, console.port + _MORE_PORTS), 0)
    for port in (console.port, *more):
        site = web.TCPSite(runner, console.host, port)
        try:
            await site.start()
        except OSError as error:
            await site.stop()
            if error.errno == errno.EADDRINUSE and not console.port_is_set:
                continue
            raise SettingsError(
                f"cannot listen on {console.host}:{port} ({error.strerror}); "
                "set TROUPE_CONSOLE__PORT to a free port, or to 0 for any"
            ) from None
        else:
            return


async def _healthz(_: web.Request) -> web.Response:
    return web.json_response({"alive": True})


async def _readyz(probes: Mapping[str, Probe], seconds: float) -> web.Response:
    answers: dict[str, str] = {}
    async with asyncio.TaskGroup() as group:
        for name, probe in probes.items():
            group.create_task(_run_probe(name, probe, answers, seconds))
    ready = all(answer == "ok" for answer in answers.values())
    return web.json_response({"ready": ready, "parts": answers}, status=200 if ready else 503)


async def _run_probe(name: str, probe: Probe, answers: dict[str, str], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            answers[name] = await probe() or "ok"
    except TimeoutError:
        answers[name] = f"no answer within {seconds:g} s"
    except TroupeError as error:
        answers[name] = type(error).__name__  # its text may contain an address


async def _metrics_page(_: web.Request) -> web.Response:
    return web.Response(
        body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )
