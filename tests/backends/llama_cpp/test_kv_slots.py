"""Who sits where: every turn pays for its own tokens, whoever spoke in between."""

import asyncio
import os
import random
import threading
from array import array
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from bot.backends.llama_cpp.engines.engine import Question
from bot.backends.llama_cpp.kv_slots import Places, common_beginning
from bot.backends.llama_cpp.slot_files import Saved, SavedPlaces, Whose, fingerprint, forget_saved
from bot.runtime.clock import SystemClock
from tests.backends.fake_engine import FakeEngine

SYSTEM = list(range(1000, 1500))
DAY = 86_400.0


class Room:
    """An engine with its places; `ask` gives how many ids came from memory."""

    def __init__(self, folder: Path, places: int = 2, limit_bytes: int = 10**9) -> None:
        self.folder = folder
        self.engine = FakeEngine(places, folder)
        self.places = self.opened(limit_bytes)

    def opened(self, limit_bytes: int = 10**9, model: str = "model") -> Places:
        saved = SavedPlaces(
            self.folder, model, SystemClock(), limit_bytes=limit_bytes, limit_seconds=DAY
        )
        saved.open()
        return Places(self.engine, saved)

    def restart(self, model: str = "model") -> None:
        """Both of us, after a graceful stop or not."""
        self.engine = FakeEngine(self.engine.places, self.folder)
        self.places = self.opened(model=model)

    async def ask(self, conversation: str, ids: list[int], character: str = "") -> int:
        async with self.places.seat(Whose(conversation, character), ids) as seat:
            question = Question(ids, place=seat.place, own=seat.own)
            cached = self.engine.cached(question)
            async for _ in self.engine.generate(question):
                pass
        return cached

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


