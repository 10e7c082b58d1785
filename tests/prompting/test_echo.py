"""The tag that a model puts before its own answer is taken off while it streams."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.prompting.echo import EchoRemover


def streamed(speaker: str | None, pieces: Sequence[str]) -> str:
    remover = EchoRemover(speaker)
    return "".join([remover.feed(piece) for piece in pieces]) + remover.finish()


@pytest.mark.parametrize("answer", ["Nora: hello", "\nNora:hello", "Nora：hello", "hello"])
def test_the_own_tag_goes(answer: str) -> None:
    assert streamed("Nora", list(answer)) == "hello"


@pytest.mark.parametrize("answer", ["Norah: hello", "No", "I am Nora: hello", ""])
def test_anything_else_stays(answer: str) -> None:
    assert streamed("Nora", list(answer)) == answer


@given(st.text(alphabet="Nora: x\n", max_size=30), st.integers(1, 5))
def test_the_size_of_the_pieces_does_not_matter(answer: str, size: int) -> None:
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
    assert streamed("Nora", pieces) == streamed("Nora", [answer])


def test_without_a_speaker_nothing_is_held_back() -> None:
    assert EchoRemover(None).feed("No") == "No"
