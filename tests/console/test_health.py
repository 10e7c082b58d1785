"""An operator sees over HTTP whether the service lives and whether it can answer."""

import asyncio
import socket

import aiohttp
import pytest

from bot.console.health import serving
from bot.errors import SettingsError, StoreError
from bot.settings import ConsoleSettings

ANY_PORT = ConsoleSettings(port=0)


async def fine() -> str | None:
    return None


async def away() -> str | None:
    return "not connected"


async def stuck() -> str | None:
    await asyncio.sleep(60)
    return None


async def broken() -> str | None:
    raise StoreError("postgresql://bot:secret@db/chat is away")


async def get(address: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as client, client.get(address) as response:
        return response.status, await response.text()


async def test_a_living_process_is_healthy_whatever_its_parts_say() -> None:
    async with serving(ANY_PORT, {"discord": away}) as address:
        status, _ = await get(f"{address}/healthz")

    assert status == 200


async def test_ready_is_only_who_has_every_part() -> None:
    async with serving(ANY_PORT, {"database": fine, "discord": fine}) as address:
        status, text = await get(f"{address}/readyz")

    assert status == 200
    assert '"ready": true' in text


async def test_what_is_missing_is_named() -> None:
    async with serving(ANY_PORT, {"database": fine, "discord": away}) as address:
        status, text = await get(f"{address}/readyz")

    assert status == 503
    assert '"discord": "not connected"' in text


async def test_a_probe_that_hangs_is_not_waited_for() -> None:
    async with serving(ANY_PORT, {"redis": stuck}, probe_seconds=0.05) as address:
        status, text = await get(f"{address}/readyz")

    assert status == 503
    assert "no answer within" in text


async def test_a_probe_that_fails_tells_no_addresses() -> None:
    async with serving(ANY_PORT, {"database": broken}) as address:
        status, text = await get(f"{address}/readyz")

    assert status == 503
    assert '"database": "StoreError"' in text


async def test_metrics_are_in_the_form_of_prometheus() -> None:
    async with serving(ANY_PORT, {}) as address:
        status, text = await get(f"{address}/metrics")

    assert status == 200
    assert "# TYPE python_info gauge" in text


async def test_a_taken_port_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(SettingsError, match=f"{port}.*TROUPE_CONSOLE__PORT"):
            async with serving(ConsoleSettings(port=port), {}):
                pytest.fail("it listens")


async def test_it_frees_its_port_when_it_ends() -> None:
    async with serving(ANY_PORT, {}) as address:
        port = int(address.rpartition(":")[2])
        await get(f"{address}/healthz")

    async with serving(ConsoleSettings(port=port), {}) as again:
        assert again == address
