"""The judge of the end-to-end tests, judged: each way to fail is found, and a right run passes."""

import pytest

from tests.e2e.checker import Post, Verdict, judge, right_answer


def ask(name: str, words: int = 3, place: str = "a") -> Post:
    return Post(place, by_bot=False, text=f"please T{name}:{words}")


def said(text: str, place: str = "a") -> Post:
    return Post(place, by_bot=True, text=text)


def answer(name: str, words: int = 3, place: str = "a") -> Post:
    return said(right_answer(f"T{name}:{words}"), place)


def found(*posts: Post) -> dict[str, int]:
    """What is wrong, in numbers."""
    verdict = judge(posts)
    kinds = ("lost", "repeated", "out_of_order", "leftovers")
    return {kind: len(getattr(verdict, kind)) for kind in kinds if getattr(verdict, kind)}


def test_right_answers_pass() -> None:
    posts = [ask("1"), ask("2"), answer("1"), Post("a", by_bot=False, text="thanks"), answer("2")]
    verdict = judge([*posts, ask("3", place="b"), answer("3", place="b")])
    assert verdict.clean
    assert verdict.questions == 3


def test_answer_may_be_split_with_other_people_in_between() -> None:
    assert found(ask("1", 4), said("RS1:4 1 2"), ask("2"), said("3 4 RE1"), answer("2")) == {}


def test_places_do_not_have_to_wait_for_each_other() -> None:
    posts = (ask("1"), ask("2", place="b"), answer("2", place="b"), answer("1"))
    assert found(*posts) == {}


def test_unanswered_question_is_lost() -> None:
    assert found(ask("1"), ask("2"), answer("2")) == {"lost": 1}


@pytest.mark.parametrize("piece", ["RS1:3 1 2", "RS1:3 1 2 3", "RS1:3 1 3 RE1", "RS1:3 1 2 3 RE2"])
def test_piece_of_an_answer_is_none(piece: str) -> None:
    assert set(found(ask("1"), said(piece))) == {"lost", "leftovers"}


def test_missing_middle_part_is_found() -> None:
    posts = (ask("1", 6), said("RS1:6 1 2"), said("5 6 RE1"))
    assert set(found(*posts)) == {"lost", "leftovers"}


def test_answer_given_twice_is_repeated() -> None:
    assert found(ask("1"), answer("1"), answer("1")) == {"repeated": 1}


def test_answer_begun_twice_is_repeated_and_leaves_a_piece() -> None:
    assert found(ask("1"), said("RS1:3 1 2"), answer("1")) == {"repeated": 1, "leftovers": 1}


def test_part_sent_twice_is_a_leftover() -> None:
    posts = (ask("1", 4), said("RS1:4 1 2"), said("3 4 RE1"), said("3 4 RE1"))
    assert found(*posts) == {"leftovers": 1}


@pytest.mark.parametrize("stray", ["…", "⚠ Something went wrong", "", "1 2", "RE1"])
def test_message_that_answers_nothing_is_a_leftover(stray: str) -> None:
    assert found(ask("1"), answer("1"), said(stray)) == {"leftovers": 1}


def test_text_added_to_an_answer_is_found() -> None:
    assert found(ask("1"), said(right_answer("T1:3") + " ⚠ (interrupted)")) == {"leftovers": 1}


def test_answer_in_the_wrong_place_is_lost_and_a_stranger() -> None:
    assert found(ask("1"), answer("1", place="b")) == {"lost": 1, "leftovers": 1}


def test_later_question_answered_first_is_out_of_order() -> None:
    assert found(ask("1"), ask("2"), answer("2"), answer("1")) == {"out_of_order": 1}


def test_verdict_tells_its_figures_with_examples() -> None:
    verdict = Verdict(questions=2, lost=["a: 1"])
    assert str(verdict) == (
        "2 questions: 1 lost, 0 repeated, 0 out_of_order, 0 leftovers\n  lost: a: 1"
    )


def test_right_answer_is_to_the_last_token() -> None:
    assert right_answer("> T1:9\n\nBob: T2:2") == "RS2:2 1 2 RE2"
    with pytest.raises(ValueError, match="no token"):
        right_answer("hello")
