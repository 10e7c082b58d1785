"""Health over HTTP: is the process alive, is it ready to answer, what does it count."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from bot.errors import SettingsError, TroupeError
from bot.settings import ConsoleSettings

Probe = Callable[[], Awaitable[str | None]]


@contextlib.asynccontextmanager
async def serving(
    console: ConsoleSettings, probes: Mapping[str, Probe], *, probe_seconds: float = 2.0
) -> AsyncIterator[str]:
    """Serve /healthz, /readyz and /metrics for the length of the block; gives the address.

    A probe gives None when all is well, else a few words.

    Raises:
        SettingsError: the port is taken, or the host is not ours.
    """

    async def ready(_: web.Request) -> web.Response:
        return await _ready(probes, probe_seconds)

    app = web.Application()
    app.router.add_get("/healthz", _alive)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/metrics", _metrics)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, console.host, console.port)
        try:
            await site.start()
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {console.host}:{console.port} ({error.strerror}); "
                "set TROUPE_CONSOLE__PORT to a free port, or to 0 for any"
            ) from None
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def _alive(_: web.Request) -> web.Response:
    return web.json_response({"alive": True})


async def _ready(probes: Mapping[str, Probe], seconds: float) -> web.Response:
    answers: dict[str, str] = {}
    async with asyncio.TaskGroup() as group:
        for name, probe in probes.items():
            group.create_task(_ask(name, probe, answers, seconds))
    ready = all(answer == "ok" for answer in answers.values())
    return web.json_response({"ready": ready, "parts": answers}, status=200 if ready else 503)


async def _ask(name: str, probe: Probe, answers: dict[str, str], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            answers[name] = await probe() or "ok"
    except TimeoutError:
        answers[name] = f"no answer within {seconds:g} s"
    except TroupeError as error:
        answers[name] = type(error).__name__  # its text is for the log: it may name an address


async def _metrics(_: web.Request) -> web.Response:
    return web.Response(
        body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )
