"""Health, readiness and metrics over HTTP."""

import asyncio
import json
import socket

import aiohttp
import pytest

from bot.console.health import Probe, health_routes
from bot.console.server import serve_http
from bot.errors import SettingsError, StoreError
from bot.settings import ConsoleSettings

ANY_PORT = ConsoleSettings(port=0)


async def ok() -> str | None:
    return None


async def disconnected() -> str | None:
    return "not connected"


async def hanging() -> str | None:
    await asyncio.sleep(60)
    return None


async def broken() -> str | None:
    raise StoreError("postgresql://bot:secret@db/chat is down")


async def get(address: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as client, client.get(address) as response:
        return response.status, await response.text()


@pytest.mark.parametrize(
    ("probe", "status", "shown"),
    [
        (ok, 200, "ok"),
        (disconnected, 503, "not connected"),
        (hanging, 503, "no answer within 0.05 s"),
        (broken, 503, "StoreError"),  # its text has an address
    ],
)
async def test_readyz_says_what_each_probe_says(probe: Probe, status: int, shown: str) -> None:
    notices = ["provider 'x' does not answer this worker"]
    routes = health_routes({"part": probe}, notices=lambda: notices, probe_seconds=0.05)
    async with serve_http(ANY_PORT, [routes]) as address:
        alive, _ = await get(f"{address}/healthz")
        found, text = await get(f"{address}/readyz")

    assert (alive, found) == (200, status)
    assert json.loads(text) == {
        "ready": status == 200,
        "parts": {"part": shown},
        "notices": notices,
    }


async def test_probe_that_cannot_be_cancelled_is_not_waited_for() -> None:
    may_end = asyncio.Event()

    async def probe() -> str | None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
        return None

    routes = health_routes({"database": probe}, probe_seconds=0.05)
    async with serve_http(ANY_PORT, [routes]) as address:
        status, text = await get(f"{address}/readyz")
        may_end.set()

    assert status == 503
    assert "no answer within" in text


async def test_metrics_are_in_prometheus_format() -> None:
    async with serve_http(ANY_PORT, [health_routes({})]) as address:
        status, text = await get(f"{address}/metrics")

    assert status == 200
    assert "# TYPE python_info gauge" in text


async def test_port_in_use_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(SettingsError, match=f"{port}.*TROUPE_CONSOLE__PORT"):
            async with serve_http(ConsoleSettings(port=port), [health_routes({})]):
                pytest.fail("it listens")


async def test_next_port_is_taken_where_the_usual_one_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        usual = taken.getsockname()[1]
        console = ConsoleSettings.model_construct(set(), host="127.0.0.1", port=usual)
        async with serve_http(console, [health_routes({})]) as address:
            assert int(address.rpartition(":")[2]) != usual
            assert (await get(f"{address}/healthz"))[0] == 200


async def test_port_is_free_after_the_end() -> None:
    async with serve_http(ANY_PORT, [health_routes({})]) as address:
        port = int(address.rpartition(":")[2])
        await get(f"{address}/healthz")

    async with serve_http(ConsoleSettings(port=port), [health_routes({})]) as again:
        assert again == address
