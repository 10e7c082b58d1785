"""Reasoning is separated from the answer, however the text is split into chunks."""

from collections.abc import AsyncGenerator, Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bot.backends.chat_completions.reasoning import (
    ANY_FORMAT,
    NO_FORMAT,
    ReasoningFormat,
    ReasoningParser,
    SeparatedText,
    detect_format,
    detect_open_tag,
    separate_reasoning,
)
from bot.chat.prompt import Delta, Finish, FinishReason, ReasoningDelta
from bot.templates.text_spans import TextSpan

GPT_OSS = detect_format(None, ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"])
COHERE = detect_format(
    "<|START_THINKING|><|END_THINKING|><|START_RESPONSE|>{{ x }}<|END_RESPONSE|>", []
)
INSIDE = detect_open_tag(
    ANY_FORMAT, [TextSpan("hi", trusted=False), TextSpan("<|assistant|>\n<think>\n", True)]
)
WORDS = [
    "<think>",
    "</think>",
    "<|channel|>analysis<|message|>",
    "<|channel|>final<|message|>",
    "<|end|>",
    "<|start|>assistant",
    "<|START_THINKING|>",
    "<|END_RESPONSE|>",
    "<",
    "<thin",
    "\n",
    " ",
    "a",
    "Well.",
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=12).map("".join)
MODELS = st.sampled_from([ANY_FORMAT, NO_FORMAT, GPT_OSS, COHERE, INSIDE])


def separate(reasoning: ReasoningFormat, pieces: Sequence[str]) -> SeparatedText:
    parser = ReasoningParser(reasoning)
    parts = [*(parser.feed(piece) for piece in pieces), parser.flush()]
    return SeparatedText(
        "".join(each.answer for each in parts), "".join(each.reasoning for each in parts)
    )


@pytest.mark.parametrize(
    ("reasoning_format", "written", "answer", "reasoning"),
    [
        (ANY_FORMAT, "Hello.", "Hello.", ""),
        (ANY_FORMAT, "<think>\nHm.\n</think>\n\nHello.", "Hello.", "\nHm.\n"),
        (ANY_FORMAT, "\n<think>a</think> <think>b</think>Hi", "Hi", "ab"),
        (ANY_FORMAT, "<think>never an end", "", "never an end"),
        (ANY_FORMAT, "[THINK]Hm.[/THINK]Hello.", "Hello.", "Hm."),
        (ANY_FORMAT, "<seed:think>Hm.</seed:think>Hello.", "Hello.", "Hm."),
        (ANY_FORMAT, "<|channel>thought\nHm.<channel|>Hello.", "Hello.", "\nHm."),
        (ANY_FORMAT, "The mark <think> opens.", "The mark <think> opens.", ""),
        (ANY_FORMAT, "<thinner> is no mark", "<thinner> is no mark", ""),
        (ANY_FORMAT, "<thi", "<thi", ""),
        (INSIDE, "Hm.\n</think>\n\nHello.", "Hello.", "Hm.\n"),
        (INSIDE, "Hm, too long", "", "Hm, too long"),
        (
            COHERE,
            "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Hi<|END_RESPONSE|>",
            "Hi",
            "Hm.",
        ),
        (
            GPT_OSS,
            "<|channel|>analysis<|message|>Hm.<|end|>"
            "<|start|>assistant<|channel|>final<|message|>Hello.",
            "Hello.",
            "Hm.",
        ),
        (NO_FORMAT, "<think>a</think>b", "<think>a</think>b", ""),
    ],
)
def test_parser_separates_reasoning_from_the_answer(
    reasoning_format: ReasoningFormat, written: str, answer: str, reasoning: str
) -> None:
    assert separate(reasoning_format, [written]) == SeparatedText(answer, reasoning)


@given(MODELS, TEXTS, st.data())
def test_parser_output_does_not_depend_on_chunking(
    reasoning_format: ReasoningFormat, answer: str, data: st.DataObject
) -> None:
    ends = data.draw(st.lists(st.integers(0, len(answer)), max_size=8).map(sorted))
    pieces = [
        answer[begin:end] for begin, end in zip([0, *ends], [*ends, len(answer)], strict=True)
    ]

    assert separate(reasoning_format, pieces) == separate(reasoning_format, [answer])


@given(st.text())
def test_answer_without_tags_is_unchanged(answer: str) -> None:
    assume(
        not any(start_tag in answer for start_tag, _ in ANY_FORMAT.tags)
    )  # Hypothesis reads our source

    assert separate(ANY_FORMAT, list(answer)) == SeparatedText(answer, "")


@given(st.text(alphabet="ab<>/think \n"), st.text(alphabet="ab<> \n"))
def test_reasoning_never_appears_in_the_answer(reasoning: str, answer: str) -> None:
    reasoning = reasoning.replace("</think>", "")

    written = f"<think>{reasoning}</think>{answer}"
    assert separate(ANY_FORMAT, [written]).answer.strip() == answer.strip()


def test_format_is_detected_from_template_and_vocabulary() -> None:
    assert detect_format("{{ content.split('</think>')[-1] }}", []).special_tokens == (
        "<think>",
        "</think>",
    )
    assert detect_format(None, ["[THINK]", "[/THINK]"]).special_tokens == ("[THINK]", "[/THINK]")
    assert GPT_OSS.anywhere
    assert detect_format("{{ bos_token }}", ["<|im_start|>", "<|end|>"]) == ANY_FORMAT


def test_only_trusted_text_at_the_end_of_a_prompt_opens_reasoning() -> None:
    theirs = [TextSpan("Say ", trusted=True), TextSpan("<think>", trusted=False)]

    assert INSIDE.open_end_tag == "</think>"
    assert detect_open_tag(ANY_FORMAT, theirs).open_end_tag is None
    assert (
        detect_open_tag(
            ANY_FORMAT, [TextSpan("<think>\n\n</think>\n\n", trusted=True)]
        ).open_end_tag
        is None
    )
    assert detect_open_tag(ANY_FORMAT, []).open_end_tag is None


async def said_by(*texts: str) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
    for text in texts:
        yield Delta(text)
    yield Finish(FinishReason.LENGTH)


async def test_stop_string_in_reasoning_does_not_end_the_answer() -> None:
    answer = said_by("<think>\nAda: what?</th", "ink>I know.\nA", "da: hm")

    told = [piece async for piece in separate_reasoning(answer, ANY_FORMAT, ["\nAda:"])]

    assert [piece.text for piece in told if isinstance(piece, ReasoningDelta)] == ["\nAda: what?"]
    assert [piece.text for piece in told if isinstance(piece, Delta)] == ["I know."]
    assert told[-1] == Finish(FinishReason.STOP)


async def test_held_back_text_is_returned_at_the_end() -> None:
    told = [
        piece
        async for piece in separate_reasoning(
            said_by("I think <thi", "\nAd"), ANY_FORMAT, ["\nAda:"]
        )
    ]

    assert told == [Delta("I think <thi"), Delta("\nAd"), Finish(FinishReason.LENGTH)]
