"""What a reasoning model thinks is told from what it says, however its words come in pieces."""

from collections.abc import AsyncGenerator, Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bot.backends.chat_completions.reasoning import (
    ANY,
    NONE,
    Cut,
    Thinking,
    Thoughts,
    opened_by,
    separated,
    thinking_of,
)
from bot.chat.prompt import Delta, Finish, FinishReason, ReasoningDelta
from bot.templates.text_spans import TextSpan

GPT_OSS = thinking_of(None, ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"])
COHERE = thinking_of(
    "<|START_THINKING|><|END_THINKING|><|START_RESPONSE|>{{ x }}<|END_RESPONSE|>", []
)
INSIDE = opened_by(ANY, [TextSpan("hi", trusted=False), TextSpan("<|assistant|>\n<think>\n", True)])
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
MODELS = st.sampled_from([ANY, NONE, GPT_OSS, COHERE, INSIDE])


def cut(thinking: Thinking, pieces: Sequence[str]) -> Cut:
    thoughts = Thoughts(thinking)
    cuts = [*(thoughts.feed(piece) for piece in pieces), thoughts.rest()]
    return Cut("".join(each.said for each in cuts), "".join(each.thought for each in cuts))


@pytest.mark.parametrize(
    ("thinking", "answer", "said", "thought"),
    [
        (ANY, "Hello.", "Hello.", ""),
        (ANY, "<think>\nHm.\n</think>\n\nHello.", "Hello.", "\nHm.\n"),
        (ANY, "\n<think>a</think> <think>b</think>Hi", "Hi", "ab"),
        (ANY, "<think>never an end", "", "never an end"),
        (ANY, "[THINK]Hm.[/THINK]Hello.", "Hello.", "Hm."),
        (ANY, "<seed:think>Hm.</seed:think>Hello.", "Hello.", "Hm."),
        (ANY, "<|channel>thought\nHm.<channel|>Hello.", "Hello.", "\nHm."),
        (ANY, "The mark <think> opens.", "The mark <think> opens.", ""),
        (ANY, "<thinner> is no mark", "<thinner> is no mark", ""),
        (ANY, "<thi", "<thi", ""),
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
        (NONE, "<think>a</think>b", "<think>a</think>b", ""),
    ],
)
def test_thoughts_are_told_from_words(
    thinking: Thinking, answer: str, said: str, thought: str
) -> None:
    assert cut(thinking, [answer]) == Cut(said, thought)


@given(MODELS, TEXTS, st.data())
def test_pieces_do_not_matter(thinking: Thinking, answer: str, data: st.DataObject) -> None:
    ends = data.draw(st.lists(st.integers(0, len(answer)), max_size=8).map(sorted))
    pieces = [
        answer[begin:end] for begin, end in zip([0, *ends], [*ends, len(answer)], strict=True)
    ]

    assert cut(thinking, pieces) == cut(thinking, [answer])


@given(st.text())
def test_answer_without_marks_is_left_as_it_is(answer: str) -> None:
    assume(not any(opens in answer for opens, _ in ANY.marks))  # Hypothesis reads our source

    assert cut(ANY, list(answer)) == Cut(answer, "")


@given(st.text(alphabet="ab<>/think \n"), st.text(alphabet="ab<> \n"))
def test_nothing_of_a_thought_is_said(thought: str, said: str) -> None:
    thought = thought.replace("</think>", "")

    assert cut(ANY, [f"<think>{thought}</think>{said}"]).said.strip() == said.strip()


def test_marks_of_a_model_are_found_in_its_template_and_its_vocabulary() -> None:
    assert thinking_of("{{ content.split('</think>')[-1] }}", []).words == ("<think>", "</think>")
    assert thinking_of(None, ["[THINK]", "[/THINK]"]).words == ("[THINK]", "[/THINK]")
    assert GPT_OSS.anywhere
    assert thinking_of("{{ bos_token }}", ["<|im_start|>", "<|end|>"]) == ANY


def test_only_the_templates_own_end_opens_a_thought() -> None:
    theirs = [TextSpan("Say ", trusted=True), TextSpan("<think>", trusted=False)]

    assert INSIDE.opened == "</think>"
    assert opened_by(ANY, theirs).opened is None
    assert opened_by(ANY, [TextSpan("<think>\n\n</think>\n\n", trusted=True)]).opened is None
    assert opened_by(ANY, []).opened is None


async def said_by(*texts: str) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
    for text in texts:
        yield Delta(text)
    yield Finish(FinishReason.LENGTH)


async def test_stop_string_in_a_thought_does_not_end_the_answer() -> None:
    answer = said_by("<think>\nAda: what?</th", "ink>I know.\nA", "da: hm")

    told = [piece async for piece in separated(answer, ANY, ["\nAda:"])]

    assert [piece.text for piece in told if isinstance(piece, ReasoningDelta)] == ["\nAda: what?"]
    assert [piece.text for piece in told if isinstance(piece, Delta)] == ["I know."]
    assert told[-1] == Finish(FinishReason.STOP)


async def test_what_was_held_back_is_said_at_the_end() -> None:
    told = [piece async for piece in separated(said_by("I think <thi", "\nAd"), ANY, ["\nAda:"])]

    assert told == [Delta("I think <thi"), Delta("\nAd"), Finish(FinishReason.LENGTH)]
