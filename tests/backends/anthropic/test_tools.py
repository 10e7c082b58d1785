"""Tools in Anthropic's format: specs, calls, and results as content blocks."""

import json
from typing import Any

import pytest

from bot.chat.prompt import Finish, FinishReason, ToolCall, ToolExchange, ToolSpec, Usage
from bot.replying.generate import generate_answer
from bot.tools import Toolbox, dice_tool
from tests.backends.anthropic.conftest import Connect
from tests.backends.asking import ask, prompt
from tests.fakes import FakeClock
from tests.rigs.fake_anthropic import (
    STOP,
    FakeAnthropic,
    block,
    event,
    finish,
    problem_of,
    signature,
    start,
    text,
    thinking,
    tool_use,
)
from tests.rigs.fake_openai import Script

SPEC = ToolSpec("dice", "Roll dice.", {"type": "object", "properties": {}})
CALL = ToolCall("toolu_1", "dice", '{"dice": "2d6"}')
CALLS = [
    start()
    + block(text("Let me see."))
    + tool_use("toolu_1", "dice", ['{"dice"', ': "2d6"}'], 1)
    + tool_use("toolu_2", "time", [], 2)
    + finish("tool_use")
    + STOP
]


async def send_and_get_body(
    connect: Connect, service: FakeAnthropic, **parts: Any
) -> dict[str, Any]:
    answer = await ask(connect(), prompt("roll", **parts))
    assert answer.error is None
    body: dict[str, Any] = service.log[-1]["body"]
    assert problem_of(body) is None
    return body


async def test_tools_are_offered(connect: Connect, service: FakeAnthropic) -> None:
    body = await send_and_get_body(connect, service, tools=(SPEC,))
    schema = {"type": "object", "properties": {}}
    assert body["tools"] == [{"name": "dice", "description": "Roll dice.", "input_schema": schema}]
    assert "tool_choice" not in body
    assert "tools" not in await send_and_get_body(connect, service)


async def test_calls_are_joined_from_their_blocks(connect: Connect, service: FakeAnthropic) -> None:
    service.plays(CALLS)
    answer = await ask(connect(), prompt("roll", tools=(SPEC,)))
    assert answer.text == "Let me see."
    calls = (CALL, ToolCall("toolu_2", "time", ""))
    assert answer.finish == Finish(FinishReason.STOP, Usage(5, 0, 4), calls)


async def test_calls_in_an_unstreamed_message_are_parsed(
    connect: Connect, service: FakeAnthropic
) -> None:
    content = [{"type": "tool_use", "id": "toolu_1", "name": "dice", "input": {"dice": "2d6"}}]
    message = {"type": "message", "content": content, "stop_reason": "tool_use"}
    service.plays(Script([json.dumps(message).encode()], content_type="application/json"))
    answer = await ask(connect(), prompt("roll", tools=(SPEC,)))
    assert answer.finish is not None
    assert answer.finish.tool_calls == (CALL,)


async def test_results_follow_their_calls(connect: Connect, service: FakeAnthropic) -> None:
    exchange = ToolExchange("Let me see.", (CALL, CALL), ("> 7", "> 8"))
    body = await send_and_get_body(connect, service, tools=(SPEC,), tool_exchanges=(exchange,))
    [question, called, results] = body["messages"]
    assert question["role"] == "user"
    assert [one["type"] for one in called["content"]] == ["text", "tool_use", "tool_use"]
    assert called["content"][1]["input"] == {"dice": "2d6"}
    assert [one["content"] for one in results["content"]] == ["> 7", "> 8"]


@pytest.mark.parametrize("arguments", ["{", "[1]", "", "[" * 5000])
async def test_even_an_invalid_call_is_sent_back_in_a_valid_form(
    connect: Connect, service: FakeAnthropic, arguments: str
) -> None:
    call = ToolCall("id with spaces", "na me\n", arguments)
    exchange = ToolExchange(" ", (call,), ("> error",))
    body = await send_and_get_body(connect, service, tool_exchanges=(exchange, exchange))
    assert body["tools"] == [{"name": "na_me_", "input_schema": {"type": "object"}}]
    assert body["tool_choice"] == {"type": "none"}  # the last round, in which it has to answer


async def test_reasoning_is_not_requested_after_a_call_without_reasoning(
    connect: Connect, service: FakeAnthropic
) -> None:
    given = {"tools": (SPEC,), "parameters": {"reasoning_effort": "low"}}
    assert "thinking" in await send_and_get_body(connect, service, **given)
    exchange = ToolExchange("", (CALL,), ("> 7",))
    assert "thinking" not in await send_and_get_body(
        connect, service, **given, tool_exchanges=(exchange,)
    )


async def test_signed_reasoning_is_sent_back(connect: Connect, service: FakeAnthropic) -> None:
    thoughts = [
        *(block(thinking("Roll", " it.") + signature(), kind="thinking"),),
        event("content_block_start", index=1,
              content_block={"type": "redacted_thinking", "data": "x"}),
    ]  # fmt: skip
    calls = tool_use("toolu_1", "dice", ['{"dice": "2d6"}'], 2) + finish("tool_use") + STOP
    service.plays([start() + b"".join(thoughts) + calls])
    rounds = Toolbox([dice_tool(lambda: 0.5)], FakeClock())
    question = prompt("roll", parameters={"reasoning_effort": "low"})
    answer = await generate_answer(
        connect(), question, lambda _: None, lambda _: None, FakeClock(), tools=rounds
    )
    assert answer.text == "Hello there"
    body = service.log[-1]["body"]
    assert problem_of(body) is None
    assert body["thinking"] == {"type": "adaptive"}
    assert body["messages"][1]["content"][:2] == [
        {"type": "thinking", "thinking": "Roll it.", "signature": "EqQB"},
        {"type": "redacted_thinking", "data": "x"},
    ]
