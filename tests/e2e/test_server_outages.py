"""Test that /readyz reports server outages at once, and that their start and end are logged."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest_asyncio

from tests.gate import Gate
from tests.postgres import create_postgres_database
from tests.support.chats import Platforms
from tests.support.features import ON_THE_WIRES
from tests.support.service_process import Service
from tests.valkey import run_valkey
from tests.waiting import wait_until

pytestmark = ON_THE_WIRES


@pytest_asyncio.fixture(loop_scope="session")
async def gates(
    service: Service, postgres_folder: str, tmp_path: Path
) -> AsyncIterator[dict[str, Gate]]:
    """Yield proxies for the PostgreSQL and Valkey of a service that logs JSON."""
    [socket] = [str(one) for one in Path(postgres_folder).glob(".s.PGSQL.*[0-9]")]  # noqa: ASYNC240
    name = urlsplit(await create_postgres_database(postgres_folder)).path
    async with (
        run_valkey(tmp_path) as valkey,
        Gate(lambda: asyncio.open_unix_connection(socket)) as database,
        Gate(lambda: asyncio.open_unix_connection(valkey.removeprefix("unix://"))) as redis,
    ):
        service.settings |= {
            "TROUPE_DATABASE_URL": f"postgresql+asyncpg://postgres@127.0.0.1:{database.port}{name}",
            "TROUPE_REDIS_URL": f"redis://127.0.0.1:{redis.port}",
            "TROUPE_LOG_FORMAT": "json",
        }
        yield {"database": database, "redis": redis}


async def test_outages_are_reported_with_their_duration(
    service: Service, gates: dict[str, Gate], platforms: Platforms
) -> None:
    await service.start_and_wait()

    def logged(event: str, part: str) -> list[dict[str, Any]]:
        lines = map(json.loads, service.output().splitlines())  # also what is not of the log
        return [line for line in lines if line["event"] == event and line.get("part") == part]

    async def wait_until_named(part: str) -> None:
        looks = 0
        while (found := await service.parts())[1].get(part, "ok") == "ok":
            looks += found[0] != 0
            assert looks < 3, "with half a second between looks it is named within 3 s"
            await asyncio.sleep(0.5)
        assert found[0] == HTTPStatus.SERVICE_UNAVAILABLE

    outages = [("redis", "freeze"), ("redis", "shut"), ("database", "shut")]
    for number, (part, way) in enumerate(outages):
        earlier = len([one for one in outages[:number] if one[0] == part])
        await getattr(gates[part], way)()
        await wait_until_named(part)
        await wait_until(lambda of=part, n=earlier: len(logged("outage_began", of)) > n)  # type: ignore[misc]
        await gates[part].open()
        await wait_until(lambda of=part, n=earlier: len(logged("outage_ended", of)) > n)  # type: ignore[misc]
        assert logged("outage_ended", part)[-1]["seconds"] > 0
    platforms.telegram.fault("getUpdates", times=1000, error_code=502, description="Bad Gateway")
    await wait_until(lambda: logged("outage_began", "telegram"))
    platforms.telegram.faults.clear()
    await wait_until(lambda: logged("outage_ended", "telegram"))
    assert await service.stop() == 0

    lines = [json.loads(line) for line in service.output().splitlines()]
    errors = Counter(
        (line["event"], *map(line.get, ("reason", "part", "queue", "role")))
        for line in lines
        if line["level"] in {"warning", "error"} and "repeats" not in line
    )
    assert set(errors.values()) <= {1}
