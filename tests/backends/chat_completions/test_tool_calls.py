"""Tools in requests and responses: specs, calls in split deltas, and results as messages."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.backends.chat_completions.deltas import ToolCallParser
from bot.chat.prompt import ToolCall, ToolExchange, ToolSpec
from bot.replying.generate import generate_answer
from bot.tools import Toolbox, dice_tool
from tests.backends.asking import ask, prompt
from tests.backends.conftest import Connect
from tests.fakes import FakeClock
from tests.rigs.fake_openai import DONE, STOP, FakeOpenAI, Script, chunk, event

SPEC = ToolSpec("dice", "Roll dice.", {"type": "object", "properties": {}})
CALL = ToolCall("c1", "dice", '{"dice": "2d6"}')


def delta(index: int, **parts: Any) -> dict[str, Any]:
    identifier = {"id": parts.pop("id")} if "id" in parts else {}
    return {"index": index, "type": "function", "function": parts, **identifier}


async def test_tools_and_earlier_calls_are_sent(connect: Connect, service: FakeOpenAI) -> None:
    exchange = ToolExchange("", (CALL,), ("[result]\n> 7",))
    await ask(connect(), prompt("roll", tools=(SPEC,), tool_exchanges=(exchange,)))
    body = service.log[-1]["body"]
    assert body["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "dice",
                "description": "Roll dice.",
                "parameters": {"type": "object", "properties": {}},
            },
        }
    ]
    function = {"name": "dice", "arguments": '{"dice": "2d6"}'}
    assert body["messages"] == [
        {"role": "user", "content": "roll"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "[result]\n> 7"},
    ]


async def test_no_tools_are_sent_by_default(connect: Connect, service: FakeOpenAI) -> None:
    await ask(connect())
    assert "tools" not in service.log[-1]["body"]


async def test_calls_are_joined_from_their_deltas(connect: Connect, service: FakeOpenAI) -> None:
    service.plays(
        Script(
            [
                chunk("Let me see.", role="assistant"),
                chunk(tool_calls=[delta(0, id="c1", name="dice", arguments="")]),
                chunk(tool_calls=[delta(0, arguments='{"dice"')]),
                chunk(
                    "", tool_calls=[delta(0, arguments=': "2d6"}'), delta(1, id="c2", name="time")]
                ),
                chunk(finish="tool_calls"),
                DONE,
            ]
        )
    )

    answer = await ask(connect(), prompt("roll", tools=(SPEC,)))

    assert answer.text == "Let me see."
    assert answer.finish is not None
    assert answer.finish.tool_calls == (CALL, ToolCall("c2", "time", ""))


async def test_end_tag_before_a_call_ends_reasoning(connect: Connect, service: FakeOpenAI) -> None:
    called = chunk(tool_calls=[delta(0, id="c1", name="dice", arguments="{}")])
    service.plays([chunk("Hm.\n</think>\n\n") + called + STOP + DONE])
    assert (await ask(connect())).text == ""


DICE = '{"throw": "1d6"}'
HALF, REST = DICE[:5], DICE[5:]
CALLED = {"id": "a", "function": {"name": "dice", "arguments": DICE}}
ODD_CALLS = json.loads(Path(__file__).with_name("odd_calls.json").read_text("utf-8"))


@pytest.mark.parametrize("name", ODD_CALLS)
async def test_unusual_deltas_are_read_as_the_intended_calls(
    connect: Connect, service: FakeOpenAI, name: str
) -> None:
    deltas = [chunk(tool_calls=each) for each in ODD_CALLS[name]["deltas"]]
    service.plays([*deltas, chunk(finish="tool_calls"), DONE])

    answer = await ask(connect(), prompt("roll", tools=(SPEC,)))

    assert answer.finish is not None
    calls = [[one.id, one.name, one.arguments] for one in answer.finish.tool_calls]
    assert calls == ODD_CALLS[name]["calls"]


@pytest.mark.parametrize("delta", [{}, {"role": "assistant", "content": ""}, None])
async def test_complete_message_after_its_deltas_duplicates_nothing(
    connect: Connect, service: FakeOpenAI, delta: object
) -> None:
    message = {
        "role": "assistant",
        "content": "Hm.",
        "reasoning": "Why?",
        "tool_calls": [CALLED],
    }
    choice = {"index": 0, "delta": delta, "message": message, "finish_reason": "tool_calls"}
    service.plays(
        [
            chunk(reasoning="Why?") + chunk("Hm."),
            chunk(tool_calls=[{"index": 0, **CALLED}]),
            event({"choices": [choice]}),
            DONE,
        ]
    )
    answer = await ask(connect(), prompt("roll", tools=(SPEC,)))
    assert (answer.text, answer.reasoning) == ("Hm.", ["Why?"])
    assert answer.finish is not None
    assert answer.finish.tool_calls == (ToolCall("a", "dice", DICE),)
    assert answer.finish.attached == {"reasoning": "Why?"}


async def test_call_in_the_older_format_is_parsed(connect: Connect, service: FakeOpenAI) -> None:
    pieces = [{"name": "dice", "arguments": HALF}, {"arguments": REST}]
    service.plays(
        [*(chunk(function_call=one) for one in pieces), chunk(finish="function_call"), DONE]
    )
    answer = await ask(connect(), prompt("roll", tools=(SPEC,)))
    assert answer.finish is not None
    assert answer.finish.tool_calls == (ToolCall("call_0", "dice", DICE),)


SIGNED = {"google": {"thought_signature": "c2ln"}}
ATTACHED = json.loads(Path(__file__).with_name("attached.json").read_text("utf-8"))


@pytest.mark.parametrize(("deltas", "returned"), ATTACHED["cases"])
async def test_reasoning_is_sent_back_with_the_calls_of_each_round(
    connect: Connect,
    service: FakeOpenAI,
    deltas: list[dict[str, Any]],
    returned: dict[str, Any],
) -> None:
    called = [
        {"id": "a", "index": 0, "extra_content": SIGNED, "function": {
            "name": "dice", "arguments": '{"dice": "1d6"}', "thought_signature": "c2ln"}},
        {"id": "b", "index": 1, "function": {"name": "dice", "arguments": '{"dice": "1d4"}'}},
    ]  # fmt: skip
    thinks = b"".join(chunk(**one) for one in deltas)
    calls = chunk(tool_calls=called) + chunk(finish="tool_calls")
    service.plays([thinks + calls, DONE], [calls, DONE])
    rounds = Toolbox([dice_tool(lambda: 0.5)], FakeClock())
    answer = await generate_answer(
        connect(), prompt("roll"), lambda _: None, lambda _: None, FakeClock(), tools=rounds
    )
    assert answer.text == "Hello there"
    for number in (1, 2):  # the second round still has what came with the first
        _, first, _, _, *more = service.log[number]["body"]["messages"]
        sent = [{"type": "function", **one} for one in called]
        for one in sent:
            del one["index"]
        assert first == {"role": "assistant", "content": None, "tool_calls": sent, **returned}
        assert [one.keys() for one in more[:1]] == [{"role", "content", "tool_calls"}] * (
            number - 1
        )


@pytest.mark.parametrize(
    "deltas",
    [None, "x", {}, [None], [5], [{"function": 5}], [{"index": "a"}], [delta(0, arguments="{}")]],
)
def test_invalid_call_is_dropped(deltas: object) -> None:
    parser = ToolCallParser()
    parser.feed(deltas)
    assert parser.calls == ()


def test_number_of_calls_and_size_of_arguments_are_limited() -> None:
    parser = ToolCallParser()
    for number in range(1000):
        parser.feed([delta(number, name="n" * 1000, arguments="x" * 100_000)])
    assert len(parser.calls) == 8
    assert {(len(one.name), len(one.arguments)) for one in parser.calls} == {(64, 16 * 1024)}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
)


@given(st.lists(json_values))
def test_arbitrary_json_is_accepted(chunks: list[object]) -> None:
    parser = ToolCallParser()
    for one in chunks:
        parser.feed(one)
    assert all(one.name for one in parser.calls)
