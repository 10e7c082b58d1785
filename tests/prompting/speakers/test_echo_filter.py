"""Tags of speakers are taken out of an answer while it streams."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.prompting.speakers.echo_filter import EchoFilter

OTHERS = ("Alice", "Bob#a3f1", "小明")


def streamed(own: str | None, pieces: Sequence[str]) -> str:
    remover = EchoFilter(own, OTHERS)
    return "".join([remover.feed(piece) for piece in pieces]) + remover.finish()


@pytest.mark.parametrize(
    "answer",
    [
        "hello",
        "Nora: hello",
        "\nNora:hello",
        "Nora：hello",
        "NORA : hello",
        "Nora: Nora: hello",
        "**Nora:** hello",
        "**Nora**: hello",
        "__Nora__： hello",
        "*Nora*: hello",
        "[Nora]: hello",
        "「Nora」：hello",
        '"Nora": hello',
        "“Nora”: hello",
        "\u200bNora:\n\nhello",
        "Nora (smiles): hello",
        "**Nora** (smiling):hello",
        "Nora #5973:hello",
    ],
)
def test_the_own_tag_goes(answer: str) -> None:
    assert streamed("Nora", list(answer)) == "hello"


@pytest.mark.parametrize(
    "answer",
    [
        "Norah: hello",
        "No",
        "I am Nora: hello",
        "",
        "Nora\nsays: no",
        "Nora (the keeper) left",
        "*bows* Bob: fine",
    ],
)
def test_anything_else_stays(answer: str) -> None:
    assert streamed("Nora", list(answer)) == answer


def test_what_the_tag_is_followed_by_keeps_its_marks() -> None:
    assert streamed("Nora", ["Nora: *waves*"]) == "*waves*"
    assert streamed("Nora", ["**Nora:** **no**"]) == "**no**"


def test_the_own_tag_goes_from_every_line() -> None:
    assert streamed("Nora", ["one\nNora: two\n\n**Nora:** three"]) == "one\ntwo\n\nthree"


@pytest.mark.parametrize(
    "line",
    [
        "Alice: and you?",
        "alice：hm",
        "**Alice:** hm",
        "Bob#a3f1: yes",
        "Bob: yes",
        "「小明」：好",
        "Alice (laughs): no",
    ],
)
def test_the_answer_ends_where_somebody_else_begins_to_speak(line: str) -> None:
    remover = EchoFilter("Nora", OTHERS)
    shown = "".join(remover.feed(piece) for piece in f"I see.\n{line}\nNora: more")
    assert (shown + remover.finish()).rstrip() == "I see."
    assert remover.stopped


def test_an_answer_that_begins_as_somebody_else_loses_the_tag_alone() -> None:
    assert streamed("Nora", ["Alice: that is kind.\nBob: no"]).rstrip() == "that is kind."


@given(
    st.lists(
        st.sampled_from(
            [
                "Nora",
                "Alice",
                "Bob",
                ":",
                "：",
                " ",
                "*",
                "**",
                "(",
                ")",
                "#1",
                "\n",
                "x",
                "「",
                "」",
            ]
        ),
        max_size=14,
    ).map("".join),
    st.integers(1, 5),
)
def test_the_size_of_the_pieces_does_not_matter(answer: str, size: int) -> None:
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
    assert streamed("Nora", pieces) == streamed("Nora", [answer])


@given(st.lists(st.sampled_from(["Nora: ", "Alice: ", "\n", "hm ", "**Alice:** "]), max_size=12))
def test_no_line_of_what_is_shown_begins_with_a_tag(pieces: list[str]) -> None:
    shown = streamed("Nora", pieces)
    assert not [
        line for line in shown.splitlines() if line.lstrip("* ").startswith(("Nora:", "Alice:"))
    ]


def test_without_a_speaker_nothing_is_held_back() -> None:
    assert EchoFilter(None).feed("No") == "No"
