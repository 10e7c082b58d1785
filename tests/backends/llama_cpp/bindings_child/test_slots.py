"""Who gets which slot, and how a batch is divided."""

from hypothesis import given
from hypothesis import strategies as st

from bot.backends.llama_cpp.bindings_child.slots import Move, Slot, choose, divide, in_common, moves

tokens = st.lists(st.integers(0, 3), max_size=12)


@given(tokens, tokens)
def test_what_two_have_in_common_is_a_beginning_of_both(some: list[int], others: list[int]) -> None:
    shared = in_common(some, others)

    assert some[:shared] == others[:shared]
    assert some[shared : shared + 1] != others[shared : shared + 1] or shared == len(some)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(8, 100))
def test_a_batch_is_full_or_everybody_has_all(wanted: list[int], room: int) -> None:
    given_out = divide(wanted, room)

    assert sum(given_out) == min(room, sum(wanted))
    assert all(1 <= given <= want for given, want in zip(given_out, wanted, strict=True))


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(8, 100))
def test_nobody_gets_more_than_one_who_wants_more(wanted: list[int], room: int) -> None:
    given_out = divide(wanted, room)

    unserved = [got for got, want in zip(given_out, wanted, strict=True) if got < want]
    assert all(max(given_out) <= got + len(wanted) for got in unserved)


def test_a_conversation_returns_to_the_slot_that_it_goes_on_from() -> None:
    other, own = Slot(0, [1, 2, 3, 9, 9, 9, 9]), Slot(1, [1, 2, 3, 4, 5, 6, 7])

    assert choose([other, own], [1, 2, 3, 4, 5, 6, 7, 8]) is own


def test_a_beginning_that_all_conversations_share_does_not_push_one_out() -> None:
    held, empty = Slot(0, [1, 2, 3, 9, 9, 9, 9]), Slot(1)

    assert choose([held, empty], [1, 2, 3, 4, 4, 4]) is empty


def test_without_an_empty_slot_the_one_unused_for_longest_is_taken() -> None:
    late, early = Slot(0, [7, 7], last_use=5), Slot(1, [8, 8], last_use=2)

    assert choose([late, early], [1, 2]) is early


def test_what_follows_a_gap_moves_up_in_pieces_worth_it() -> None:
    held, prompt = [1, 2, 9, 9, 3, 4, 5, 9, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8]

    assert moves(held, prompt, kept=2, least=3) == [Move(begin=4, to=2, length=3)]
    assert moves(held, prompt, kept=2, least=2)[1:] == [Move(begin=8, to=5, length=2)]


@given(tokens, tokens, st.integers(1, 3))
def test_what_was_moved_reads_as_the_prompt_does(
    held: list[int], prompt: list[int], least: int
) -> None:
    kept = in_common(held, prompt)
    moved = list(prompt[:kept])
    for move in moves(held, prompt, kept, least):
        assert move.to == len(moved)
        moved += held[move.begin : move.begin + move.length]

    assert moved == prompt[: len(moved)]
