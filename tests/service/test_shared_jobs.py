"""Test what several processes share: exclusive jobs, and the ports of a machine."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import select
from typing_extensions import override

from bot.console.server import serve_http
from bot.prompting.presets.preset import Preset
from bot.routing.presets import PresetResolver
from bot.runtime.in_process import InProcessSignals
from bot.runtime.tasks import cancel_and_wait
from bot.service.options import Role, RunOptions
from bot.service.resources import Resources
from bot.service.stores import StorageContainer
from bot.settings import ConsoleSettings, Settings
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.database import Database
from bot.storage.tables import role_lease
from tests.fakes import FakeClock
from tests.waiting import PATIENCE_SECONDS, advance_in_steps, settle

NORA = Preset.model_validate({"name": "nora", "provider": "test", "model": "m"})


class OneOfSeveral(StorageContainer):
    """A process among several, as on PostgreSQL."""

    @property
    @override
    def runs_alone(self) -> bool:
        return False


def process(
    database: Database,
    clock: FakeClock,
    folder: Path,
    owner: str,
    *roles: Role,
) -> OneOfSeveral:
    chat_settings = SqlChatSettings(database, clock)
    resolver = PresetResolver({"nora": NORA}, "nora", chat_settings)
    resources = Resources(database, {}, InProcessSignals(), chat_settings, resolver, None)
    options = RunOptions(roles=frozenset(roles or Role))
    settings = Settings(data_dir=folder)
    return OneOfSeveral(settings, resources, (), pytest.fail, options, clock, owner)


async def read_holders(database: Database) -> dict[str, str]:
    """Return the owners of unreleased leases, by role."""
    query = select(role_lease.c.role, role_lease.c.owner).where(role_lease.c.lease_until > 0)
    rows = await database.read(lambda c: c.execute(query).all())
    return {one.role: one.owner for one in rows}


async def test_job_runs_in_one_process_at_a_time(database: Database, tmp_path: Path) -> None:
    clock, name = FakeClock(), "delete expired rows"

    async def do(owner: str) -> None:
        await process(database, clock, tmp_path, owner).delete_expired_rows()

    async def wait_until_held_by(owner: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await read_holders(database)).get(name) != owner:
                await settle()  # else the clock is ahead of what renews leases
                await clock.advance(0.1)

    one = asyncio.create_task(do("one"))
    await wait_until_held_by("one")
    other = asyncio.create_task(do("other"))
    await advance_in_steps(clock, 2.5)
    assert await read_holders(database) == {name: "one"}
    await cancel_and_wait([one])
    await wait_until_held_by("other")
    await cancel_and_wait([other])
    assert await read_holders(database) == {}


async def test_process_uses_another_port_unless_it_serves_the_console(
    database: Database, tmp_path: Path
) -> None:
    clock = FakeClock()
    worker = process(database, clock, tmp_path, "one", Role.WORKER, Role.SENDER)
    console = process(database, clock, tmp_path, "other", Role.CONSOLE)
    whole = process(database, clock, tmp_path, "all")
    assert worker.may_take_any_port
    assert whole.may_take_any_port
    assert not console.may_take_any_port
    async with serve_http(ConsoleSettings(port=0), []) as taken:
        port = urlsplit(taken).port
        assert port is not None
        async with serve_http(ConsoleSettings(port=port), [], may_change_port=True) as address:
            assert urlsplit(address).port != port
