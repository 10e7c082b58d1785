"""The gauges of the queues say how long the oldest waits, for the roles of the process."""

from prometheus_client import REGISTRY
from sqlalchemy import insert

from bot.service.jobs import measure_queues
from bot.service.options import ALL_ROLES, Role
from bot.storage.database import Database
from bot.storage.reports import ServiceState
from bot.storage.tables import conversation, lane
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
    state = ServiceState(database, clock)
    assert await state.queue_ages() == (0.0, 0.0)
    await store_waiting(database, clock.now() - 30, clock.now() - 4)
    QUEUE_AGE.clear()

    await measure_queues(state, {Role.WORKER})
    assert (age("conversations"), age("lanes")) == (30, None)
    await measure_queues(state, ALL_ROLES)
    assert (age("conversations"), age("lanes")) == (30, 4)


async def test_lane_that_is_due_later_is_not_late(database: Database) -> None:
    clock = FakeClock()
    await store_waiting(database, clock.now(), clock.now() + 60)
    assert await ServiceState(database, clock).queue_ages() == (0.0, 0.0)