class SlowDisk(SavedPlaces):
    """Keeps what was saved when `go` says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "model", SystemClock(), limit_bytes=10**9, limit_seconds=DAY)
        self.began, self.go = threading.Event(), threading.Event()

    @override
    def keep(self, whose: Whose, ids: Sequence[int]) -> Saved:
        self.began.set()
        self.go.wait(10)
        return super().keep(whose, ids)


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path / "slots")


def said(conversation: int, length: int = 600) -> list[int]:
    """A prompt that shares nothing with the prompts of other conversations."""
    return [conversation * 10_000 + index for index in range(length)]


async def test_conversation_comes_back_to_its_place(room: Room) -> None:
    await room.ask("a", said(1))
    await room.ask("b", said(2))

    assert await room.ask("a", said(1, 700)) == 600
    assert room.engine.saves == 0


async def test_more_conversations_than_places_lose_nothing(room: Room) -> None:
    lengths = dict.fromkeys(range(8), 100)
    for number in lengths:
        await room.ask(str(number), said(number, 100))
    dice = random.Random(1)

    for _ in range(80):
        number = dice.choice(list(lengths))
        lengths[number] += 30
        assert await room.ask(str(number), said(number, lengths[number])) == lengths[number] - 30


async def test_empty_place_goes_first_and_then_the_least_recently_used(room: Room) -> None:
    for name, number in (("a", 1), ("b", 2), ("a", 1), ("c", 3)):
        await room.ask(name, said(number))

    assert [held[0] // 10_000 for held in room.engine.held] == [1, 3]


async def test_new_conversation_begins_with_what_others_have_read(room: Room) -> None:
    await room.ask("a", [*SYSTEM, *said(1, 200)])

    assert await room.ask("b", [*SYSTEM, *said(2, 50)]) == len(SYSTEM)
    assert await room.ask("a", [*SYSTEM, *said(1, 300)]) == len(SYSTEM) + 200


async def test_beginning_is_copied_from_a_file_too(room: Room) -> None:
    await room.ask("a", [*SYSTEM, *said(1, 200)])
    await room.ask("b", said(2))
    await room.ask("c", said(3))

    assert await room.ask("d", [*SYSTEM, *said(4)]) == len(SYSTEM)


async def test_characters_of_one_channel_each_keep_their_place(room: Room) -> None:
    await room.ask("a", [*SYSTEM, *said(1)], "Nora")
    await room.ask("a", [*SYSTEM, *said(2)], "Finn")

    assert await room.ask("a", [*SYSTEM, *said(1, 700)], "Nora") == 1100
    assert await room.ask("a", [*SYSTEM, *said(2, 700)], "Finn") == 1100


async def test_only_its_own_place_may_be_moved_up(room: Room) -> None:
    seats = []
    for name, ids in (("a", [*SYSTEM, *said(1)]), ("b", [*SYSTEM, *said(2)]), ("a", SYSTEM)):
        async with room.places.seat(Whose(name, ""), ids) as seat:
            seats.append(seat.own)

    assert seats == [False, False, True]


async def test_busy_place_is_taken_by_nobody(room: Room) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(room.places.seat(Whose("a", ""), said(1)))
        again = await stack.enter_async_context(room.places.seat(Whose("a", ""), said(1)))

    assert first.place != again.place
    assert not again.own


async def test_what_was_saved_survives_the_death_of_the_engine(room: Room) -> None:
    for number in (1, 2, 3):
        await room.ask(str(number), said(number))
    room.engine.die()

    assert await room.ask("1", said(1, 700)) == 600
    assert await room.ask("3", said(3, 700)) == 0


async def test_after_a_graceful_stop_everybody_comes_back(room: Room) -> None:
    for number in (1, 2, 3):
        await room.ask(str(number), said(number))
    await room.places.save_all()
    room.restart()

    assert [await room.ask(str(n), said(n, 700)) for n in (3, 1, 2)] == [600] * 3
    assert await room.ask("new", said(2)) > 0


async def test_another_model_reads_no_old_state(room: Room) -> None:
    await room.ask("a", said(1))
    await room.places.save_all()
    room.restart(model="other")

    assert await room.ask("a", said(1, 700)) == 0


async def test_forgetting_leaves_nothing_in_memory_or_on_disk(room: Room) -> None:
    await room.ask("a", said(1), "Nora")
    await room.ask("a", said(2), "Finn")
    await room.places.save_all()

    await room.places.forget("a")

    assert room.engine.held == [[], []]
    assert room.files() == []


async def test_forgetting_while_the_place_is_busy_erases_it_before_the_next(room: Room) -> None:
    async with room.places.seat(Whose("a", ""), said(1)) as seat:
        await room.places.forget("a")
        assert room.engine.erased == []
    await room.ask("b", said(2))

    assert room.engine.erased == [seat.place]


async def test_forgetting_waits_for_a_file_whose_asker_has_gone(tmp_path: Path) -> None:
    room = Room(tmp_path, places=1)
    disk = SlowDisk(tmp_path)
    room.places = Places(room.engine, disk)
    await room.ask("a", said(1))
    asking = asyncio.create_task(room.ask("b", said(2)))
    await asyncio.to_thread(disk.began.wait, 10)

    asking.cancel()
    forgetting = asyncio.create_task(room.places.forget("a"))
    await asyncio.wait([asking, forgetting], timeout=0.05)
    disk.go.set()
    await asyncio.wait([asking, forgetting])

    assert asking.cancelled()
    assert room.files() == []


async def test_forgetting_reaches_what_models_left_that_are_not_loaded(room: Room) -> None:
    await room.ask("a", said(1))
    await room.ask("b", said(2))
    await room.places.save_all()

    forget_saved(room.folder, "a")

    assert len([name for name in room.files() if name.endswith(".state")]) == 1


async def test_new_session_leaves_its_place_and_keeps_the_beginning(room: Room) -> None:
    await room.ask("a", [*SYSTEM, *said(1)])
    await room.ask("b", said(2))
    await room.places.leave("a")

    assert await room.ask("c", said(3)) == 0
    assert await room.ask("b", said(2, 700)) == 600
    assert room.engine.saves == 0


async def test_files_are_ours_alone_and_named_after_nothing_that_people_wrote(room: Room) -> None:
    await room.ask("../../etc/passwd", said(1), "../Nora")
    await room.places.save_all()

    assert room.folder.stat().st_mode & 0o777 == 0o700
    for path in room.folder.iterdir():
        assert path.stat().st_mode & 0o077 == 0
        assert path.name.replace("-", "").replace(".", "").isalnum()
    assert list(room.folder.parent.iterdir()) == [room.folder]


async def test_oldest_files_go_when_there_are_too_many(tmp_path: Path) -> None:
    room = Room(tmp_path / "slots", limit_bytes=20_000)  # six or so of those below
    for number in range(1, 20):
        await room.ask(str(number), said(number, 500))

    assert sum(path.stat().st_size for path in room.folder.glob("*.state")) <= 20_000
    assert await room.ask("17", said(17, 600)) == 500
    assert await room.ask("1", said(1, 600)) == 0


async def test_old_files_and_unfinished_ones_go_at_the_start(room: Room) -> None:
    await room.ask("a", said(1))
    await room.places.save_all()
    (room.folder / "model-x-y.part").touch()
    for path in room.folder.glob("*.state"):
        os.utime(path, (1.0, 1.0))

    room.restart()

    assert room.files() == []


async def test_disk_that_takes_nothing_costs_a_reading_and_no_answer(room: Room) -> None:
    room.engine.broken_saves = True
    for number in (1, 2, 3, 1):
        await room.ask(str(number), said(number))

    assert room.engine.held[0] == said(3) or room.engine.held[1] == said(3)


async def test_damaged_file_is_deleted_and_read_anew(room: Room) -> None:
    for number in (1, 2, 3):
        await room.ask(str(number), said(number))
    (state,) = room.folder.glob("*.state")
    state.write_text("no state", encoding="ascii")

    assert await room.ask("1", said(1, 700)) == 0
    assert not [path for path in room.folder.glob("*.state") if path.read_text() == "no state"]


async def test_death_while_a_file_is_read_does_not_cost_the_file(room: Room) -> None:
    for number in (1, 2, 3):
        await room.ask(str(number), said(number))
    room.engine.dead = True
    await room.ask("1", said(1, 700))
    room.engine.dead = False
    room.engine.die()

    assert await room.ask("1", said(1, 700)) == 600


async def test_stopped_reading_is_saved_as_far_as_it_came(room: Room) -> None:
    await room.ask("a", said(1))
    room.engine.held[0] = said(1, 200)
    await room.places.save_all()
    room.restart()

    assert await room.ask("b", said(1, 700)) == 200


async def test_asking_at_once_gives_everybody_a_place_of_their_own(tmp_path: Path) -> None:
    room = Room(tmp_path / "slots", places=4)

    async with asyncio.TaskGroup() as tasks:
        for number in range(4):
            tasks.create_task(room.ask(str(number), said(number)))

    assert sorted(held[0] // 10_000 for held in room.engine.held) == [0, 1, 2, 3]


def test_changed_model_or_engine_has_another_fingerprint(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF" + bytes(10_000_000))
    first = fingerprint(model, "engine 1")
    other_engine = fingerprint(model, "engine 2")
    model.write_bytes(b"GGUF" + bytes(9_999_999) + b"x")

    assert len({first, other_engine, fingerprint(model, "engine 1")}) == 3


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_beginning_is_as_long_as_it_can_be(one: list[int], other: list[int]) -> None:
    length = common_beginning(array("i", one), array("i", other))

    assert one[:length] == other[:length]
    assert one[length : length + 1] != other[length : length + 1] or length == min(
        len(one), len(other)
    )
