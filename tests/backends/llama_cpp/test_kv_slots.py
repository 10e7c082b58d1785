"""Slots are assigned so that each turn decodes only its new tokens."""

import os
import random
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.backends.llama_cpp.engine import GenerationRequest
from bot.backends.llama_cpp.slots import (
    SlotOwner,
    SlotPool,
    SlotStore,
    common_prefix_length,
    delete_saved_slots,
)
from bot.runtime.clock import SystemClock
from tests.backends.fake_engine import FakeEngine

SYSTEM = list(range(1000, 1500))
DAY = 86_400.0


class PoolHarness:
    """An engine with its slot pool; `ask` returns the number of cached token ids."""

    def __init__(self, folder: Path, slots: int = 2, limit_bytes: int = 10**9) -> None:
        self.folder = folder
        self.engine = FakeEngine(slots, folder)
        self.pool = self.open_pool(limit_bytes)

    def open_pool(self, limit_bytes: int = 10**9, model: str = "model") -> SlotPool:
        saved = SlotStore(
            self.folder, model, SystemClock(), max_bytes=limit_bytes, max_age_seconds=DAY
        )
        saved.load_saved_slots()
        return SlotPool(self.engine, saved)

    def restart(self, model: str = "model") -> None:
        """Restart the engine and the pool."""
        self.engine = FakeEngine(self.engine.slot_count, self.folder)
        self.pool = self.open_pool(model=model)

    async def ask(self, conversation: str, ids: list[int], character: str = "") -> int:
        async with self.pool.lease(SlotOwner(conversation, character), ids) as (slot, is_own):
            request = GenerationRequest(ids, slot_number=slot, can_shift_cache=is_own)
            cached = self.engine.count_cached(request)
            async for _ in self.engine.generate(request):
                pass
        return cached

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def harness(tmp_path: Path) -> PoolHarness:
    return PoolHarness(tmp_path / "slots")


def token_ids(conversation: int, length: int = 600) -> list[int]:
    """Return a prompt that has nothing in common with those of other conversations."""
    return [conversation * 10_000 + index for index in range(length)]


async def test_conversation_returns_to_its_slot(harness: PoolHarness) -> None:
    await harness.ask("a", token_ids(1))
    await harness.ask("b", token_ids(2))

    assert await harness.ask("a", token_ids(1, 700)) == 600
    assert harness.engine.saves == 0


async def test_conversations_keep_their_cache_even_if_they_outnumber_the_slots(
    harness: PoolHarness,
) -> None:
    lengths = dict.fromkeys(range(8), 100)
    for number in lengths:
        await harness.ask(str(number), token_ids(number, 100))
    dice = random.Random(1)

    for _ in range(80):
        number = dice.choice(list(lengths))
        lengths[number] += 30
        assert (
            await harness.ask(str(number), token_ids(number, lengths[number]))
            == lengths[number] - 30
        )


