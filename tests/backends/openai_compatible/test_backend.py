"""Requests to chat completions APIs, and the parsing of responses."""

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from bot.chat.prompt import Delta, Finish, FinishReason, Image, Message, Prompt, Usage
from bot.errors import BackendUnavailable
from tests.backends.asking import ask, prompt
from tests.backends.conftest import Connect
from tests.rigs.fake_openai import DONE, STOP, FakeOpenAI, chunk, said

BODIES = json.loads(Path(__file__).with_name("bodies.json").read_text("utf-8"))


async def test_answer_is_streamed_as_deltas_and_a_finish_with_usage(connect: Connect) -> None:
    answer = await ask(connect())

    assert answer.text == "Hello there"
    assert answer.finish == Finish(FinishReason.STOP, Usage(5, 3, 4))


async def test_password_in_the_address_is_sent_as_basic_authentication(
    connect: Connect, service: FakeOpenAI
) -> None:
    address = service.base_url.replace("://", "://me:p%40ss@")
    backend = connect(base_url=address, api_key=None)

    answer = await ask(backend)

    assert answer.text == "Hello there"
    assert service.log[0]["headers"]["authorization"] == "Basic bWU6cEBzcw=="
    assert "p%40ss" not in await backend.check()


async def test_body_contains_messages_and_parameters(connect: Connect, service: FakeOpenAI) -> None:
    question = Prompt(
        messages=(Message("system", "Be kind."), Message("user", "日本")),
        model="gpt-x",
        conversation="chat",
        stop=("Ann:", "Bob:"),
        parameters={
            "temperature": 0.5,
            "seed": None,
            "logit_bias": {"5": -100},
            "user_template": "{{ content }}",
            "stream": False,
            "model": "other",
        },
        max_output_tokens=300,
    )

    await ask(connect(), question)

    assert service.log[0]["path"] == "/v1/chat/completions"
    assert service.log[0]["body"] == BODIES["messages and parameters"]


async def test_names_are_sent_if_enabled_and_valid(connect: Connect, service: FakeOpenAI) -> None:
    said = [
        ("Ann", "Ann:hi"),
        ("Bob Lee#a3f1", "Bob Lee#a3f1:ho"),
        ("小明", "小明:好"),
        (None, "x"),
    ]
    question = Prompt(
        messages=tuple(Message("user", content, name=name) for name, content in said),
        model="gpt-x",
        conversation="chat",
    )

    for speaker, content in said:
        messages = (Message("user", content, name=speaker),)
        await ask(connect(), replace(question, messages=messages))
        await ask(connect(message_names=True), replace(question, messages=messages))
    await ask(connect(message_names=True), question)

    *each, together = (request["body"]["messages"] for request in service.log)
    assert [one[0].get("name") for one in each[::2]] == [None] * 4
    assert [one[0].get("name") for one in each[1::2]] == ["Ann", "Bob_Lee-a3f1", None, None]
    merged = "\n".join(content for _, content in said)
    assert together == [{"role": "user", "content": merged}]


async def test_images_keep_their_positions_between_texts(
    connect: Connect, service: FakeOpenAI
) -> None:
    link, picture = Image("https://x/y.png", "low"), Image("data:image/png;base64,AAAA")
    seen = Message("user", "What is it?", (link, "What is it?", picture))

    await ask(connect(), Prompt((seen,), "m", "chat"))

    assert service.log[0]["body"]["messages"] == BODIES["images"]


@pytest.mark.parametrize(
    ("parameters", "sent"),
    [
        ({}, {"max_tokens": 300}),
        ({"max_tokens": 100}, {"max_tokens": 100}),
        ({"max_tokens": 1000}, {"max_tokens": 300}),
        ({"max_completion_tokens": 1000}, {"max_completion_tokens": 300}),
    ],
)
async def test_max_tokens_is_the_lower_of_parameter_and_limit(
    connect: Connect, service: FakeOpenAI, parameters: dict[str, int], sent: dict[str, int]
) -> None:
    await ask(connect(), prompt(parameters=parameters, max_output_tokens=300))

    assert sent.items() <= service.log[0]["body"].items()


@pytest.mark.parametrize(("limit", "tokens"), [(None, 3000), (1000, 3000), (500, 3500)])
async def test_context_minus_the_answer_limits_the_prompt(
    connect: Connect, limit: int | None, tokens: int
) -> None:
    asked = prompt(max_output_tokens=limit)
    assert await connect(context_tokens=4000).max_prompt_tokens(asked) == tokens
    assert await connect().max_prompt_tokens(asked) is None


