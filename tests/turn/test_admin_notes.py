"""An answer by another model is told where a server's admins want it."""

import pytest

from bot.commands.notes.admin_notes import AdminNotes
from bot.errors import BackendUnavailable
from bot.storage.sql.chat_settings import SqlChatSettings
from bot.storage.sql.database import Database
from tests.fakes import FakeBackend, FakeClock, FakeSurface
from tests.turn.test_worker import Setup


@pytest.mark.parametrize(("value", "sent"), [("off", 0), ("telegram:9", 1), (None, 0)])
async def test_note_about_a_fallback_stands_where_it_is_wanted(
    database: Database, value: str | None, sent: int
) -> None:
    clock, surface = FakeClock(), FakeSurface()
    settings = SqlChatSettings(database, clock)
    await settings.set("telegram:5", "admin_notes", value, "telegram:1")
    setup = Setup(
        database,
        backend=FakeBackend([BackendUnavailable("away", notice="The key is wrong.")]),
        fallback=FakeBackend(["Hi."]),
        preset={"fallbacks": [{"provider": "q", "model": "small"}]},
        clock=clock,
        pipeline_parts={"admin_notes": AdminNotes(settings, {"telegram": surface})},
    )
    await setup.say("hello")
    assert setup.texts[0] == "Hi."
    assert len(setup.texts) == (2 if value is None else 1)
    assert ["The key is wrong." in text for text in surface.messages.values()] == [True] * sent
