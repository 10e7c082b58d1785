"""The gauges of the queues say how long the oldest waits, for the roles of the process."""

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import insert

from bot.chat.incoming import HISTORY_MARK, address_of
from bot.service.queue_metrics import QueueMetrics
from bot.service.roles import ALL_ROLES, Role
from bot.storage.operation.pauses import SqlPauses
from bot.storage.queue_ages import QueueAges, SqlQueueAges
from bot.storage.sql.database import Database
from bot.storage.sql.tables import conversation, lane, pause
from bot.telemetry.metrics import QUEUE_AGE
from tests.fakes import FakeClock


def age(queue: str) -> float | None:
    return REGISTRY.get_sample_value("troupe_queue_age_seconds", {"queue": queue})


async def store_waiting(database: Database, conversations: float, lanes: float) -> None:
    rows = (
        insert(conversation).values(
            key="telegram:1", platform="telegram", ready_since=conversations
        ),
        insert(conversation).values(key="telegram:2", platform="telegram"),
        insert(lane).values(key="telegram:1", platform="telegram", due_at=lanes),
    )
    await database.write(lambda connection: [connection.execute(row) for row in rows])


async def test_ages_of_the_oldest_are_measured_for_the_roles(database: Database) -> None:
    clock = FakeClock()
    ages = SqlQueueAges(database, clock)
    assert await ages.read() == QueueAges(0.0, 0.0)
    await store_waiting(database, clock.now() - 30, clock.now() - 4)
    QUEUE_AGE.clear()

    await QueueMetrics(ages, {Role.WORKER}, clock).measure()
    assert (age("conversations"), age("lanes")) == (30, None)
    await QueueMetrics(ages, ALL_ROLES, clock).measure()
    assert (age("conversations"), age("lanes")) == (30, 4)


async def test_lane_that_is_due_later_is_not_late(database: Database) -> None:
    clock = FakeClock()
    await store_waiting(database, clock.now(), clock.now() + 60)
    assert await SqlQueueAges(database, clock).read() == QueueAges(0.0, 0.0)


@pytest.mark.parametrize(
    "scope",
    [
        "all",
        "telegram",
        "telegram@77",
        "telegram:5",
        "telegram:5:7",
        "telegram:%",
        "discord",
        "web",
    ],
)
async def test_conversation_that_a_pause_holds_back_does_not_count(
    database: Database, scope: str
) -> None:
    clock = FakeClock()
    keys = [
        *("telegram:5", "telegram:5:7", f"telegram:5{HISTORY_MARK}u1", "telegram:51"),
        *("telegram@77:5", "telegram@7:5", "discord:5"),
    ]
    ready = {key: clock.now() - 100 + number for number, key in enumerate(keys)}
    rows = [
        insert(conversation).values(key=key, platform=address_of(key).platform, ready_since=at)
        for key, at in ready.items()
    ]
    await database.write(lambda connection: [connection.execute(row) for row in rows])
    assert await SqlPauses(database, clock).begin(scope, "operator")

    [current] = await SqlPauses(database, clock).recent()
    counted = [at for key, at in ready.items() if not current.covers(key)]
    ages = await SqlQueueAges(database, clock).read()
    assert ages.conversations == (clock.now() - min(counted) if counted else 0)
    await SqlPauses(database, clock).end(scope)
    assert (await SqlQueueAges(database, clock).read()).conversations == 100


async def test_pauses_of_many_channels_are_measured(database: Database) -> None:
    clock = FakeClock()
    await store_waiting(database, clock.now() - 30, clock.now())
    rows = [{"scope": f"telegram:{n}", "by": "operator", "at": 0.0} for n in range(2, 1002)]
    await database.write(lambda connection: connection.execute(insert(pause), rows))
    assert (await SqlQueueAges(database, clock).read()).conversations == 30
    assert await SqlPauses(database, clock).begin("telegram:1", "operator")
    assert (await SqlQueueAges(database, clock).read()).conversations == 0
