"""Slot choice, batch shares, and shifts over a gap."""

from hypothesis import given
from hypothesis import strategies as st

from bot.backends.llama_cpp.bindings_child.slots import (
    Shift,
    Slot,
    choose_slot,
    common_prefix_length,
    divide_batch,
    find_shifts,
)

tokens = st.lists(st.integers(0, 3), max_size=12)


@given(tokens, tokens)
def test_common_prefix_is_a_prefix_of_both(some: list[int], others: list[int]) -> None:
    shared = common_prefix_length(some, others)

    assert some[:shared] == others[:shared]
    assert some[shared : shared + 1] != others[shared : shared + 1] or shared == len(some)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(8, 100))
def test_batch_is_full_or_everyone_has_all(wanted: list[int], limit: int) -> None:
    given_out = divide_batch(wanted, limit)

    assert sum(given_out) == min(limit, sum(wanted))
    assert all(1 <= given <= want for given, want in zip(given_out, wanted, strict=True))


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(8, 100))
def test_batch_is_shared_equally_among_those_who_want_more(wanted: list[int], limit: int) -> None:
    given_out = divide_batch(wanted, limit)

    unserved = [got for got, want in zip(given_out, wanted, strict=True) if got < want]
    assert all(max(given_out) <= got + len(wanted) for got in unserved)


def test_conversation_returns_to_its_slot() -> None:
    other, own = Slot(0, [1, 2, 3, 9, 9, 9, 9]), Slot(1, [1, 2, 3, 4, 5, 6, 7])

    assert choose_slot([other, own], [1, 2, 3, 4, 5, 6, 7, 8]) is own


def test_shared_system_prompt_does_not_evict_a_conversation() -> None:
    held, empty = Slot(0, [1, 2, 3, 9, 9, 9, 9]), Slot(1)

    assert choose_slot([held, empty], [1, 2, 3, 4, 4, 4]) is empty


def test_least_recently_used_slot_is_taken_when_none_is_empty() -> None:
    late, early = Slot(0, [7, 7], last_used=5), Slot(1, [8, 8], last_used=2)

    assert choose_slot([late, early], [1, 2]) is early


def test_tokens_after_a_gap_are_shifted_in_long_runs() -> None:
    held, prompt = [1, 2, 9, 9, 3, 4, 5, 9, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8]

    assert find_shifts(held, prompt, kept=2, least=3) == [Shift(begin=4, to=2, length=3)]
    assert find_shifts(held, prompt, kept=2, least=2)[1:] == [Shift(begin=8, to=5, length=2)]


@given(tokens, tokens, st.integers(1, 3))
def test_shifted_tokens_equal_the_prompt(held: list[int], prompt: list[int], least: int) -> None:
    kept = common_prefix_length(held, prompt)
    moved = list(prompt[:kept])
    for move in find_shifts(held, prompt, kept, least):
        assert move.to == len(moved)
        moved += held[move.begin : move.begin + move.length]

    assert moved == prompt[: len(moved)]
