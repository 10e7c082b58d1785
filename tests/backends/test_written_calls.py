"""Calls of tools that local models write into their answers: read, bounded, and never shown."""

import json
from collections.abc import AsyncGenerator

import pytest

from bot.backends.chat_completions.deltas import MAX_ARGUMENT_CHARS, MAX_CALLS
from bot.backends.chat_completions.reasoning import detect_format, separate_reasoning
from bot.backends.llama_cpp.tool_calls import WrittenCallParser, separate_calls
from bot.chat.prompt import Delta, Finish, FinishReason, ReasoningDelta
from bot.templates.tool_forms import ToolForm

DICE = {"name": "dice", "arguments": {"dice": "2d6"}}
TAGGED, LISTED, BARE = ToolForm.TAGGED, ToolForm.LISTED, ToolForm.BARE
SECTION, CHANNEL = ToolForm.SECTION, ToolForm.CHANNEL
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
GPT_OSS = 'to=functions.dice <|constrain|>json<|message|>{"dice": "2d6"}'
ONE = f"<tool_call>\n{json.dumps(DICE)}\n</tool_call>"


def read(
    form: ToolForm, pieces: list[str], *, is_cut: bool = False
) -> tuple[str, list[tuple[str, str]]]:
    parser = WrittenCallParser(form, OFFERED)
    shown = "".join(parser.feed(piece) for piece in pieces)
    rest, calls = parser.finish(is_cut=is_cut)
    assert len(calls) <= MAX_CALLS
    assert len({call.id for call in calls}) == len(calls)
    return shown + rest, [(call.name, call.arguments) for call in calls]


def arguments_of(found: tuple[str, list[tuple[str, str]]]) -> list[tuple[str, object]]:
    return [(name, json.loads(arguments)) for name, arguments in found[1]]


@pytest.mark.parametrize(
    ("form", "answer", "text", "names"),
    [
        (TAGGED, ONE, "", ["dice"]),
        (TAGGED, f"Let me roll.\n{ONE}\n{ONE}", "Let me roll.\n", ["dice", "dice"]),
        (TAGGED, ONE.replace("\n</tool_call>", ""), "", ["dice"]),
        (TAGGED, f"{ONE}\n<tool_response>\n12\n</tool_response>It is 12!", "", ["dice"]),
        (TAGGED, f"So:{QWEN}\n{QWEN}", "So:", ["dice", "dice"]),
        (TAGGED, QWEN.replace("\n</parameter>\n</function>\n", ""), "", ["dice"]),
        (TAGGED, GLM + GLM, "", ["dice", "dice"]),
        (TAGGED, GLM.replace("><arg", ">\n<arg").replace("dice\n", "dice"), "", ["dice"]),
        (
            SECTION,
            f"So:<|tool_calls_section_begin|>{KIMI.format(0)}{KIMI.format(1)}<|tool_calls_section_end|>",
            "So:",
            ["dice", "dice"],
        ),
        (SECTION, f"<|tool_calls_section_begin|>{KIMI.format(0)[:-17]}", "", ["dice"]),
        (CHANNEL, f"<|channel|>commentary {GPT_OSS}", "", ["dice"]),
        (CHANNEL, f"<|channel|>commentary {GPT_OSS}<|call|>", "", ["dice"]),
        (CHANNEL, f" {GPT_OSS.replace(' <|con', '<|channel|>commentary <|con')}", "", ["dice"]),
        (CHANNEL, f"Wait.<|channel|>commentary {GPT_OSS}", "Wait.", ["dice"]),
        (LISTED, f"[TOOL_CALLS] {json.dumps([DICE, DICE])}", "", ["dice", "dice"]),
        (LISTED, f"Wait.[TOOL_CALLS]{json.dumps([DICE])}</s>", "Wait.", ["dice"]),
        (LISTED, '[TOOL_CALLS]dice[ARGS]{"dice": "2d6"}', "", ["dice"]),
        (LISTED, '[TOOL_CALLS]dice[CALL_ID]a1B2c3D4e[ARGS]{"dice": "2d6"}', "", ["dice"]),
        (LISTED, '[TOOL_CALLS]dice{"dice": "2d6"}' * 2, "", ["dice", "dice"]),
        (BARE, '{"name": "dice", "parameters": {"dice": "2d6"}}', "", ["dice"]),
        (BARE, '<|python_tag|>{"name": "dice", "parameters": {"dice": "2d6"}}', "", ["dice"]),
        (BARE, f"\n\n{json.dumps(DICE)}; {json.dumps(DICE)}", "", ["dice", "dice"]),
        (BARE, json.dumps({"type": "function", "function": DICE}), "", ["dice"]),
        (BARE, '{"function": "dice", "parameters": {"dice": "2d6"}}', "", ["dice"]),
    ],
)
def test_call_is_read_wherever_the_answer_is_cut(
    form: ToolForm, answer: str, text: str, names: list[str]
) -> None:
    whole = read(form, [answer])
    assert whole[0] == text
    assert arguments_of(whole) == [(name, {"dice": "2d6"}) for name in names]
    assert read(form, list(answer)) == whole
    for at in range(len(answer)):
        assert read(form, [answer[:at], answer[at:]]) == whole


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (TAGGED, "1 < 2, <tool, <tool_calls are words, and so is <tool_cal"),
        (TAGGED, '{"name": "dice", "parameters": {}}'),
        (LISTED, "[TOOL_CALL is no mark, and [TOOL"),
        (BARE, "A word, then {}"),
        (SECTION, "<|tool_calls are words, and so is <|tool_calls_sec"),
        (CHANNEL, "I go to=function, and <|chan"),
        (CHANNEL, "<|channel|>commentary without an address"),
        (BARE, '{"name": "Nora", "age": 31}'),  # JSON that somebody asked for
        (BARE, '{"name": "dice", "parameters": {"dice": '),
        (BARE, '{"deep": ' * 3000),
        (BARE, "<|python"),
        (BARE, "  "),
        (BARE, json.dumps({"name": "dice", "parameters": {"text": "x" * 3 * MAX_ARGUMENT_CHARS}})),
    ],
)
def test_what_is_no_call_stays_text(form: ToolForm, answer: str) -> None:
    assert read(form, [answer]) == (answer, [])
    if len(answer) < 1000:
        assert read(form, list(answer)) == (answer, [])


