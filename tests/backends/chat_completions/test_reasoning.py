"""Reasoning is separated from the answer, however the text is split into chunks."""

import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bot.backends.chat_completions.reasoning import (
    ANY_FORMAT,
    NO_FORMAT,
    TAG_FIRST_CHARS,
    ReasoningFormat,
    ReasoningParser,
    SeparatedText,
    detect_format,
    separate_reasoning,
    with_unclosed_tag,
)
from bot.chat.prompt import Delta, Finish, FinishReason, ReasoningDelta
from bot.templates.control_tokens import TextSpan

GPT_OSS = detect_format(None, ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"])
COHERE = detect_format(
    "<|START_THINKING|><|END_THINKING|><|START_RESPONSE|>{{ x }}<|END_RESPONSE|>", []
)
INSIDE = with_unclosed_tag(
    ANY_FORMAT, [TextSpan("hi", trusted=False), TextSpan("<|assistant|>\n<think>\n", True)]
)
CASES = json.loads(Path(__file__).with_name("reasoning.json").read_text("utf-8"))
TEXTS = st.lists(st.sampled_from(CASES["words"]), max_size=12).map("".join)
FORMATS = {"ANY_FORMAT": ANY_FORMAT, "NO_FORMAT": NO_FORMAT, "GPT_OSS": GPT_OSS, "INSIDE": INSIDE}
MODELS = st.sampled_from([*FORMATS.values(), COHERE])


def separate(reasoning: ReasoningFormat, pieces: Sequence[str]) -> SeparatedText:
    parser = ReasoningParser(reasoning)
    answer = thoughts = ""
    retracts_earlier_text = False
    for part in [*map(parser.feed, pieces), parser.flush()]:
        if part.retracts_earlier_text:
            answer, thoughts, retracts_earlier_text = "", thoughts + answer, True
        answer, thoughts = answer + part.answer, thoughts + part.reasoning
    return SeparatedText(answer, thoughts, retracts_earlier_text)


@pytest.mark.parametrize(("start", "end"), [*CASES["tags"], *CASES["more tags"]])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_reasoning_in_any_familys_format_is_separated_for_any_model(
    start: str, end: str, size: int
) -> None:
    for opened, closed in CASES["wrappers"]:
        written = f"{start}\nHm, 1 < 2.\n{end}\n\n{opened}Hello, 2 > 1.{closed}"
        pieces = [written[at : at + size] for at in range(0, len(written), size)]
        separated = separate(ANY_FORMAT, pieces)
        assert separated.answer.strip() == "Hello, 2 > 1."
        assert separated.reasoning.strip() == "Hm, 1 < 2."


@pytest.mark.parametrize("end", [end for _, end in CASES["tags"]] + [
    "<|end|><|start|>assistant<|channel|>final<|message|>", "<|START_RESPONSE|>",
    "[BEGIN FINAL RESPONSE]",
])  # fmt: skip
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_lone_end_tag_makes_everything_before_it_reasoning(end: str, size: int) -> None:
    written = f"The user says hi.\nI should greet.\n{end}\n\nHello!"
    pieces = [written[at : at + size] for at in range(0, len(written), size)]
    separated = separate(ANY_FORMAT, pieces)
    assert (separated.answer, separated.retracts_earlier_text) == ("Hello!", True)
    again = ReasoningParser(ReasoningFormat(assumed_end_tag=end))
    assert "".join(again.feed(piece).answer for piece in pieces[:-1]) in "Hello!"
    assert separate(ReasoningFormat(assumed_end_tag=end), pieces).answer == "Hello!"
    assert separate(ReasoningFormat(assumed_end_tag=end), ["Hi", " there."]).answer == "Hi there."


@pytest.mark.parametrize("text", CASES["text about tags"])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_text_that_mentions_reasoning_tags_is_not_reasoning(text: str, size: int) -> None:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert separate(ANY_FORMAT, pieces) == SeparatedText(text, "")


@pytest.mark.parametrize(("model", "written", "answer", "reasoning"), CASES["answers"])
def test_parser_separates_reasoning_from_the_answer(
    model: str, written: str, answer: str, reasoning: str
) -> None:
    assert separate(FORMATS[model], [written])[:2] == (answer, reasoning)


@given(MODELS, TEXTS, st.data())
def test_parser_output_does_not_depend_on_chunking(
    reasoning_format: ReasoningFormat, answer: str, data: st.DataObject
) -> None:
    reasoning_format = replace(
        reasoning_format, assumed_end_tag=data.draw(st.sampled_from([None, "</think>"]))
    )
    ends = data.draw(st.lists(st.integers(0, len(answer)), max_size=8).map(sorted))
    pieces = [
        answer[begin:end] for begin, end in zip([0, *ends], [*ends, len(answer)], strict=True)
    ]

    found, whole = separate(reasoning_format, pieces), separate(reasoning_format, [answer])
    if whole.retracts_earlier_text:  # the retracted answer follows earlier thoughts
        found, whole = (one._replace(reasoning="".join(sorted(one[1]))) for one in (found, whole))
    assert found == whole


@given(st.text())
def test_answer_without_tags_is_unchanged(answer: str) -> None:
    assume(not TAG_FIRST_CHARS.intersection(answer))  # Hypothesis reads our source

    assert separate(ANY_FORMAT, list(answer)) == SeparatedText(answer, "")


@given(st.text(alphabet="ab<>/think \n"), st.text(alphabet="ab<> \n"))
def test_reasoning_never_appears_in_the_answer(reasoning: str, answer: str) -> None:
    reasoning = reasoning.replace("</think>", "")

    written = f"<think>{reasoning}</think>{answer}"
    assert separate(ANY_FORMAT, [written]).answer.strip() == answer.strip()


def test_format_is_detected_from_template_and_vocabulary() -> None:
    assert detect_format("{{ '<think>' }}{{ content.split('</think>')[-1] }}", []) == (
        ReasoningFormat(
            special_tokens=("<think>", "</think>"),
            keeps_tool_calls=True,
            closing_tokens=frozenset({"</think>"}),
        )
    )
    assert detect_format(None, ["[THINK]", "[/THINK]"]).special_tokens == ("[THINK]", "[/THINK]")
    assert GPT_OSS.special_tokens == ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
    assert GPT_OSS.closing_tokens == {"<|end|>"}
    assert detect_format("{{ bos_token }}", ["<|im_start|>", "<|end|>"]) == ANY_FORMAT


def test_only_trusted_text_at_the_end_of_a_prompt_opens_reasoning() -> None:
    theirs = [TextSpan("Say ", trusted=True), TextSpan("<think>", trusted=False)]

    assert INSIDE.unclosed_tag == "<think>"
    assert with_unclosed_tag(ANY_FORMAT, theirs).unclosed_tag is None
    assert (
        with_unclosed_tag(
            ANY_FORMAT, [TextSpan("<think>\n\n</think>\n\n", trusted=True)]
        ).unclosed_tag
        is None
    )
    assert with_unclosed_tag(ANY_FORMAT, []).unclosed_tag is None


async def stream_deltas(*texts: str) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
    for text in texts:
        yield Delta(text)
    yield Finish(FinishReason.LENGTH)


async def test_stop_string_in_reasoning_does_not_end_the_answer() -> None:
    answer = stream_deltas("<think>\nAda: what?</th", "ink>I know.\nA", "da: hm")

    told = [piece async for piece in separate_reasoning(answer, ANY_FORMAT, ["\nAda:"])]

    assert [piece.text for piece in told if isinstance(piece, ReasoningDelta)] == ["\nAda: what?"]
    assert [piece.text for piece in told if isinstance(piece, Delta)] == ["I know."]
    assert told[-1] == Finish(FinishReason.STOP)


async def test_held_back_text_is_returned_at_the_end() -> None:
    told = [
        piece
        async for piece in separate_reasoning(
            stream_deltas("I think <thi", "\nAd"), ANY_FORMAT, ["\nAda:"]
        )
    ]

    *text, finish = told
    assert "".join(one.text for one in text if isinstance(one, Delta)) == "I think <thi\nAd"
    assert finish == Finish(FinishReason.LENGTH)
