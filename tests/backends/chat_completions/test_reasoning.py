"""Reasoning is separated from the answer, however the text is split into chunks."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

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
from bot.backends.chat_completions.reasoning_families import FIRST_CHARS
from bot.chat.prompt import Delta, Finish, FinishReason, ReasoningDelta
from bot.templates.control_tokens import TextSpan

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
    "<|end|>",
    "<answer>",
    "</answer>",
    "<reasoning>",
    "`",
    "```\n",
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
    answer = thoughts = ""
    retracts = False
    for part in [*map(parser.feed, pieces), parser.flush()]:
        if part.retracts:
            answer, thoughts, retracts = "", thoughts + answer, True
        answer, thoughts = answer + part.answer, thoughts + part.reasoning
    return SeparatedText(answer, thoughts, retracts)


THINK_TAGS = [
    ("<think>", "</think>"),
    ("<THINK>", "</THINK>"),
    ('<think duration="3">', "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<Thought>", "</Thought>"),
    ("<reason>", "</reason>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<ifm|think_fast>", "</ifm|think_fast>"),
    ("<SCRATCHPAD>", "</SCRATCHPAD>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("[unused16]", "[unused17]"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|thought_start|>", "<|thought_end|>"),
    ("<|think:start|>", "<|think:end|>"),
    ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
]
MORE_TAGS = [
    ("<details type=\"reasoning\" done=\"true\">", "</details>"),
    ("<|think|>", "<|end|><|begin|>assistant<|content|>"),
    ("<|think|>", "<|/think|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("<|start|>assistant<|channel|>analysis<|message|>", "<|end|><|channel|>final<|message|>"),
    ("<|channel|>commentary to=functions.x <|constrain|>json<|message|>",
     "<|call|><|start|>assistant<|channel|>final<|message|>"),
    ("<|start|>assistant to=functions.x<|channel|>commentary json<|message|>",
     "<|call|><|start|>assistant<|channel|>final<|message|>"),
    ("to=self<|message|>", "<|eom|><|start|>assistant to=user<|message|>"),
    ("<|content_thinking|>", "<|end_message|><|message_model|><|content_text|>"),
    ("Here is my thought process:", "Here is my response:"),
    ("Here's my thought process:", "Here's my response:"),
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
]  # fmt: skip
WRAPPERS = [
    ("", ""),
    ("<answer>\n", "\n</answer>"),
    ("<Output>", "</Output>"),
    ("<|begin_of_solution|>\n\n", "<|end_of_solution|>"),
    ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ("<|open|>response<|sep|>", "<|close|>response<|sep|><|close|>message<|sep|>"),
    ("<|begin_of_box|>", "<|end_of_box|>"),
    ("", "<|return|>"),
    ("", "\n[END FINAL RESPONSE]\n<|end|>"),
]


@pytest.mark.parametrize(("start", "end"), [*THINK_TAGS, *MORE_TAGS])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_reasoning_of_every_family_is_separated_for_an_unknown_model(
    start: str, end: str, size: int
) -> None:
    for opened, closed in WRAPPERS:
        written = f"{start}\nHm, 1 < 2.\n{end}\n\n{opened}Hello, 2 > 1.{closed}"
        pieces = [written[at : at + size] for at in range(0, len(written), size)]
        separated = separate(ANY_FORMAT, pieces)
        assert separated.answer.strip() == "Hello, 2 > 1."
        assert separated.reasoning.strip() == "Hm, 1 < 2."


@pytest.mark.parametrize("end", [end for _, end in THINK_TAGS] + [
    "<|end|><|start|>assistant<|channel|>final<|message|>", "<|START_RESPONSE|>",
    "[BEGIN FINAL RESPONSE]",
])  # fmt: skip
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_end_tag_alone_makes_everything_before_it_reasoning(end: str, size: int) -> None:
    written = f"The user says hi.\nI should greet.\n{end}\n\nHello!"
    pieces = [written[at : at + size] for at in range(0, len(written), size)]
    separated = separate(ANY_FORMAT, pieces)
    assert (separated.answer, separated.retracts) == ("Hello!", True)
    again = ReasoningParser(ReasoningFormat(assumed_end=end))
    assert "".join(again.feed(piece).answer for piece in pieces[:-1]) in "Hello!"
    assert separate(ReasoningFormat(assumed_end=end), pieces).answer == "Hello!"
    assert separate(ReasoningFormat(assumed_end=end), ["Hi", " there."]).answer == "Hi there."


@pytest.mark.parametrize(
    "text",
    [
        "The mark <think> opens.",
        "Put it between `<think>` and `</think>`, please.",
        'It ends with "</think>" as always.',
        "As in:\n\n```xml\n<think>\nHm.\n</think>\n```\n\nThat is all.",
        "<thinner> is no mark",
        "<thi",
        "<|start|> begins a header",
        "1 < 2 [and] <b>bold</b> [THIS](https://example.com)",
        "Here's my thought process: first, look around.",
        "analysis is the word",
        "A line is <s>struck</s> so.",
        "Nor is it <s>struck</s>",
        "A turn ends with `<|im_end|>`",
        "<answer>42</answer>",
        "The <output> element, and <response>.",
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_text_about_tags_is_text(text: str, size: int) -> None:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert separate(ANY_FORMAT, pieces) == SeparatedText(text, "")


@pytest.mark.parametrize(
    ("reasoning_format", "written", "answer", "reasoning"),
    [
        (ANY_FORMAT, "Hello.", "Hello.", ""),
        (ANY_FORMAT, "<think>a</think>Hello.<|im_end|>\n<|endoftext|>\n", "Hello.", "a"),
        *((ANY_FORMAT, f"Hello.{end}", "Hello.", "") for end in (
            "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>", "</s>", "<|END_OF_TURN_TOKEN|>",
            "<｜end▁of▁sentence｜>",
        )),
        (ANY_FORMAT, "analysiswe greet.assistantfinalHello!", "Hello!", "we greet."),
        (ANY_FORMAT, "assistantanalysisHm.assistantfinalHello!", "Hello!", "Hm."),
        (ANY_FORMAT, "\n<think>a</think> <think>b</think>Hi", "Hi", "ab"),
        (ANY_FORMAT, "<think>never an end", "", "never an end"),
        (ANY_FORMAT, "Sure. <think>hidden</think>Here", "Sure. Here", "hidden"),
        (ANY_FORMAT, "Sure.\n<think>hidden", "Sure.\n", "hidden"),
        (ANY_FORMAT, "<think>a <think> b</think> c\n</think>\nHi", "Hi", "a <think> bc\n"),
        (ANY_FORMAT, "<think>a</think>Close it with </think> later.",
         "Close it with </think> later.", "a"),
        (ANY_FORMAT, "Hello!\n</think>", "Hello!\n", ""),
        (ANY_FORMAT, "</think>\n\nHello!", "Hello!", ""),
        (ANY_FORMAT, "It is <|begin_of_box|>42<|end_of_box|>.", "It is 42.", ""),
        (INSIDE, "Hm.\n</think>\n\nHello.", "Hello.", "Hm.\n"),
        (ANY_FORMAT, "analysisWe greet.assistantfinalHello.", "Hello.", "We greet."),
        (INSIDE, "Hm, too long", "", "Hm, too long"),
        (GPT_OSS, "<|channel|>final<|message|>Hello.", "Hello.", ""),
        (NO_FORMAT, "<think>a</think>b", "<think>a</think>b", ""),
    ],
)  # fmt: skip
def test_parser_separates_reasoning_from_the_answer(
    reasoning_format: ReasoningFormat, written: str, answer: str, reasoning: str
) -> None:
    assert separate(reasoning_format, [written])[:2] == (answer, reasoning)


@given(MODELS, TEXTS, st.data())
def test_parser_output_does_not_depend_on_chunking(
    reasoning_format: ReasoningFormat, answer: str, data: st.DataObject
) -> None:
    reasoning_format = replace(
        reasoning_format, assumed_end=data.draw(st.sampled_from([None, "</think>"]))
    )
    ends = data.draw(st.lists(st.integers(0, len(answer)), max_size=8).map(sorted))
    pieces = [
        answer[begin:end] for begin, end in zip([0, *ends], [*ends, len(answer)], strict=True)
    ]

    assert separate(reasoning_format, pieces) == separate(reasoning_format, [answer])


@given(st.text())
def test_answer_without_tags_is_unchanged(answer: str) -> None:
    assume(not FIRST_CHARS.intersection(answer))  # Hypothesis reads our source

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
            keeps_calls=True,
            end_tokens=frozenset({"</think>"}),
        )
    )
    assert detect_format(None, ["[THINK]", "[/THINK]"]).special_tokens == ("[THINK]", "[/THINK]")
    assert GPT_OSS.special_tokens == ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
    assert GPT_OSS.end_tokens == {"<|end|>"}
    assert detect_format("{{ bos_token }}", ["<|im_start|>", "<|end|>"]) == ANY_FORMAT


def test_only_trusted_text_at_the_end_of_a_prompt_opens_reasoning() -> None:
    theirs = [TextSpan("Say ", trusted=True), TextSpan("<think>", trusted=False)]

    assert INSIDE.open_tag == "<think>"
    assert detect_open_tag(ANY_FORMAT, theirs).open_tag is None
    assert (
        detect_open_tag(ANY_FORMAT, [TextSpan("<think>\n\n</think>\n\n", trusted=True)]).open_tag
        is None
    )
    assert detect_open_tag(ANY_FORMAT, []).open_tag is None


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

    *text, finish = told
    assert "".join(one.text for one in text if isinstance(one, Delta)) == "I think <thi\nAd"
    assert finish == Finish(FinishReason.LENGTH)
