"""Contract of drafts of presets, on SQLite and on PostgreSQL."""

import asyncio
from dataclasses import replace

from bot.chat.drafts import ImportedFile, PresetDraft
from bot.storage.presets import PresetDrafts
from tests.support.store import Store, present

DRAFT = PresetDraft("nora", 3, 1, '{"name": "nora"', 5.0, ImportedFile("nora.png", b"\x89PNG\0"))


async def test_draft_is_found_as_it_was_saved(store: Store) -> None:
    drafts = PresetDrafts(store.database)
    assert await drafts.save(DRAFT)
    assert await drafts.find("nora") == DRAFT
    assert await drafts.find("nils") is None
    assert await drafts.all() == [replace(DRAFT, source=None)]


async def test_each_revision_follows_the_one_before(store: Store) -> None:
    drafts = PresetDrafts(store.database)
    assert not await drafts.save(replace(DRAFT, revision=2))
    assert await drafts.save(DRAFT)
    assert not await drafts.save(replace(DRAFT, content="other"))
    assert await drafts.save(replace(DRAFT, revision=2, content="second"))
    assert not await drafts.save(replace(DRAFT, revision=2, content="late"))
    found = present(await drafts.find("nora"))
    assert (found.revision, found.content) == (2, "second")


async def test_of_concurrent_writers_one_wins(store: Store) -> None:
    drafts = PresetDrafts(store.database)
    await drafts.save(DRAFT)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(drafts.save(replace(DRAFT, revision=2, content=str(one))))
            for one in range(8)
        ]
    assert [task.result() for task in tasks].count(True) == 1


async def test_deleted_draft_is_gone(store: Store) -> None:
    drafts = PresetDrafts(store.database)
    await drafts.save(DRAFT)
    assert await drafts.delete("nora")
    assert not await drafts.delete("nora")
    assert await drafts.find("nora") is None


async def test_what_databases_refuse_is_replaced(store: Store) -> None:
    drafts = PresetDrafts(store.database)
    await drafts.save(replace(DRAFT, content="a\0b\ud800"))
    found = present(await drafts.find("nora"))
    assert found.content == "a\ufffdb\ufffd"
