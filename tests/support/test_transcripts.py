"""The checker of transcripts finds each kind of fault, and a right run passes."""

from typing import Any

import pytest

from bot.commands.answers import MOVED_ON
from tests.support.transcripts import (
    CheckResult,
    PeoplesChanges,
    PostedMessage,
    check_transcripts,
    expected_answer,
)


def ask(name: str, words: int = 3, where: str = "a", earlier: str = "") -> PostedMessage:
    before = (f"please T{earlier}:3",) if earlier else ()
    return PostedMessage(where, by_bot=False, text=f"please T{name}:{words}", earlier=before)


def said(text: str, where: str = "a") -> PostedMessage:
    return PostedMessage(where, by_bot=True, text=text)


def answer(name: str, words: int = 3, where: str = "a") -> PostedMessage:
    return said(expected_answer(f"T{name}:{words}"), where)


ASKED = (ask("1"), answer("1"))
PART, REST = said("RS1:3 1 2"), said("3 RE1")
REFUSED_PRESS = said(f"⚠ Ann: {MOVED_ON}")
WAITING = said("⏳ 23 more messages came meanwhile. I will answer them next.")
LOST = {"lost": 1, "leftovers": 1}


@pytest.mark.parametrize(
    ("messages", "faults"),
    [
        pytest.param((*ASKED, ask("2"), answer("2")), {}, id="right answers"),
        pytest.param((ask("1"), PART, ask("2"), REST, answer("2")), {}, id="split answer"),
        pytest.param(
            (ask("1"), ask("2", where="b"), answer("2", where="b"), answer("1")),
            {},
            id="independent conversations",
        ),
        pytest.param((ask("1"), ask("2"), answer("2")), {"lost": 1}, id="no answer"),
        *((pytest.param((ask("1"), said(part)), LOST, id=part))
          for part in ("RS1:3 1 2", "RS1:3 1 2 3")),
        *((pytest.param((ask("1"), said(part)), {"lost": 1, "leftovers": 2}, id=part))
          for part in ("RS1:3 1 3 RE1", "RS1:3 1 2 3 RE2")),
        pytest.param(
            (ask("1", 6), said("RS1:6 1 2"), said("5 6 RE1")),
            {"lost": 1, "leftovers": 2},
            id="no middle",
        ),
        pytest.param((*ASKED, answer("1")), {"repeated": 1}, id="given twice"),
        pytest.param(
            (ask("1"), PART, answer("1")), {"repeated": 1, "leftovers": 1}, id="begun twice"
        ),
        pytest.param((ask("1"), PART, REST, REST), {"leftovers": 1}, id="part sent twice"),
        *((pytest.param((*ASKED, said(stray)), {"leftovers": 1}, id=f"stray {stray}"))
          for stray in ("…", "⚠ Something went wrong", "", "1 2", "RE1")),
        pytest.param((*ASKED, REFUSED_PRESS), {}, id="refused press"),
        pytest.param((ask("1"), PART, REFUSED_PRESS, REST), {"leftovers": 1}, id="press within"),
        pytest.param((*ASKED, WAITING, ask("2"), answer("2"), WAITING), {}, id="more wait"),
        pytest.param((*ASKED, WAITING, WAITING), {"leftovers": 1}, id="more wait, twice"),
        pytest.param((ask("1"), PART, WAITING, REST), {"leftovers": 1}, id="more wait, within"),
        pytest.param(
            (ask("1"), said(expected_answer("T1:3") + " ⚠ (interrupted)")),
            {"leftovers": 1},
            id="added text",
        ),
        pytest.param((ask("1"), answer("1", where="b")), LOST, id="wrong conversation"),
        pytest.param(
            (ask("1"), ask("2"), answer("2"), answer("1")), {"out_of_order": 1}, id="order"
        ),
        pytest.param((ask("2", earlier="1"), answer("2")), {}, id="edited, newer text"),
        pytest.param((ask("2", earlier="1"), answer("1")), {}, id="edited, older text"),
        pytest.param((ask("1", earlier="1"), answer("1")), {}, id="edited around its token"),
        pytest.param((ask("2", earlier="1"),), {"lost": 1}, id="edited, no answer"),
        pytest.param(
            (ask("2", earlier="1"), answer("1"), answer("2")), {"repeated": 1}, id="edited, both"
        ),
        pytest.param(
            (ask("2", earlier="1"), ask("3"), answer("3"), answer("2")),
            {"out_of_order": 1},
            id="edited, late",
        ),
    ],
)  # fmt: skip
def test_faults_are_found(messages: tuple[PostedMessage, ...], faults: dict[str, int]) -> None:
    result = check_transcripts(messages)
    kinds = ("lost", "repeated", "out_of_order", "leftovers", "ignored")
    found: dict[str, Any] = {kind: len(getattr(result, kind)) for kind in kinds}
    assert {kind: count for kind, count in found.items() if count} == faults
    assert result.questions == sum(not one.by_bot for one in messages)


def test_result_prints_counts_and_examples() -> None:
    result = CheckResult(questions=2, lost=["a: 1"])
    assert str(result) == (
        "2 questions: 1 lost, 0 repeated, 0 out_of_order, 0 leftovers, 0 ignored\n  lost: a: 1"
    )


def test_expected_answer_is_for_the_last_token() -> None:
    assert expected_answer("> T1:9\n\nBob: T2:2") == "RS2:2 1 2 RE2"
    with pytest.raises(ValueError, match="no token"):
        expected_answer("hello")


def test_newest_question_is_answered_as_it_reads_now() -> None:
    changes, asked = PeoplesChanges(followed={"a"}), ask("2", earlier="1")
    assert check_transcripts([asked, answer("1")], changes).ignored == ["a: 1 has become 2"]
    assert check_transcripts([asked, answer("2")], changes).is_clean


def test_deleted_answer_may_be_missing_and_must_be_where_nothing_followed() -> None:
    changes = PeoplesChanges(deleted={"1"})
    assert check_transcripts([ask("1")], changes).is_clean
    assert check_transcripts(ASKED, changes).is_clean
    changes.gone["a"] = {"1"}
    assert check_transcripts(ASKED, changes).ignored == ["a: the answer to 1 is still there"]