async def test_null_parameter_removes_a_default(connect: Connect, service: FakeOpenAI) -> None:
    await ask(connect(), prompt(parameters={"stream_options": None}))

    assert "stream_options" not in service.log[0]["body"]


async def test_parameter_n_above_one_is_rejected(connect: Connect, service: FakeOpenAI) -> None:
    answer = await ask(connect(), prompt(parameters={"n": 2}))

    assert isinstance(answer.error, BackendUnavailable)
    assert service.log == []


async def test_default_model_comes_from_the_settings(connect: Connect, service: FakeOpenAI) -> None:
    await ask(connect(model="gpt-y"), prompt(model="default"))

    assert service.log[0]["body"]["model"] == "gpt-y"


async def test_missing_default_model_error_states_the_setting(connect: Connect) -> None:
    answer = await ask(connect(), prompt(model="default"))

    assert "set TROUPE_PROVIDERS__ACME__MODEL" in str(answer.error)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("length", FinishReason.LENGTH),
        ("MAX_TOKENS", FinishReason.LENGTH),
        ("model_length", FinishReason.LENGTH),
        ("content_filter", FinishReason.FILTERED),
        ("sensitive", FinishReason.FILTERED),
        ("SAFETY", FinishReason.FILTERED),
        ("eos", FinishReason.STOP),
    ],
)
async def test_finish_reason_is_translated(
    connect: Connect, service: FakeOpenAI, word: str, reason: FinishReason
) -> None:
    service.plays([said("a") + chunk(finish=word) + DONE])

    answer = await ask(connect())

    assert answer.finish == Finish(reason)


async def test_request_is_retried_after_reasoning(connect: Connect, service: FakeOpenAI) -> None:
    service.plays([chunk(reasoning_content="Hm.")], [said("Hi.") + STOP + DONE])

    answer = await ask(connect())

    assert (answer.text, answer.error) == ("Hi.", None)


async def test_closed_generator_ends_the_connection(connect: Connect, service: FakeOpenAI) -> None:
    service.plays([said("x"), 0.1, *[said("b"), 0.01] * 1000])

    async with aclosing(connect().generate(prompt())) as pieces:
        assert await anext(pieces) == Delta("x")

    assert await service.ended() == "hung up"


@pytest.mark.parametrize(
    ("steps", "seconds"), [([60], 0), ([said("x"), 0.005] * 2000, 0.5)], ids=["silent", "flowing"]
)
async def test_cancelled_request_closes_its_connection_at_once(
    connect: Connect, service: FakeOpenAI, steps: list[object], seconds: float
) -> None:
    service.plays(steps)
    task = asyncio.create_task(ask(connect()))
    await service.asked()
    await asyncio.sleep(seconds)

    task.cancel()

    assert await service.ended() == "hung up", "it was read to its end"
    assert (await asyncio.wait({task}))[0]


async def test_stop_strings_beyond_the_providers_limit_end_the_answer(
    connect: Connect, service: FakeOpenAI
) -> None:
    service.plays([said("Hello!\nE", "ve: hi", " there"), 60])

    answer = await ask(
        connect(),
        prompt(
            stop=tuple(f"\n{name}:" for name in ("A", "B", "C")),
            parameters={"stop": ["\nD:", "\nEve:"]},
        ),
    )

    assert (answer.text, answer.error) == ("Hello!", None)
    assert answer.finish is not None
    assert len(service.log[0]["body"]["stop"]) == 4
    assert await service.ended() == "hung up"


async def test_continuous_stream_is_read_at_intervals(
    connect: Connect, service: FakeOpenAI
) -> None:
    service.plays([*[said("x"), 0.005] * 100, STOP + DONE])
    backend = connect()

    answer = await ask(backend)

    assert answer.text == "x" * 100
    assert len(answer.deltas) < 50
    assert (await ask(backend)).text == "Hello there"
    assert service.connections == 1


async def test_check_reports_the_address(connect: Connect, service: FakeOpenAI) -> None:
    assert await connect().check() == f"answers at {service.base_url}"


@pytest.mark.parametrize(
    ("status", "words"), [(401, "ACME__API_KEY"), (503, "returned status 503"), (302, "redirects")]
)
async def test_check_reports_the_problem(
    connect: Connect, service: FakeOpenAI, status: int, words: str
) -> None:
    service.models_status = status

    with pytest.raises(BackendUnavailable, match=words):
        await connect().check()


async def test_check_works_without_a_model_list(connect: Connect, service: FakeOpenAI) -> None:
    service.models_status = 404

    assert "lists no models" in await connect().check()
