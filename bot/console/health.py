"""The HTTP endpoints /healthz, /readyz and /metrics."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from bot.console.server import AddRoutes
from bot.errors import TroupeError
from bot.runtime.tasks import finish_within

Notices = Callable[[], Sequence[str]]
"""Return what an operator should know about a working service."""
Probe = Callable[[], Awaitable[str | None]]
"""Return None if a part of the service works, else the reason in a few words."""


def health_routes(
    probes: Mapping[str, Probe], *, notices: Notices = tuple, probe_seconds: float = 2.0
) -> AddRoutes:
    """Return the routes /healthz, /readyz and /metrics, which need no login."""

    async def ready(_: web.Request) -> web.Response:
        return await _readyz(probes, notices, probe_seconds)

    def add_routes(app: web.Application) -> None:
        app.router.add_get("/healthz", _healthz)
        app.router.add_get("/readyz", ready)
        app.router.add_get("/metrics", _metrics_page)

    return add_routes


async def run_probes(probes: Mapping[str, Probe], seconds: float) -> Mapping[str, str]:
    """Return what each probe says, "ok" for what works."""
    answers: dict[str, str] = {}
    async with asyncio.TaskGroup() as group:
        for name, probe in probes.items():
            group.create_task(_run_probe(name, probe, answers, seconds))
    return answers


async def _healthz(_: web.Request) -> web.Response:
    return web.json_response({"alive": True})


async def _readyz(probes: Mapping[str, Probe], notices: Notices, seconds: float) -> web.Response:
    answers = await run_probes(probes, seconds)
    ready = all(answer == "ok" for answer in answers.values())
    said = {"ready": ready, "parts": answers, "notices": list(notices())}
    return web.json_response(said, status=200 if ready else 503)


async def _run_probe(name: str, probe: Probe, answers: dict[str, str], seconds: float) -> None:
    try:
        problem = await finish_within(seconds, probe())
        answers[name] = problem or "ok"
    except TimeoutError:
        answers[name] = f"no answer within {seconds:g} s"
    except TroupeError as error:
        answers[name] = type(error).__name__  # its text may contain an address


async def _metrics_page(_: web.Request) -> web.Response:
    return web.Response(
        body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )
