"""Test cached chat settings: read once, updated on changes in any process."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from typing_extensions import override

from bot.chat.session import ChatSetting
from bot.errors import StoreError
from bot.runtime.in_process import InProcessSignals
from bot.storage.chat_settings import CachedChatSettings, SqlChatSettings
from bot.storage.database import Database
from tests.fakes import FakeClock

SCOPES = ["telegram:5/7", "telegram:5"]


class SlowChatSettings(SqlChatSettings):
    """Chat settings that count reads, and can block after a read or fail after a commit."""

    def __init__(self, database: Database, clock: FakeClock) -> None:
        super().__init__(database, clock)
        self.reads: list[list[str]] = []
        self.gate: asyncio.Event | None = None
        self.loses_answers = False

    @override
    async def set(
        self, scope: str, key: str, value: str | None, by: str, *, is_audited: bool = False
    ) -> None:
        if self.loses_answers:
            raise StoreError("the database failed: TimeoutError")
        await super().set(scope, key, value, by, is_audited=is_audited)

    @override
    async def get_scopes(self, scopes: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        self.reads.append(list(scopes))
        values = await super().get_scopes(scopes)
        if self.gate is not None:
            await self.gate.wait()
        return values


class Processes:
    """Two processes on one database; `here` and `there` exchange signals."""

    def __init__(self, database: Database) -> None:
        self.clock = FakeClock()
        signals = InProcessSignals()
        self.stored = SlowChatSettings(database, self.clock)
        self.other_stored = SlowChatSettings(database, self.clock)
        self.here = CachedChatSettings(self.stored, signals, self.clock, 3.0)
        self.there = CachedChatSettings(self.other_stored, signals, self.clock, 3.0)
        self.deaf = CachedChatSettings(self.other_stored, InProcessSignals(), self.clock, 3.0)
        self.alone = CachedChatSettings(self.stored, signals, self.clock, None)


@pytest.fixture
def processes(database: Database) -> Processes:
    return Processes(database)


async def test_setting_is_read_once(processes: Processes) -> None:
    await processes.stored.set("telegram:5", "preset", "nora", "telegram:1")
    for _ in range(3):
        found = await processes.here.resolve(SCOPES, "preset")
        assert found == ChatSetting("telegram:5", "nora")
        assert await processes.here.get_all(SCOPES, "preset") == {"telegram:5": "nora"}
    assert processes.stored.reads == [SCOPES]


async def test_absence_of_settings_is_cached(processes: Processes) -> None:
    for _ in range(3):
        assert await processes.here.resolve(SCOPES, "preset") is None
    assert await processes.here.get_all([*SCOPES, "telegram:6"], "preset") == {}
    assert processes.stored.reads == [SCOPES, ["telegram:6"]]


async def test_one_read_loads_all_keys_of_a_scope(processes: Processes) -> None:
    of = "telegram:5"
    await processes.stored.set(of, "preset", "nora", "telegram:1")
    await processes.stored.set(of, "persona", "a knight", "telegram:1")
    for key, value in (("preset", "nora"), ("persona", "a knight")):
        assert await processes.here.resolve([of], key) == ChatSetting(of, value)
    assert await processes.here.resolve([of], "observe") is None
    assert processes.stored.reads == [[of]]


@pytest.mark.parametrize("reader", ["here", "there", "alone"])
async def test_change_in_another_process_is_noticed_at_once(
    processes: Processes, reader: str
) -> None:
    settings: CachedChatSettings = getattr(processes, reader)
    for value in ("nora", "lan", None, "nora"):
        await processes.here.set("telegram:5", "preset", value, "telegram:1")
        found = await settings.resolve(SCOPES, "preset")
        assert found == (ChatSetting("telegram:5", value) if value else None)


async def test_change_with_a_lost_signal_is_noticed_within_seconds(processes: Processes) -> None:
    assert await processes.deaf.resolve(SCOPES, "preset") is None
    await processes.here.set("telegram:5", "preset", "nora", "telegram:1")
    await processes.clock.advance(3.1)
    assert await processes.deaf.resolve(SCOPES, "preset") == ChatSetting("telegram:5", "nora")


async def test_values_never_expire_if_no_other_process_writes(processes: Processes) -> None:
    await processes.alone.resolve(SCOPES, "preset")
    await processes.clock.advance(1_000_000)
    await processes.alone.resolve(SCOPES, "preset")
    assert processes.stored.reads == [SCOPES]


async def test_value_changed_during_its_read_is_not_cached(processes: Processes) -> None:
    processes.stored.gate = asyncio.Event()
    reading = asyncio.create_task(processes.here.resolve(SCOPES, "preset"))
    while not processes.stored.reads:  # noqa: ASYNC110 # no event: a look at what is there
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)
    await processes.there.set("telegram:5", "preset", "nora", "telegram:1")
    processes.stored.gate.set()
    await reading
    assert await processes.here.resolve(SCOPES, "preset") == ChatSetting("telegram:5", "nora")


async def test_value_is_not_cached_after_a_failed_change(processes: Processes) -> None:
    processes.stored.loses_answers = True
    with pytest.raises(StoreError):
        await processes.alone.set("telegram:5", "preset", "nora", "telegram:1")
    assert await processes.alone.resolve(SCOPES, "preset") is None
    processes.stored.loses_answers = False
    await processes.stored.set("telegram:5", "preset", "nora", "telegram:1")  # it arrives late
    assert await processes.alone.resolve(SCOPES, "preset") == ChatSetting("telegram:5", "nora")
    await processes.clock.advance(61)  # whatever became of it is settled
    await processes.alone.resolve(SCOPES, "preset")
    reads = len(processes.stored.reads)
    assert await processes.alone.resolve(SCOPES, "preset") == ChatSetting("telegram:5", "nora")
    assert len(processes.stored.reads) == reads


async def test_forget_drops_cached_self_descriptions(processes: Processes) -> None:
    scopes = ["telegram:1@telegram:5", "telegram:1"]
    for scope in scopes:
        await processes.stored.set(scope, "persona", "a knight", "telegram:1")
    for settings in (processes.here, processes.there):
        await settings.get_all(scopes, "persona")
    await processes.stored.set(scopes[0], "persona", None, "telegram:1")  # as /forget does in SQL
    await processes.here.forget("telegram:5")
    for settings in (processes.here, processes.there):
        assert await settings.get_all(scopes, "persona") == {"telegram:1": "a knight"}
    assert processes.stored.reads[-1] == scopes[:1]
