"""The console reads a hot standby while that is near enough, and else the primary."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client import REGISTRY
from pydantic import SecretStr
from sqlalchemy import Connection, text
from structlog.testing import capture_logs

from bot.backends.echo.settings import EchoSettings
from bot.chat.console.answers import AnswerSearch
from bot.chat.session import TurnResult
from bot.platforms.registry import companion_platforms
from bot.runtime.clock import SystemClock
from bot.runtime.tasks import cancel_and_wait
from bot.service.roles import Role
from bot.service.run_options import RunOptions
from bot.service.service import running
from bot.settings import ConsoleSettings, Settings
from bot.storage.console.answers import SqlAnswerLog
from bot.storage.encryption.codec import TextEncryption
from bot.storage.queue_ages import SqlQueueAges
from bot.storage.replica.read_replica import ReadReplica, open_read_replica
from bot.storage.sql.conversations import SqlConversations
from bot.storage.sql.database import Database, open_database
from bot.storage.sql.inbox import SqlInbox
from tests.contracts.conftest import ENCRYPTION_KEY
from tests.contracts.test_receipts import RECEIPT
from tests.e2e.standby_postgres import PostgresPair, running_postgres_pair
from tests.postgres import frozen_postgres
from tests.samples import make_incoming
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

TOKEN = "a token of the settings"
PAGES = ("/answers", "/api/v1/answers", "/api/v1/answers/1/prompt", "/usage", "/usage.csv")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair() -> AsyncIterator[PostgresPair]:
    async with running_postgres_pair(is_synchronous=False) as servers:
        yield servers


@pytest_asyncio.fixture(loop_scope="module")
async def primary(pair: PostgresPair) -> AsyncIterator[Database]:
    encryption = TextEncryption([ENCRYPTION_KEY], is_on=True)
    async with open_database(pair.url, encryption) as database:
        yield database


async def store_answer(database: Database, number: int) -> None:
    clock = SystemClock()
    conversations = SqlConversations(database, clock)
    incoming = make_incoming(chat=str(number), key=f"{number}:1")
    await SqlInbox(database, clock).receive([incoming], {})
    [begun] = await conversations.begin([incoming.address.conversation], "me", 15)
    receipt = replace(RECEIPT, answer=f"Answer {number}.")
    await conversations.finish(begun.claim, begun.message, TurnResult(receipts=[receipt]))


async def ask_standby(replica: ReadReplica, sql: str) -> object:
    """Run a query on the standby, whatever its state is."""

    def unit(connection: Connection) -> object:
        return connection.execute(text(sql)).scalar_one()

    return await Database.read(replica, unit)


async def check_until(replica: ReadReplica, problem: str | None) -> None:
    async def is_so() -> bool:
        await replica.check()
        return replica.problem == problem

    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await is_so():  # noqa: ASYNC110 # a server makes it so
            await asyncio.sleep(0.02)


def gauge(name: str) -> float | None:
    return REGISTRY.get_sample_value(name)


async def test_standby_is_read_until_it_is_too_far_behind(
    pair: PostgresPair, primary: Database
) -> None:
    async with open_read_replica(pair.standby_url, primary, 0.5, SystemClock()) as replica:
        log = SqlAnswerLog(replica, primary)

        async def answers() -> Sequence[str]:
            return [one.receipt.answer for one in (await log.search(AnswerSearch(), 9)).answers]

        await store_answer(primary, 1)
        await check_until(replica, None)
        assert await replica.read(lambda c: c.execute(text("SELECT pg_is_in_recovery()")).scalar())
        assert await answers() == ["Answer 1."]

        await ask_standby(replica, "SELECT pg_wal_replay_pause()::text")
        await wait_until_paused(replica)
        await store_answer(primary, 2)
        assert await answers() == ["Answer 1."]
        newest = await log.find(2)  # a link leads to it at once
        assert newest is not None

        replica.note_change()  # somebody changed something on a page
        assert await answers() == ["Answer 2.", "Answer 1."]

        with capture_logs() as logs:
            await check_until(replica, "it is more than 0.5 s behind")
            await replica.check()
        assert [entry["event"] for entry in logs] == ["read_replica_not_used"]
        assert await answers() == ["Answer 2.", "Answer 1."]
        assert gauge("troupe_read_replica_unused") == 1
        assert (gauge("troupe_read_replica_lag_seconds") or 0) > 0.5

        await ask_standby(replica, "SELECT pg_wal_replay_resume()::text")
        await check_until(replica, None)
        assert await answers() == ["Answer 2.", "Answer 1."]
        assert gauge("troupe_read_replica_unused") == 0


async def test_lag_is_measured_on_the_primary_also_while_replay_stands_still(
    pair: PostgresPair, primary: Database
) -> None:
    ages = SqlQueueAges(primary, SystemClock())
    async with open_read_replica(pair.standby_url, primary, 10, SystemClock()) as replica:
        await ask_standby(replica, "SELECT pg_wal_replay_pause()::text")
        await wait_until_paused(replica)
        await store_answer(primary, 3)

        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await ages.read()).replication_lag < 0.5:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await ask_standby(replica, "SELECT pg_wal_replay_resume()::text")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await ages.read()).replication_lag > 0.4:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert (await ages.read()).replicas == 1


async def wait_until_paused(replica: ReadReplica) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        state = "SELECT pg_get_wal_replay_pause_state()"
        while await ask_standby(replica, state) != "paused":  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_standby_that_is_away_or_foreign_is_not_read(
    pair: PostgresPair, primary: Database
) -> None:
    await store_answer(primary, 4)
    socket = str(pair.link.resolve().parent)
    await pair.run("createdb", "-h", socket, "-U", "postgres", "other")
    other = f"postgresql+asyncpg://postgres@/other?host={socket}"
    async with open_database(other):
        pass
    away = pair.standby_url.replace(str(pair.standby_socket.parent), "/nowhere")
    for url, problem in (
        (away, "it does not answer"),
        (other, "it is no copy of the database in TROUPE_DATABASE_URL"),
    ):
        async with open_read_replica(url, primary, 10, SystemClock()) as replica:
            await replica.check()
            assert replica.problem == problem
            found = await SqlAnswerLog(replica, primary).search(AnswerSearch(), 1)
            assert [one.receipt.answer for one in found.answers] == ["Answer 4."]


async def test_page_that_waits_for_a_frozen_standby_is_read_from_the_primary(
    pair: PostgresPair, primary: Database
) -> None:
    await store_answer(primary, 6)
    async with open_read_replica(pair.standby_url, primary, 10, SystemClock()) as replica:
        await check_until(replica, None)
        log = SqlAnswerLog(replica, primary)
        await log.search(AnswerSearch(), 1)
        with capture_logs() as logs:
            watching = asyncio.create_task(replica.watch())
            with frozen_postgres(pair.standby):
                pages = [asyncio.create_task(log.search(AnswerSearch(), 1)) for _ in range(5)]
                found = [(await page).answers[0].receipt.answer for page in pages]
                assert replica.problem == "it does not answer"
            await wait_until(lambda: replica.problem is None)
            await cancel_and_wait([watching])
        assert found == ["Answer 6."] * 5
        assert await replica.read(lambda c: c.execute(text("SELECT pg_is_in_recovery()")).scalar())
    events = [entry["event"] for entry in logs]
    assert events.count("read_replica_failed") == 5, "they did not wait for the driver's time limit"
    changes = [event for event in events if event != "read_replica_failed"]
    assert changes == ["read_replica_not_used", "read_replica_used"]


async def test_long_page_is_read_from_a_standby_that_answers_checks(
    pair: PostgresPair, primary: Database
) -> None:
    """Three long queries, and a check that finds a connection."""
    async with open_read_replica(pair.standby_url, primary, 10, SystemClock()) as replica:
        await check_until(replica, None)
        asked = text("SELECT pg_is_in_recovery() FROM pg_sleep(3)")
        pages = [
            asyncio.create_task(replica.read(lambda c: c.execute(asked).scalar())) for _ in range(4)
        ]
        while not all(page.done() for page in pages):
            await replica.check()
            assert replica.problem is None
        assert [page.result() for page in pages] == [True] * 4


def console_settings(pair: PostgresPair, folder: Path) -> Settings:
    presets = folder / "presets"
    presets.mkdir()
    preset = {"name": "nora", "provider": "test", "model": "m"}
    (presets / "nora.json").write_text(json.dumps(preset))
    return Settings(
        data_dir=folder / "data",
        presets_dir=presets,
        default_preset="nora",
        database_url=SecretStr(pair.url),
        database_read_url=SecretStr(pair.standby_url),
        encryption_keys=(SecretStr(ENCRYPTION_KEY),),
        encrypt_texts=True,
        providers={"test": EchoSettings()},
        console=ConsoleSettings(port=0, token=SecretStr(TOKEN)),
    )


async def test_pages_are_read_while_the_primary_is_stopped(
    pair: PostgresPair, primary: Database, tmp_path: Path
) -> None:
    await store_answer(primary, 5)
    told: list[str] = []
    async with (
        running(
            console_settings(pair, tmp_path),
            told.append,
            companion_platforms(),
            RunOptions(roles=frozenset({Role.CONSOLE})),
        ) as service,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
    ):
        serving = asyncio.create_task(service.serve())
        try:
            await wait_until(lambda: any("health at" in line for line in told))
            [address] = [
                line.split()[-1].removesuffix("/readyz") for line in told if "health" in line
            ]

            async def get(path: str) -> tuple[int, str]:
                async with session.get(f"{address}{path}") as response:
                    return response.status, await response.text()

            assert "read replica" not in (await get("/readyz"))[1]
            await pair.run("pg_ctl", "-D", str(pair.primary), "-m", "immediate", "stop")
            assert {path: (await get(path))[0] for path in PAGES} == dict.fromkeys(PAGES, 200)
            assert "Answer 5." in (await get("/api/v1/answers"))[1]
        finally:
            serving.cancel()
            await asyncio.wait([serving])
