"""Test the output filter: unwanted texts are never shown, even while an answer streams."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bot.chat.prompt import Finish, FinishReason, Message, Prompt, ReasoningDelta
from bot.replying.filters import OutputFilter, RepetitionDetector, apply_filters
from bot.replying.generate import describe_ending, generate_answer
from tests.fakes import FakeBackend, FakeClock
from tests.shared_data import golden

# Few letters, so that texts overlap and removals join into new matches.
texts = st.text("ab<| \n", max_size=40)
words = st.lists(st.text("ab<| ", min_size=1, max_size=4), max_size=4)


def stream(pieces: list[str], filter_chars: list[str]) -> list[str]:
    output = OutputFilter(filter_chars)
    return [*(output.feed(piece) for piece in pieces), output.finish()]


@given(texts, words, st.lists(st.integers(0, 40), max_size=8))
def test_chunking_does_not_change_the_text(text: str, unwanted: list[str], cuts: list[int]) -> None:
    positions = sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    pieces = [text[start:end] for start, end in pairwise(positions)]

    assert "".join(stream(pieces, unwanted)) == apply_filters(text, unwanted)


def test_text_that_may_become_unwanted_is_held_back() -> None:
    assert stream(["Hi <|e", "nd|> you <|", "x|>"], ["<|end|>"]) == ["Hi", "  you", " <|x|>", ""]


def test_text_held_back_by_one_filter_passes_through_the_later_filters() -> None:
    # Without "x" the rest is "ab", which the second stage takes away.
    assert stream(["a", "x", "b", "c"], ["x", "ab"]) == ["", "", "", "c", ""]


def test_order_of_the_filters_matters() -> None:
    assert apply_filters("axbc", ["ab", "x"]) == "abc"


@pytest.mark.parametrize(
    "case",
    [case for case in golden("rodel_templates") if case["input"]["op"] == "filter_chars"],
    ids=lambda case: case["id"],
)
def test_filters_return_the_same_text_as_rodelagent(case: dict[str, Any]) -> None:
    text, unwanted = case["input"]["text"], case["input"]["filter_chars"]

    assert apply_filters(text, unwanted) == case["expected"]
    assert "".join(stream(list(text), unwanted)) == case["expected"]


PROMPT = Prompt((Message("user", "hello"),), "m", "channel")
WORDS = st.text("abcdefgh", min_size=1, max_size=8)
LINES = st.lists(WORDS, min_size=2, max_size=9, unique=True).map(" ".join)
PIECES = st.integers(1, 60)


def bullets(lines: list[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)


def numbered(lines: list[str]) -> str:
    return "".join(f"{number}. {lines[0]}\n" for number, _ in enumerate(lines * 9, 1))


def poem(lines: list[str]) -> str:
    refrain = f"{lines[0]}\n" * 4
    return "\n".join(f"{line},\n{line[::-1]}\n{refrain}" for line in lines)


def table(lines: list[str]) -> str:
    rows = "".join(f"| {line} | 0 | 0 | 0 | yes | yes |\n" for line in lines)
    return f"| name | a | b | c | d | e |\n|{'---|' * 6}\n{rows}"


def matrix(lines: list[str]) -> str:
    """Return a matrix of numbers, a text without letters."""
    return ("[0, 0, 0, 0],\n" * len(lines) + "=" * 80 + "\n" + "| . " * 40 + "\n") * 4


def code(lines: list[str]) -> str:
    body = "".join(f"    print({line!r})\n" for line in lines)
    rows = f"    {[None] * 12},\n" * 12
    return f"Here it is:\n```python\ndef run():\n{body}GRID = [\n{rows}]\n```\nThat is all.\n"


def laughter(lines: list[str]) -> str:
    return "".join(f"{line}! Ha{'ha' * 30}! No{'o' * 60}...\n" for line in lines)


FORMS = (bullets, numbered, poem, table, matrix, code, laughter)


def feed(text: str, piece: int) -> RepetitionDetector:
    detector = RepetitionDetector()
    for start in range(0, len(text), piece):
        detector.feed(text[start : start + piece])
    return detector


@given(
    form=st.sampled_from(FORMS),
    lines=st.lists(LINES, min_size=1, max_size=40, unique=True),
    piece=PIECES,
)
def test_text_without_repetition_is_not_cut(
    form: Callable[[list[str]], str], lines: list[str], piece: int
) -> None:
    text = form(lines)
    detector = feed(text, piece)
    assert not detector.has_repetition
    assert detector.remove_repetition(text) == text


@given(lead=LINES, unit=st.lists(LINES, min_size=1, max_size=6), piece=PIECES)
def test_endlessly_repeated_text_is_kept_once(lead: str, unit: list[str], piece: int) -> None:
    repeated = " ".join(unit) + ". "
    assume(len(repeated) < 400)
    text = f"Well: {lead}! " + repeated * (4000 // len(repeated))
    detector = RepetitionDetector()
    fed = ""
    for start in range(0, len(text), piece):
        fed = text[: start + piece]
        detector.feed(text[start : start + piece])
        if detector.has_repetition:
            break

    assert detector.has_repetition
    kept = detector.remove_repetition(fed)
    assert text.startswith(kept)
    assert kept.startswith("Well")
    assert len(kept) <= len(f"Well: {lead}! ") + 2 * len(repeated)


@pytest.mark.parametrize(
    "unit", ["of the balcony ", "la ", "Il capo di Roma, il capo di Napoli.\n"]
)
async def test_endless_answer_is_cut_and_the_model_is_stopped(unit: str) -> None:
    backend = FakeBackend(["It is set in the park. ", *[unit] * 3000])
    shown: list[str] = []

    answer = await generate_answer(backend, PROMPT, shown.append, lambda _: None, FakeClock())

    assert answer.reason is FinishReason.REPETITION
    assert answer.text.startswith("It is set in the park.")
    assert len(answer.text) < 100
    assert len("".join(shown)) < 900
    assert backend.closed_early == 1
    assert "began to repeat itself" in (describe_ending(answer.reason) or "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("".join(f"Day {day}: We walk to the sea. " for day in range(30)), FinishReason.REPETITION),
        ("- I can help you with your work.\n" * 9, FinishReason.REPETITION),
        ("".join(f"{word} is a word. " for word in "abcdefgh"), FinishReason.LENGTH),
    ],
)
async def test_truncated_answer_with_repeated_sentences_counts_as_repetition(
    text: str, reason: FinishReason
) -> None:
    backend = FakeBackend([text, Finish(FinishReason.LENGTH)])
    answer = await generate_answer(backend, PROMPT, lambda _: None, lambda _: None, FakeClock())
    assert answer.reason is reason


async def test_endless_reasoning_is_stopped() -> None:
    backend = FakeBackend([ReasoningDelta("Wait, but maybe I am wrong. ")] * 3000)

    answer = await generate_answer(backend, PROMPT, lambda _: None, lambda _: None, FakeClock())

    assert (answer.text, answer.reason) == ("", FinishReason.REPETITION)
    assert backend.closed_early == 1
