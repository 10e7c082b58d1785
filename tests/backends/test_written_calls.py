"""Tool calls in the text of local models are parsed, limited, and never shown in a chat."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from bot.backends.chat_completions.deltas import MAX_ARGUMENT_CHARS, MAX_TOOL_CALLS
from bot.backends.chat_completions.reasoning import detect_format, separate_reasoning
from bot.backends.llama_cpp.tool_calls import TextCallParser, separate_calls
from bot.chat.prompt import Delta, Finish, FinishReason, ReasoningDelta
from bot.templates.tool_forms import ToolCallFormat

DICE = {"name": "dice", "arguments": {"dice": "2d6"}}
TAGGED, LISTED, BARE = ToolCallFormat.TAGGED, ToolCallFormat.LISTED, ToolCallFormat.BARE
SECTION, CHANNEL = ToolCallFormat.SECTION, ToolCallFormat.CHANNEL
OFFERED = {
    "dice": {"properties": {"dice": {"type": "string"}, "times": {"type": "integer"}}},
    "time": {},
}
QWEN = (
    "<tool_call>\n<function=dice>\n<parameter=dice>\n2d6\n</parameter>\n</function>\n</tool_call>"
)
GLM = "<tool_call>dice<arg_key>dice</arg_key><arg_value>2d6</arg_value></tool_call>"
KIMI = (
    "<|tool_call_begin|>functions.dice:{}<|tool_call_argument_begin|>"
    '{{"dice": "2d6"}}<|tool_call_end|>'
)
CASES = json.loads(Path(__file__).with_name("written_calls.json").read_text("utf-8"))
GPT_OSS = 'to=functions.dice <|constrain|>json<|message|>{"dice": "2d6"}'


def read(
    form: str, pieces: list[str], *, is_cut: bool = False
) -> tuple[str, list[tuple[str, str]]]:
    parser = TextCallParser(ToolCallFormat(form), OFFERED)
    shown = "".join(parser.feed(piece) for piece in pieces)
    rest, calls = parser.finish(is_cut=is_cut)
    assert len(calls) <= MAX_TOOL_CALLS
    assert len({call.id for call in calls}) == len(calls)
    return shown + rest, [(call.name, call.arguments) for call in calls]


def parse_arguments(found: tuple[str, list[tuple[str, str]]]) -> list[tuple[str, object]]:
    return [(name, json.loads(arguments)) for name, arguments in found[1]]


@pytest.mark.parametrize(("form", "answer", "text", "names"), CASES["calls"])
def test_call_is_parsed_from_chunks_of_any_size(
    form: str, answer: str, text: str, names: list[str]
) -> None:
    whole = read(form, [answer])
    assert whole[0] == text
    assert parse_arguments(whole) == [(name, {"dice": "2d6"}) for name in names]
    assert read(form, list(answer)) == whole
    for at in range(len(answer)):
        assert read(form, [answer[:at], answer[at:]]) == whole


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        *CASES["texts"],
        (BARE, '{"deep": ' * 3000),
        (BARE, json.dumps({"name": "dice", "parameters": {"text": "x" * 3 * MAX_ARGUMENT_CHARS}})),
    ],
)
def test_text_that_is_not_a_call_is_unchanged(form: str, answer: str) -> None:
    assert read(form, [answer]) == (answer, [])
    if len(answer) < 1000:
        assert read(form, list(answer)) == (answer, [])


@pytest.mark.parametrize(
    ("form", "answer", "call"),
    [
        *CASES["broken"],
        (TAGGED, "<tool_call>" + "[" * 20_000 + "</tool_call>", "unknown"),
    ],
)
def test_invalid_call_is_reported_to_the_model(form: str, answer: str, call: str | None) -> None:
    text, calls = read(form, [answer])
    assert text == ""
    assert [name for name, _ in calls] == ([call] if call else [])


@pytest.mark.parametrize(
    "answer",
    [
        QWEN.replace("</parameter>", "</parameter>\n<parameter=times>\n{}\n</parameter>"),
        GLM.replace("</tool", "<arg_key>times</arg_key><arg_value>{}</arg_value></tool"),
    ],
)
@pytest.mark.parametrize(
    ("written", "value"), [("3", 3), ("three", "three"), ("[" * 5000, "[" * 5000)]
)
def test_argument_in_tags_is_converted_to_the_declared_type(
    answer: str, written: str, value: object
) -> None:
    found = read(TAGGED, [answer.replace("{}", written)])
    assert parse_arguments(found) == [("dice", {"dice": "2d6", "times": value})]


def test_number_and_size_of_calls_are_limited() -> None:
    many = f"<tool_call>{json.dumps(DICE)}</tool_call>" * 200
    assert [name for name, _ in read(TAGGED, [many])[1]] == ["dice"] * MAX_TOOL_CALLS
    long = json.dumps({"name": "dice", "arguments": {"dice": "x" * 1_000_000}})
    text, [(name, arguments)] = read(TAGGED, ["<tool_call>", *[long[:1000]] * 5000])
    assert (text, name) == ("", "dice")
    assert len(arguments) <= MAX_ARGUMENT_CHARS
    section = f"<|tool_calls_section_begin|>{KIMI.format(0) * 50}"
    assert len(read(SECTION, [section])[1]) == MAX_TOOL_CALLS
    assert len(read(TAGGED, [GLM * 200])[1]) == MAX_TOOL_CALLS
    assert read(LISTED, [f"[TOOL_CALLS] {json.dumps([DICE] * 50)}"])[1] == (
        [("dice", '{"dice": "2d6"}')] * MAX_TOOL_CALLS
    )


@pytest.mark.parametrize("form", [TAGGED, LISTED, SECTION])
def test_call_cut_off_by_the_output_limit_is_dropped(form: ToolCallFormat) -> None:
    cut = {
        TAGGED: '<tool_call>{"name": "dice", "argu',
        LISTED: '[TOOL_CALLS] [{"name": "dice',
        SECTION: f"<|tool_calls_section_begin|>{KIMI.format(0)[:-25]}",
    }
    assert read(form, [cut[form]], is_cut=True) == ("", [])


async def test_calls_in_the_answer_but_not_in_reasoning_arrive_with_the_finish_event() -> None:
    async def answer() -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
        yield ReasoningDelta("<tool_call> in thoughts is none")
        yield Delta("So: <tool")
        yield Delta('_call>{"name": "time", "arguments": {}}</tool_call>')
        yield Finish(FinishReason.STOP)

    events = [event async for event in separate_calls(answer(), TAGGED, OFFERED)]
    *before, finish = events
    assert before == [ReasoningDelta("<tool_call> in thoughts is none"), Delta("So: ")]
    assert isinstance(finish, Finish)
    assert [(call.name, call.arguments) for call in finish.tool_calls] == [("time", "{}")]


async def test_tool_call_of_gpt_oss_is_found_after_its_reasoning() -> None:
    async def answer() -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
        for letter in (
            "<|channel|>analysis<|message|>Dice are needed.<|end|>"
            f"<|start|>assistant<|channel|>commentary {GPT_OSS}"
        ):
            yield Delta(letter)
        yield Finish(FinishReason.STOP)

    known = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"]
    thought = separate_reasoning(answer(), detect_format(None, known), ())
    events = [event async for event in separate_calls(thought, CHANNEL, OFFERED)]
    *thoughts, finish = events
    assert "".join(one.text for one in thoughts if isinstance(one, ReasoningDelta)) == (
        "Dice are needed."
    )
    assert not [one for one in thoughts if isinstance(one, Delta)]
    assert isinstance(finish, Finish)
    assert [(call.name, call.arguments) for call in finish.tool_calls] == [
        ("dice", '{"dice": "2d6"}')
    ]
