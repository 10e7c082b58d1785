"""Contract of the versions and drafts of presets, on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy import select

from bot.chat.drafts import ImportedFile, PresetDraft
from bot.chat.session import PresetVersion
from bot.storage.presets import PresetDrafts
from bot.storage.tables import preset_version
from tests.support.store import Store, present


def nora(content: str, version: int = 1) -> PresetVersion:
    return PresetVersion("nora", content, version)


async def saved_numbers(store: Store, *versions: PresetVersion) -> list[int]:
    return [(await store.preset_versions.save([one]))[one.name] for one in versions]


@pytest.mark.parametrize(
    ("saved", "numbers"),
    [
        (["one", "one", "two", "two", "three"], [1, 1, 2, 2, 3]),
        (["one", "two", "one"], [1, 2, 3]),
        ([("one", 5), ("two", 2), ("three", 9)], [5, 6, 9]),
    ],
    ids=["an edit is a new version", "so is an old content", "an author may only raise it"],
)
async def test_preset_versions_are_numbered(
    store: Store, saved: Sequence[str | tuple[str, int]], numbers: Sequence[int]
) -> None:
    versions = [nora(one) if isinstance(one, str) else nora(*one) for one in saved]
    assert await saved_numbers(store, *versions) == numbers


async def test_each_preset_has_its_own_version_numbers_and_keeps_all_versions(store: Store) -> None:
    await store.preset_versions.save([nora("one"), PresetVersion("兰亭", "茶", 1)])
    await store.preset_versions.save([nora("two"), PresetVersion("兰亭", "茶", 1)])

    columns = (preset_version.c.name, preset_version.c.version, preset_version.c.content)
    assert sorted(map(tuple, await store.rows(select(*columns)))) == [
        ("nora", 1, "one"),
        ("nora", 2, "two"),
        ("兰亭", 1, "茶"),
    ]
    assert await store.preset_versions.newest("nora") == PresetVersion("nora", "two", 2)
    assert await store.preset_versions.newest("nobody") is None


async def test_pictures_of_characters_are_listed(store: Store) -> None:
    settings = store.chat_settings
    for owner, value in (("discord:1", "ab about\thttps://a/1.png"), ("discord:2", "cd about\t")):
        await settings.set(owner, "character Mira", value, "discord:1")
    await settings.set("discord:1", "preset", "ab about\thttps://a/2.png", "discord:1")
    assert "https://a/1.png" in (found := await store.preset_versions.picture_urls())
    assert "https://a/2.png" not in found


async def test_concurrent_writers_agree_on_the_version_numbers(store: Store) -> None:
    async with asyncio.TaskGroup() as group:
        starts = [group.create_task(store.preset_versions.save([nora("one")])) for _ in range(8)]
        others = [group.create_task(store.preset_versions.save([nora("two")])) for _ in range(8)]

    found = {one.result()["nora"] for one in [*starts, *others]}
    rows = await store.rows(select(preset_version.c.content))
    assert len(rows) == max(found) <= 16


async def test_each_version_is_found_by_its_number(store: Store) -> None:
    await saved_numbers(store, nora("one"), nora("two"))

    assert await store.preset_versions.find("nora", 1) == nora("one", 1)
    assert await store.preset_versions.find("nora", 2) == nora("two", 2)
    assert await store.preset_versions.find("nora", 3) is None
    assert await store.preset_versions.find("nils", 1) is None


async def test_version_history_is_newest_first_and_limited(store: Store) -> None:
    await saved_numbers(store, nora("one"), nora("two"), nora("three"))

    history = await store.preset_versions.history("nora", 2)
    assert [number for number, _ in history] == [3, 2]
    assert all(at > 0 for _, at in history)
    assert await store.preset_versions.history("nils", 2) == []


DRAFT = PresetDraft("nora", 3, 1, '{"name": "nora"', 5.0, ImportedFile("nora.png", b"\x89PNG\0"))


async def test_draft_is_loaded_as_it_was_saved(store: Store) -> None:
    drafts = PresetDrafts(store.database)
    assert await drafts.save(DRAFT)
    assert await drafts.find("nora") == DRAFT
    assert await drafts.find("nils") is None
    assert await drafts.all() == [replace(DRAFT, source=None)]


async def test_draft_is_saved_only_with_the_next_revision_number(store: Store) -> None:
    drafts = PresetDrafts(store.database)
    assert not await drafts.save(replace(DRAFT, revision=2))
    assert await drafts.save(DRAFT)
    assert not await drafts.save(replace(DRAFT, content="other"))
    assert await drafts.save(replace(DRAFT, revision=2, content="second"))
    assert not await drafts.save(replace(DRAFT, revision=2, content="late"))
    found = present(await drafts.find("nora"))
    assert (found.revision, found.content) == (2, "second")


async def test_only_one_of_several_concurrent_draft_writers_wins(store: Store) -> None:
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


async def test_characters_that_databases_reject_are_replaced(store: Store) -> None:
    drafts = PresetDrafts(store.database)
    await drafts.save(replace(DRAFT, content="a\0b\ud800"))
    found = present(await drafts.find("nora"))
    assert found.content == "a\ufffdb\ufffd"


async def test_newest_five_versions_of_a_character_are_kept(store: Store) -> None:
    for number in range(1, 8):
        mine = PresetVersion("telegram:1/Nora", f"text {number}", 1, owner="telegram:1")
        await store.preset_versions.save([mine, nora(f"text {number}")])
    columns = (preset_version.c.name, preset_version.c.version)
    kept = sorted(map(tuple, await store.rows(select(*columns))))
    assert [version for name, version in kept if name == "nora"] == [1, 2, 3, 4, 5, 6, 7]
    assert [version for name, version in kept if name != "nora"] == [3, 4, 5, 6, 7]
