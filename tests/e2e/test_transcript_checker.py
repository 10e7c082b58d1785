"""The checker of the end-to-end tests: it finds each kind of fault, and a right run passes."""

import pytest

from bot.commands.answers import MOVED_ON
from tests.e2e.transcript_checker import (
    CheckResult,
    PeoplesChanges,
    PostedMessage,
    check_transcripts,
    expected_answer,
)


def ask(name: str, words: int = 3, conversation: str = "a") -> PostedMessage:
    return PostedMessage(conversation, by_bot=False, text=f"please T{name}:{words}")


def said(text: str, conversation: str = "a") -> PostedMessage:
    return PostedMessage(conversation, by_bot=True, text=text)


def answer(name: str, words: int = 3, conversation: str = "a") -> PostedMessage:
    return said(expected_answer(f"T{name}:{words}"), conversation)


def fault_counts(*messages: PostedMessage) -> dict[str, int]:
    """Return the number of faults of each kind."""
    result = check_transcripts(messages)
    kinds = ("lost", "repeated", "out_of_order", "leftovers")
    return {kind: len(getattr(result, kind)) for kind in kinds if getattr(result, kind)}


def test_right_answers_pass() -> None:
    messages = [
        ask("1"),
        ask("2"),
        answer("1"),
        PostedMessage("a", by_bot=False, text="thanks"),
        answer("2"),
    ]
    result = check_transcripts(
        [*messages, ask("3", conversation="b"), answer("3", conversation="b")]
    )
    assert result.is_clean
    assert result.questions == 3


def test_answer_split_around_other_messages_passes() -> None:
    assert (
        fault_counts(ask("1", 4), said("RS1:4 1 2"), ask("2"), said("3 4 RE1"), answer("2")) == {}
    )


def test_conversations_are_independent() -> None:
    messages = (ask("1"), ask("2", conversation="b"), answer("2", conversation="b"), answer("1"))
    assert fault_counts(*messages) == {}


def test_unanswered_question_is_lost() -> None:
    assert fault_counts(ask("1"), ask("2"), answer("2")) == {"lost": 1}


@pytest.mark.parametrize("piece", ["RS1:3 1 2", "RS1:3 1 2 3", "RS1:3 1 3 RE1", "RS1:3 1 2 3 RE2"])
def test_partial_answer_is_lost_and_a_leftover(piece: str) -> None:
    assert set(fault_counts(ask("1"), said(piece))) == {"lost", "leftovers"}


def test_missing_middle_part_is_lost_and_a_leftover() -> None:
    messages = (ask("1", 6), said("RS1:6 1 2"), said("5 6 RE1"))
    assert set(fault_counts(*messages)) == {"lost", "leftovers"}


def test_answer_given_twice_is_repeated() -> None:
    assert fault_counts(ask("1"), answer("1"), answer("1")) == {"repeated": 1}


def test_answer_started_twice_is_repeated_and_a_leftover() -> None:
    assert fault_counts(ask("1"), said("RS1:3 1 2"), answer("1")) == {"repeated": 1, "leftovers": 1}


def test_part_sent_twice_is_a_leftover() -> None:
    messages = (ask("1", 4), said("RS1:4 1 2"), said("3 4 RE1"), said("3 4 RE1"))
    assert fault_counts(*messages) == {"leftovers": 1}


@pytest.mark.parametrize("stray", ["…", "⚠ Something went wrong", "", "1 2", "RE1"])
def test_unrelated_message_is_a_leftover(stray: str) -> None:
    assert fault_counts(ask("1"), answer("1"), said(stray)) == {"leftovers": 1}


def test_refusal_of_a_press_may_stand_between_answers_only() -> None:
    refusal = said(f"⚠ Ann: {MOVED_ON}")
    assert fault_counts(ask("1"), answer("1"), refusal) == {}
    parts = (said("RS1:3 1 2"), refusal, said("3 RE1"))
    assert fault_counts(ask("1"), *parts) == {"leftovers": 1}


def test_number_of_waiting_questions_stands_once_between_answers() -> None:
    told = said("⏳ 23 more messages came meanwhile. I will answer them next.")
    assert fault_counts(ask("1"), answer("1"), told, ask("2"), answer("2"), told) == {}
    assert fault_counts(ask("1"), answer("1"), told, told) == {"leftovers": 1}
    parts = (said("RS1:3 1 2"), told, said("3 RE1"))
    assert fault_counts(ask("1"), *parts) == {"leftovers": 1}


def test_text_added_to_an_answer_is_a_leftover() -> None:
    assert fault_counts(ask("1"), said(expected_answer("T1:3") + " ⚠ (interrupted)")) == {
        "leftovers": 1
    }


def test_answer_in_the_wrong_conversation_is_lost_and_a_leftover() -> None:
    assert fault_counts(ask("1"), answer("1", conversation="b")) == {"lost": 1, "leftovers": 1}


def test_later_question_answered_first_is_out_of_order() -> None:
    assert fault_counts(ask("1"), ask("2"), answer("2"), answer("1")) == {"out_of_order": 1}


def test_result_prints_counts_and_examples() -> None:
    result = CheckResult(questions=2, lost=["a: 1"])
    assert str(result) == (
        "2 questions: 1 lost, 0 repeated, 0 out_of_order, 0 leftovers, 0 ignored\n  lost: a: 1"
    )


def test_expected_answer_is_for_the_last_token() -> None:
    assert expected_answer("> T1:9\n\nBob: T2:2") == "RS2:2 1 2 RE2"
    with pytest.raises(ValueError, match="no token"):
        expected_answer("hello")


def edited(name: str, *earlier: str) -> PostedMessage:
    texts = tuple(ask(one).text for one in earlier)
    return PostedMessage("a", by_bot=False, text=ask(name).text, earlier=texts)


def test_edited_question_has_one_answer_to_either_text() -> None:
    assert fault_counts(edited("2", "1"), answer("2")) == {}
    assert fault_counts(edited("2", "1"), answer("1")) == {}
    assert fault_counts(edited("2", "1")) == {"lost": 1}
    assert fault_counts(edited("2", "1"), answer("1"), answer("2")) == {"repeated": 1}
    assert fault_counts(edited("2", "1"), ask("3"), answer("3"), answer("2")) == {"out_of_order": 1}


def test_newest_question_is_answered_as_it_reads_now() -> None:
    changes = PeoplesChanges(followed={"a"})
    messages = [edited("2", "1"), answer("1")]
    assert check_transcripts(messages, changes).ignored == ["a: 1 has become 2"]
    messages[-1] = answer("2")
    assert check_transcripts(messages, changes).is_clean


def test_deleted_answer_may_be_missing_and_must_be_where_nothing_followed() -> None:
    changes = PeoplesChanges(deleted={"1"})
    assert check_transcripts([ask("1")], changes).is_clean
    assert check_transcripts([ask("1"), answer("1")], changes).is_clean
    changes.gone["a"] = {"1"}
    result = check_transcripts([ask("1"), answer("1")], changes)
    assert result.ignored == ["a: the answer to 1 is still there"]
