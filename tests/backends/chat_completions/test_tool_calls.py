"""Tools on the wire: offered, called in deltas that are cut anywhere, answered in messages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.backends.tool_calls import ToolCallParser
from bot.chat.tool import ToolCall, ToolExchange, ToolSpec
from tests.backends.asking import ask, prompt
from tests.backends.conftest import Connect
from tests.rigs.fake_openai import DONE, STOP, FakeOpenAI, Script, chunk

SPEC = ToolSpec("dice", "Roll dice.", {"type": "object", "properties": {}})
CALL = ToolCall("c1", "dice", '{"dice": "2d6"}')


def delta(index: int, **parts: Any) -> dict[str, Any]:
    identifier = {"id": parts.pop("id")} if "id" in parts else {}
    return {"index": index, "type": "function", "function": parts, **identifier}


async def test_tools_and_exchanges_are_sent(connect: Connect, service: FakeOpenAI) -> None:
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


async def test_calls_are_put_together_from_their_deltas(
    connect: Connect, service: FakeOpenAI
) -> None:
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


async def test_text_beside_a_call_is_kept(connect: Connect, service: FakeOpenAI) -> None:
    both = chunk("Hm.", tool_calls=[delta(0, id="c1", name="dice", arguments="{}")])
    service.plays(Script([both, STOP, DONE]))

    answer = await ask(connect(), prompt("roll", tools=(SPEC,)))

    assert answer.text == "Hm."
    assert answer.finish is not None
    assert answer.finish.tool_calls == (ToolCall("c1", "dice", "{}"),)


@pytest.mark.parametrize(
    "deltas",
    [None, "x", {}, [None], [5], [{"function": 5}], [{"index": "a"}], [delta(0, arguments="{}")]],
)
def test_what_is_no_call_is_left_out(deltas: object) -> None:
    parser = ToolCallParser()
    parser.feed(deltas)
    assert parser.calls == ()


def test_calls_and_arguments_are_bounded() -> None:
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
def test_whatever_a_service_sends_is_parsed(chunks: list[object]) -> None:
    parser = ToolCallParser()
    for one in chunks:
        parser.feed(one)
    assert all(one.name for one in parser.calls)