@pytest.mark.parametrize(
    ("form", "answer", "call"),
    [
        (TAGGED, '<tool_call>{"name": "dice", "arguments": {"dice": }</tool_call>', "dice"),
        (TAGGED, "<tool_call>roll two dice</tool_call>", "unknown"),
        (TAGGED, '<tool_call>{"name": 7, "arguments": {}}</tool_call>', "unknown"),
        (TAGGED, "<tool_call>" + "[" * 20_000 + "</tool_call>", "unknown"),
        (TAGGED, '<tool_call>{"name": "dice", "arguments": "2d6"}</tool_call>', "dice"),
        (TAGGED, "<tool_call><function=></tool_call>", "unknown"),
        (SECTION, "<|tool_calls_section_begin|><|tool_call_begin|>", None),
        (
            SECTION,
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.dice:0"
            "<|tool_call_argument_begin|>2d6<|tool_call_end|>",
            "dice",
        ),
        (CHANNEL, "<|channel|>commentary to=functions.dice json<|message|>2d6", "dice"),
        (LISTED, "[TOOL_CALLS] dice 2d6", "unknown"),
        (LISTED, '[TOOL_CALLS]dice[ARGS]{"dice": ', "dice"),
        (LISTED, "[TOOL_CALLS] [7, null]", None),
    ],
)
def test_broken_call_is_not_shown_and_the_model_is_told(
    form: ToolForm, answer: str, call: str | None
) -> None:
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
def test_argument_between_tags_is_what_the_tool_takes(
    answer: str, written: str, value: object
) -> None:
    found = read(TAGGED, [answer.replace("{}", written)])
    assert arguments_of(found) == [("dice", {"dice": "2d6", "times": value})]


def test_calls_are_bounded_in_number_and_size() -> None:
    many = f"<tool_call>{json.dumps(DICE)}</tool_call>" * 200
    assert [name for name, _ in read(TAGGED, [many])[1]] == ["dice"] * MAX_CALLS
    long = json.dumps({"name": "dice", "arguments": {"dice": "x" * 1_000_000}})
    text, [(name, arguments)] = read(TAGGED, ["<tool_call>", *[long[:1000]] * 5000])
    assert (text, name) == ("", "dice")
    assert len(arguments) <= MAX_ARGUMENT_CHARS
    section = f"<|tool_calls_section_begin|>{KIMI.format(0) * 50}"
    assert len(read(SECTION, [section])[1]) == MAX_CALLS
    assert len(read(TAGGED, [GLM * 200])[1]) == MAX_CALLS
    assert read(LISTED, [f"[TOOL_CALLS] {json.dumps([DICE] * 50)}"])[1] == (
        [("dice", '{"dice": "2d6"}')] * MAX_CALLS
    )


@pytest.mark.parametrize("form", [TAGGED, LISTED, SECTION])
def test_call_that_the_output_limit_has_cut_is_left_out(form: ToolForm) -> None:
    cut = {
        TAGGED: '<tool_call>{"name": "dice", "argu',
        LISTED: '[TOOL_CALLS] [{"name": "dice',
        SECTION: f"<|tool_calls_section_begin|>{KIMI.format(0)[:-25]}",
    }
    assert read(form, [cut[form]], is_cut=True) == ("", [])


async def test_calls_come_with_the_finish_and_thoughts_pass() -> None:
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


async def test_call_of_gpt_oss_comes_behind_its_thoughts() -> None:
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
