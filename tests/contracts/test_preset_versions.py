"""Contract of preset versions, on SQLite and on PostgreSQL."""

import asyncio

from sqlalchemy import select

from bot.chat.session import PresetVersion
from bot.storage.tables import preset_version
from tests.support.store import Store


def nora(content: str, version: int = 1) -> PresetVersion:
    return PresetVersion("nora", content, version)


async def saved_numbers(store: Store, *versions: PresetVersion) -> list[int]:
    return [(await store.preset_versions.save([one]))[one.name] for one in versions]


async def test_edited_preset_gets_a_new_version_and_unchanged_one_does_not(store: Store) -> None:
    seen = await saved_numbers(
        store, nora("one"), nora("one"), nora("two"), nora("two"), nora("three")
    )

    assert seen == [1, 1, 2, 2, 3]


async def test_return_to_an_old_content_gets_a_new_version(store: Store) -> None:
    assert await saved_numbers(store, nora("one"), nora("two"), nora("one")) == [1, 2, 3]


async def test_author_may_raise_the_version_but_not_lower_it(store: Store) -> None:
    assert await saved_numbers(store, nora("one", 5), nora("two", 2), nora("three", 9)) == [5, 6, 9]


async def test_presets_are_numbered_separately_and_all_versions_kept(store: Store) -> None:
    await store.preset_versions.save([nora("one"), PresetVersion("兰亭", "茶", 1)])
    await store.preset_versions.save([nora("two"), PresetVersion("兰亭", "茶", 1)])

    rows = await store.rows(
        select(preset_version.c.name, preset_version.c.version, preset_version.c.content).order_by(
            preset_version.c.name, preset_version.c.version
        )
    )
    assert sorted(tuple(row) for row in rows) == [
        ("nora", 1, "one"),
        ("nora", 2, "two"),
        ("兰亭", 1, "茶"),
    ]
    assert await store.preset_versions.newest("nora") == PresetVersion("nora", "two", 2)
    assert await store.preset_versions.newest("nobody") is None


async def test_concurrent_writers_agree(store: Store) -> None:
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


async def test_history_is_newest_first_and_limited(store: Store) -> None:
    await saved_numbers(store, nora("one"), nora("two"), nora("three"))

    history = await store.preset_versions.history("nora", 2)
    assert [number for number, _ in history] == [3, 2]
    assert all(at > 0 for _, at in history)
    assert await store.preset_versions.history("nils", 2) == []
