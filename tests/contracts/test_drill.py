"""Contract of the deletion drill: it forgets a fictitious person, and notices what is left."""

from pathlib import Path

import pytest

from bot.errors import StoreError
from bot.service import drill
from bot.service.drill import DATA_LOCATIONS, ROW_TAG, run_drill
from bot.settings import Settings
from bot.storage.data_kinds import DATA_KINDS, KEPT_ID_REASONS, PERSON_DELETION_SQL_NAMES
from bot.storage.redis_session_windows import RedisSessionWindows
from bot.storage.statements import SQL, Statement
from bot.storage.tables import metadata
from tests.contracts.conftest import ENCRYPTION_KEY
from tests.postgres import create_postgres_database
from tests.sqlite import create_sqlite_database
from tests.support.store import open_store
from tests.valkey import run_valkey

pytestmark = pytest.mark.usefixtures("all_objects")

STATEMENTS = {
    "turn.text": ["delete_listed"],
    "summary.text": ["delete_summaries_from"],
    "receipt.content": ["empty_receipts_since"],
    "feedback.person": ["forget_feedback_of_person", "drop_feedback_since"],
    "message_note.content": ["drop_notes_of_person", "forget_notes_of_person"],
    "preset_version.content": ["forget_characters"],
    "memory.text": [
        *("mark_memories_of_person", "note_memories_gone", "empty_receipts_of_memories"),
        *("delete_uses_of_gone", "delete_gone_memories"),
    ],
    "inbox.payload": ["drop_messages_set_aside"],
    "outbox.text": ["empty_unsent"],
    "choice.value": ["reset_choice"],
}
"""The statements that clear each place, by its name."""


@pytest.fixture
async def settings(tmp_path: Path) -> Settings:
    await create_sqlite_database(tmp_path / "troupe.db")
    return Settings(data_dir=tmp_path)


def leave_out(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the statements that clear a place, so that the deletion misses it."""
    monkeypatch.setattr(drill, "_FORGET_TIMEOUT_SECONDS", 0)
    for name in STATEMENTS[place]:
        monkeypatch.setitem(SQL, name, Statement("SELECT 1 WHERE 1 = 0"))


async def rows_of_drills(settings: Settings) -> list[str]:
    async with open_store(settings.sqlalchemy_url, settings.text_encryption) as store:
        return [
            table.name
            for table in metadata.sorted_tables
            for row in await store.rows(table.select())
            if ROW_TAG in str(row)
        ]


def test_every_table_has_a_data_kind_and_the_drill_covers_every_deletion() -> None:
    assert {name for kind in DATA_KINDS for name in kind.tables} == set(metadata.tables)
    drilled = {name for names in STATEMENTS.values() for name in names}
    assert set(PERSON_DELETION_SQL_NAMES) <= drilled
    assert {*STATEMENTS, "file slots", "memory", "receipt.preset"} == set(DATA_LOCATIONS)


async def test_person_is_forgotten_on_sqlite(settings: Settings) -> None:
    result = await run_drill(settings)
    assert result.mentions_after == {}
    assert set(result.retained_id_counts) == {"receipt.person", "audit.who", "choice.chosen_by"}
    assert await rows_of_drills(settings) == []


@pytest.mark.service
async def test_person_is_forgotten_on_postgresql_with_redis(
    postgres_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_valkey(tmp_path) as redis_url:
        settings = Settings(
            data_dir=tmp_path,
            database_url=await create_postgres_database(postgres_folder),
            redis_url=redis_url,
            encryption_keys=[ENCRYPTION_KEY],
            encrypt_texts=True,
        )
        result = await run_drill(settings)
        assert result.mentions_before["redis window"]
        assert result.mentions_after == {}
        assert set(result.retained_id_counts) <= set(KEPT_ID_REASONS)
        leave_out("turn.text", monkeypatch)
        assert "turn.text" in (await run_drill(settings)).mentions_after
        monkeypatch.undo()
        monkeypatch.setattr(drill, "_FORGET_TIMEOUT_SECONDS", 0)
        monkeypatch.setattr(RedisSessionWindows, "drop", forget_nothing)
        assert "redis window" in (await run_drill(settings)).mentions_after
        assert await rows_of_drills(settings) == []


async def forget_nothing(*_: object) -> None:
    return


async def test_drill_notices_all_tables_that_are_not_cleared(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in STATEMENTS:
        leave_out(place, monkeypatch)
    assert set(STATEMENTS) <= set((await run_drill(settings)).mentions_after)
    assert await rows_of_drills(settings) == []


@pytest.mark.soak  # ten drills; the test above misses all tables in one
@pytest.mark.parametrize("place", STATEMENTS)
async def test_drill_notices_a_table_that_is_not_cleared(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    leave_out(place, monkeypatch)
    assert place in (await run_drill(settings)).mentions_after
    assert await rows_of_drills(settings) == []


@pytest.mark.parametrize(
    ("place", "target"),
    [
        ("file slots", "bot.backends.llama_cpp.backend.delete_saved_slots"),
        ("memory of", "bot.routing.presets.Characters.unload"),
        ("memory of", "bot.commands.privacy.clear_text_caches"),
    ],
)
async def test_drill_notices_a_file_or_cache_that_is_not_cleared(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, place: str, target: str
) -> None:
    forget = drill._Drill._request_deletion

    async def forget_less(self: drill._Drill) -> None:
        monkeypatch.setattr(target, lambda *_: None)
        await forget(self)

    monkeypatch.setattr(drill, "_FORGET_TIMEOUT_SECONDS", 0)
    monkeypatch.setattr(drill._Drill, "_request_deletion", forget_less)
    left = (await run_drill(settings)).mentions_after
    assert left
    assert all(one.startswith(place) for one in left)


async def test_failed_drill_leaves_no_data(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill, "DATA_LOCATIONS", ("story.text",))
    with pytest.raises(StoreError, match=r"no data was stored in story\.text"):
        await run_drill(settings)
    assert await rows_of_drills(settings) == []
