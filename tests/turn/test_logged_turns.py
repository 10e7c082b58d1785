"""Everything that is logged while a message is processed names its turn."""

import structlog
from structlog.contextvars import merge_contextvars
from structlog.typing import Processor

from bot.errors import BackendUnavailable
from bot.storage.database import Database
from bot.telemetry.logs import RecentEvents
from tests.turn.setup import Setup


async def test_log_of_a_failed_message_is_found_by_its_id(database: Database) -> None:
    events = RecentEvents()
    setup = Setup(database, [BackendUnavailable("503")])
    before = structlog.get_config()["processors"]
    processors: list[Processor] = [merge_contextvars, structlog.stdlib.add_log_level, events]
    structlog.configure(processors=[*processors, *before])
    try:
        await setup.say("hello")
    finally:
        structlog.configure(processors=before)

    [failed] = events.failures(9)
    assert failed.turn == "telegram:5:1"
    assert f"(error {failed.error_id})" in setup.texts[0]
    assert [step.event for step in failed.steps] == [
        *("prompt_composed", "prefill", "speaker_failed", "not_answered")
    ]
