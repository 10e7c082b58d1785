"""Test that the transcript checker finds each kind of fault, and accepts a correct run."""

import re
from dataclasses import replace

import pytest

from bot.commands.answers import CONVERSATION_MOVED_ON_NOTICE
from tests.checkout import CHECKOUT
from tests.support.transcripts import (
    KINDS,
    CheckResult,
    PeoplesChanges,
    PostedMessage,
    check_transcripts,
    expected_answer,
)

_, *CASES = (CHECKOUT / "tests/support/transcripts.txt").read_text("utf-8").splitlines()
STEP = re.compile(r"(?:in (\w+) )?(ask|answer|say)(?: (\w+)(?::(\d+))?(?: was (\w+))?|.*)")
WAITING = "⏳ 23 more messages have arrived. I will answer them next."


def post(step: str) -> PostedMessage:
    """Return the message that a step describes; questions ask for three words by default."""
    found = STEP.fullmatch(step)
    assert found is not None, step
    where, what, name, words, earlier = found.groups()
    if what == "say":
        said = (
            step.removeprefix("say")
            .strip()
            .format(MOVED_ON=CONVERSATION_MOVED_ON_NOTICE, WAITING=WAITING)
        )
        return PostedMessage(where or "a", by_bot=True, text=said)
    token = f"T{name}:{words or 3}"
    text = f"please {token}" if what == "ask" else expected_answer(token)
    before = (f"please T{earlier}:3",) if earlier else ()
    return PostedMessage(where or "a", by_bot=what == "answer", text=text, earlier=before)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.partition(":")[0])
def test_faults_in_a_transcript_are_found(case: str) -> None:
    steps, _, faults = case.partition(": ")[2].partition(" -> ")
    messages = [post(step) for step in steps.split("; ")]
    result = check_transcripts(messages)
    found = {kind: len(getattr(result, kind)) for kind in KINDS}
    told = ", ".join(f"{kind} {count}" for kind, count in found.items() if count)
    assert told == faults.replace("none", "")
    assert result.questions == sum(not one.by_bot for one in messages)


def test_result_prints_counts_and_examples() -> None:
    result = CheckResult(questions=2, lost=["a: 1"])
    assert str(result) == (
        "2 questions: 1 lost, 0 skipped, 0 repeated, 0 out_of_order, 0 leftovers, 0 ignored"
        "\n  lost: a: 1"
    )


def test_expected_answer_contains_the_last_token() -> None:
    assert expected_answer("> T1:9\n\nBob: T2:2") == "RS2:2 1 2 RE2"
    with pytest.raises(ValueError, match="no token"):
        expected_answer("hello")


def test_edited_question_needs_an_answer_to_its_current_text() -> None:
    changes, asked = PeoplesChanges(followed={"a"}), post("ask 2 was 1")
    assert check_transcripts([asked, post("answer 1")], changes).ignored == ["a: 1 has become 2"]
    assert check_transcripts([asked, post("answer 2")], changes).is_clean


@pytest.mark.parametrize(("begun_by", "skipped"), [("7", []), ("8", ["a: 1"]), ("e9", [])])
def test_question_skipped_by_an_answer_to_a_later_question_is_found(
    begun_by: str, skipped: list[str]
) -> None:
    asked = [replace(post("ask 1"), number="7"), replace(post("ask 2"), number="8")]
    first, last = (expected_answer(f"T{name}:3") for name in "12")
    answer = post(f"say {first} {last[:-4]}"), replace(post("say RE2"), answers=begun_by)
    assert check_transcripts([*asked, *answer]).skipped == skipped
    changes = PeoplesChanges(deleted={"1"})
    assert check_transcripts([*asked, *answer], changes).is_clean
    asked[0] = replace(asked[0], earlier=("please T0:3",))
    changes = PeoplesChanges(deleted={"0"})
    assert check_transcripts([*asked, *answer], changes).is_clean


def test_deleted_answer_may_be_missing() -> None:
    changes, asked = PeoplesChanges(deleted={"1"}), [post("ask 1"), post("answer 1")]
    assert check_transcripts([post("ask 1")], changes).is_clean
    assert check_transcripts(asked, changes).is_clean
    changes.gone["a"] = {"1"}
    assert check_transcripts(asked, changes).ignored == ["a: the answer to 1 is still there"]
