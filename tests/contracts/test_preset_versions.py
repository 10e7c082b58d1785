"""What the list of preset versions promises, on SQLite and on PostgreSQL."""

import asyncio

from sqlalchemy import select

from bot.chat.session import PresetVersion
from bot.storage.sql.tables import preset_version
from tests.contracts.conftest import Store


def nora(content: str, version: int = 1) -> PresetVersion:
    return PresetVersion("nora", content, version)


async def numbers(store: Store, *editions: PresetVersion) -> list[int]:
    return [(await store.versions.save([one]))[one.name] for one in editions]


async def test_an_edit_makes_a_new_version_and_a_restart_does_not(store: Store) -> None:
    seen = await numbers(store, nora("one"), nora("one"), nora("two"), nora("two"), nora("three"))

    assert seen == [1, 1, 2, 2, 3]


async def test_going_back_to_an_old_text_is_an_edit_too(store: Store) -> None:
    assert await numbers(store, nora("one"), nora("two"), nora("one")) == [1, 2, 3]


async def test_the_author_may_number_ahead_but_never_back(store: Store) -> None:
    assert await numbers(store, nora("one", 5), nora("two", 2), nora("three", 9)) == [5, 6, 9]


async def test_each_preset_counts_for_itself_and_nothing_is_lost(store: Store) -> None:
    await store.versions.save([nora("one"), PresetVersion("兰亭", "茶", 1)])
    await store.versions.save([nora("two"), PresetVersion("兰亭", "茶", 1)])

    rows = await store.database.read(
        lambda c: c.execute(
            select(
                preset_version.c.name, preset_version.c.version, preset_version.c.content
            ).order_by(preset_version.c.name, preset_version.c.version)
        ).all()
    )
    assert sorted(tuple(row) for row in rows) == [
        ("nora", 1, "one"),
        ("nora", 2, "two"),
        ("兰亭", 1, "茶"),
    ]
    assert await store.versions.newest("nora") == PresetVersion("nora", "two", 2)
    assert await store.versions.newest("nobody") is None


async def test_processes_that_start_together_agree(store: Store) -> None:
    async with asyncio.TaskGroup() as group:
        starts = [group.create_task(store.versions.save([nora("one")])) for _ in range(8)]
        others = [group.create_task(store.versions.save([nora("two")])) for _ in range(8)]

    found = {one.result()["nora"] for one in [*starts, *others]}
    rows = await store.database.read(lambda c: c.execute(select(preset_version.c.content)).all())
    assert len(rows) == max(found) <= 16