async def test_empty_slot_is_taken_before_the_least_recently_used(harness: PoolHarness) -> None:
    for name, number in (("a", 1), ("b", 2), ("a", 1), ("c", 3)):
        await harness.ask(name, token_ids(number))

    assert [held[0] // 10_000 for held in harness.engine.held] == [1, 3]


async def test_new_conversation_reuses_the_prefix_of_another_slot(harness: PoolHarness) -> None:
    await harness.ask("a", [*SYSTEM, *token_ids(1, 200)])

    assert await harness.ask("b", [*SYSTEM, *token_ids(2, 50)]) == len(SYSTEM)
    assert await harness.ask("a", [*SYSTEM, *token_ids(1, 300)]) == len(SYSTEM) + 200


async def test_prefix_is_restored_from_a_saved_slot_file(harness: PoolHarness) -> None:
    await harness.ask("a", [*SYSTEM, *token_ids(1, 200)])
    await harness.ask("b", token_ids(2))
    await harness.ask("c", token_ids(3))

    assert await harness.ask("d", [*SYSTEM, *token_ids(4)]) == len(SYSTEM)


async def test_each_character_of_a_channel_has_its_own_slot(harness: PoolHarness) -> None:
    await harness.ask("a", [*SYSTEM, *token_ids(1)], "Nora")
    await harness.ask("a", [*SYSTEM, *token_ids(2)], "Finn")

    assert await harness.ask("a", [*SYSTEM, *token_ids(1, 700)], "Nora") == 1100
    assert await harness.ask("a", [*SYSTEM, *token_ids(2, 700)], "Finn") == 1100


async def test_lease_is_marked_as_own_only_if_the_conversation_already_used_the_slot(
    harness: PoolHarness,
) -> None:
    own = []
    for name, ids in (
        ("a", [*SYSTEM, *token_ids(1)]),
        ("b", [*SYSTEM, *token_ids(2)]),
        ("a", SYSTEM),
    ):
        async with harness.pool.lease(SlotOwner(name, ""), ids) as (_, is_own):
            own.append(is_own)

    assert own == [False, False, True]


async def test_busy_slot_is_not_leased_again(harness: PoolHarness) -> None:
    async with (
        harness.pool.lease(SlotOwner("a", ""), token_ids(1)) as (first, _),
        harness.pool.lease(SlotOwner("a", ""), token_ids(1)) as (again, is_own),
    ):
        assert first != again
        assert not is_own


async def test_saved_slot_survives_an_engine_crash(harness: PoolHarness) -> None:
    for number in (1, 2, 3):
        await harness.ask(str(number), token_ids(number))
    harness.engine.crash()

    assert await harness.ask("1", token_ids(1, 700)) == 600
    assert await harness.ask("3", token_ids(3, 700)) == 0


async def test_all_slots_are_restored_after_a_graceful_stop(harness: PoolHarness) -> None:
    for number in (1, 2, 3):
        await harness.ask(str(number), token_ids(number))
    await harness.pool.save_all()
    harness.restart()

    assert [await harness.ask(str(n), token_ids(n, 700)) for n in (3, 1, 2)] == [600] * 3
    assert await harness.ask("new", token_ids(2)) > 0


async def test_changed_model_does_not_restore_old_slots(harness: PoolHarness) -> None:
    await harness.ask("a", token_ids(1))
    await harness.pool.save_all()
    harness.restart(model="other")

    assert await harness.ask("a", token_ids(1, 700)) == 0


async def test_forget_erases_memory_and_disk(harness: PoolHarness) -> None:
    await harness.ask("a", token_ids(1), "Nora")
    await harness.ask("a", token_ids(2), "Finn")
    await harness.pool.save_all()

    await harness.pool.forget("a")

    assert harness.engine.held == [[], []]
    assert harness.files() == []


async def test_forget_erases_the_slot_of_a_session_that_has_ended(harness: PoolHarness) -> None:
    await harness.ask("a", token_ids(1))
    await harness.ask("b", token_ids(2))
    await harness.pool.end_session("a")

    await harness.pool.forget("a")

    assert harness.engine.held == [[], token_ids(2)]


async def test_forget_erases_the_slot_of_a_concurrent_request(harness: PoolHarness) -> None:
    owner = SlotOwner("a", "")
    async with harness.pool.lease(owner, token_ids(1)):
        await harness.ask("a", token_ids(1, 700))
    await harness.ask("a", token_ids(1))

    await harness.pool.forget("a")

    assert harness.engine.held == [[], []]


async def test_forgotten_slot_in_use_is_erased_when_its_answer_ends(harness: PoolHarness) -> None:
    async with harness.pool.lease(SlotOwner("a", ""), token_ids(1)) as (slot, _):
        await harness.pool.forget("a")
        assert harness.engine.erased == []

    assert harness.engine.erased == [slot]


async def test_saved_slots_of_unloaded_models_are_deleted(harness: PoolHarness) -> None:
    await harness.ask("a", token_ids(1))
    await harness.ask("b", token_ids(2))
    await harness.pool.save_all()

    delete_saved_slots(harness.folder, "a")

    assert len([name for name in harness.files() if name.endswith(".state")]) == 1


async def test_end_session_frees_the_slot_without_saving(harness: PoolHarness) -> None:
    await harness.ask("a", [*SYSTEM, *token_ids(1)])
    await harness.ask("b", token_ids(2))
    await harness.pool.end_session("a")

    assert await harness.ask("c", token_ids(3)) == 0
    assert await harness.ask("b", token_ids(2, 700)) == 600
    assert harness.engine.saves == 0


async def test_files_are_private_and_named_by_hashes(harness: PoolHarness) -> None:
    await harness.ask("../../etc/passwd", token_ids(1), "../Nora")
    await harness.pool.save_all()

    assert harness.folder.stat().st_mode & 0o777 == 0o700
    for path in harness.folder.iterdir():
        assert path.stat().st_mode & 0o077 == 0
        assert path.name.replace("-", "").replace(".", "").isalnum()
    assert list(harness.folder.parent.iterdir()) == [harness.folder]


async def test_oldest_files_are_deleted_when_the_limit_is_exceeded(tmp_path: Path) -> None:
    harness = PoolHarness(tmp_path / "slots", limit_bytes=20_000)  # six or so of those below
    for number in range(1, 20):
        await harness.ask(str(number), token_ids(number, 500))

    assert sum(path.stat().st_size for path in harness.folder.glob("*.state")) <= 20_000
    assert await harness.ask("17", token_ids(17, 600)) == 500
    assert await harness.ask("1", token_ids(1, 600)) == 0


async def test_old_and_unfinished_files_are_deleted_at_start(harness: PoolHarness) -> None:
    await harness.ask("a", token_ids(1))
    await harness.pool.save_all()
    (harness.folder / "model-x-y.part").touch()
    for path in harness.folder.glob("*.state"):
        os.utime(path, (1.0, 1.0))

    harness.restart()

    assert harness.files() == []


async def test_failed_save_does_not_fail_the_request(harness: PoolHarness) -> None:
    harness.engine.broken_saves = True
    for number in (1, 2, 3, 1):
        await harness.ask(str(number), token_ids(number))

    assert harness.engine.held[0] == token_ids(3) or harness.engine.held[1] == token_ids(3)


async def test_damaged_file_is_deleted(harness: PoolHarness) -> None:
    for number in (1, 2, 3):
        await harness.ask(str(number), token_ids(number))
    (state,) = harness.folder.glob("*.state")
    state.write_text("no state", encoding="ascii")

    assert await harness.ask("1", token_ids(1, 700)) == 0
    assert not [path for path in harness.folder.glob("*.state") if path.read_text() == "no state"]


async def test_crash_during_restore_keeps_the_file(harness: PoolHarness) -> None:
    for number in (1, 2, 3):
        await harness.ask(str(number), token_ids(number))
    harness.engine.is_dead = True
    await harness.ask("1", token_ids(1, 700))
    harness.engine.is_dead = False
    harness.engine.crash()

    assert await harness.ask("1", token_ids(1, 700)) == 600


async def test_slot_with_an_interrupted_prefill_is_saved(harness: PoolHarness) -> None:
    await harness.ask("a", token_ids(1))
    harness.engine.held[0] = token_ids(1, 200)
    await harness.pool.save_all()
    harness.restart()

    assert await harness.ask("b", token_ids(1, 700)) == 200


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefix_ends_at_the_first_difference(one: list[int], other: list[int]) -> None:
    length = common_prefix_length(array("i", one), array("i", other))

    assert one[:length] == other[:length]
    assert one[length : length + 1] != other[length : length + 1] or length == min(
        len(one), len(other)
    )
