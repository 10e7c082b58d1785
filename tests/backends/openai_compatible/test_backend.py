"""What is asked of a chat API, and that it can be stopped."""

import asyncio
import time
from contextlib import aclosing

import httpx2
import pytest
from inline_snapshot import snapshot

from bot.backends.chat_completions.errors import Endpoint
from bot.backends.chat_completions.request import Answering, Request
from bot.backends.llama_cpp.engines.server_connection import ServerConnection
from bot.chat.prompt import Delta, Finish, FinishReason, Image, Message, Prompt, Usage
from bot.errors import BackendUnavailable
from bot.settings import ProviderSettings
from tests.backends.asking import ask, prompt
from tests.backends.conftest import Connect
from tests.rigs.fake_openai import DONE, STOP, FakeOpenAI, Script, chunk, said


async def test_answer_comes_in_deltas_and_ends_with_its_usage(connect: Connect) -> None:
    answer = await ask(connect())

    assert answer.text == "Hello there"
    assert answer.finish == Finish(FinishReason.STOP, Usage(5, 3, 4))


async def test_whole_prompt_goes_out(connect: Connect, service: FakeOpenAI) -> None:
    question = Prompt(
        messages=(Message("system", "Be kind."), Message("user", "日本")),
        model="gpt-x",
        conversation="room",
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
    assert service.log[0]["body"] == snapshot(
        {
            "model": "gpt-x",
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": "日本"},
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "logit_bias": {"5": -100},
            "stop": ["Ann:", "Bob:"],
            "max_tokens": 300,
        }
    )


async def test_names_go_out_where_they_are_wanted_and_fit(
    connect: Connect, service: FakeOpenAI
) -> None:
    said = [
        ("Ann", "Ann:hi"),
        ("Bob Lee#a3f1", "Bob Lee#a3f1:ho"),
        ("小明", "小明:好"),
        (None, "x"),
    ]
    question = Prompt(
        messages=tuple(Message("user", content, name=name) for name, content in said),
        model="gpt-x",
        conversation="room",
    )

    await ask(connect(), question)
    await ask(connect(message_names=True), question)

    plain, named = (request["body"]["messages"] for request in service.log)
    assert [one.get("name") for one in plain] == [None] * 4
    assert [one.get("name") for one in named] == ["Ann", "Bob_Lee-a3f1", None, None]
    assert [one["content"] for one in named] == [content for _, content in said]


async def test_images_go_out_between_their_texts(connect: Connect, service: FakeOpenAI) -> None:
    link, picture = Image("https://x/y.png", "low"), Image("data:image/png;base64,AAAA")
    seen = Message("user", "What is it?", (link, "What is it?", picture))

    await ask(connect(), Prompt((seen,), "m", "room"))

    assert service.log[0]["body"]["messages"] == snapshot(
        [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
                    {"type": "text", "text": "What is it?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                ],
            }
        ]
    )


async def test_key_goes_into_the_header(connect: Connect, service: FakeOpenAI) -> None:
    await ask(connect())

    assert service.log[0]["headers"]["authorization"] == "Bearer sk-CANARY"


async def test_service_without_a_key_gets_no_header(connect: Connect, service: FakeOpenAI) -> None:
    await ask(connect(api_key=None))

    assert "authorization" not in service.log[0]["headers"]


async def test_variables_for_openai_do_not_leak_to_others(
    connect: Connect, service: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("API_KEY", "ORG_ID", "PROJECT_ID", "BASE_URL", "ADMIN_KEY"):
        monkeypatch.setenv(f"OPENAI_{name}", "http://SECRET")

    await ask(connect(api_key=None))

    assert "SECRET" not in str(service.log[0]["headers"])


@pytest.mark.parametrize(
    ("parameters", "sent"),
    [
        ({}, {"max_tokens": 300}),
        ({"max_tokens": 100}, {"max_tokens": 100}),
        ({"max_tokens": 1000}, {"max_tokens": 300}),
        ({"max_completion_tokens": 1000}, {"max_completion_tokens": 300}),
    ],
)
async def test_length_is_what_the_preset_wants_within_its_bound(
    connect: Connect, service: FakeOpenAI, parameters: dict[str, int], sent: dict[str, int]
) -> None:
    await ask(connect(), prompt(parameters=parameters, max_output_tokens=300))

    assert sent.items() <= service.log[0]["body"].items()


async def test_null_takes_out_what_a_service_does_not_know(
    connect: Connect, service: FakeOpenAI
) -> None:
    await ask(connect(), prompt(parameters={"stream_options": None}))

    assert "stream_options" not in service.log[0]["body"]


async def test_several_answers_are_refused(connect: Connect, service: FakeOpenAI) -> None:
    answer = await ask(connect(), prompt(parameters={"n": 2}))

    assert isinstance(answer.error, BackendUnavailable)
    assert service.log == []


async def test_default_model_is_the_providers(connect: Connect, service: FakeOpenAI) -> None:
    await ask(connect(model="gpt-y"), prompt(model="default"))

    assert service.log[0]["body"]["model"] == "gpt-y"


async def test_missing_default_model_names_its_setting(connect: Connect) -> None:
    answer = await ask(connect(), prompt(model="default"))

    assert "set TROUPE_PROVIDERS__ACME__MODEL" in str(answer.error)


@pytest.mark.parametrize(
    ("word", "reason"),
    [("length", FinishReason.LENGTH), ("content_filter", FinishReason.FILTERED)],
)
async def test_reason_of_the_end_is_told(
    connect: Connect, service: FakeOpenAI, word: str, reason: FinishReason
) -> None:
    service.plays([said("a") + chunk(finish=word) + DONE])

    answer = await ask(connect())

    assert answer.finish == Finish(reason)


@pytest.mark.parametrize(
    "script",
    [
        chunk(reasoning_content="Hm") + chunk(reasoning_content=".") + said("Hi."),
        chunk(reasoning="Hm.") + said("Hi."),
        said("<th", "ink>H", "m.</thi", "nk>\n\nHi."),
        chunk([{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}])
        + chunk([{"type": "text", "text": "Hi."}]),
    ],
    ids=["DeepSeek", "OpenRouter", "in the text", "Mistral"],
)
async def test_thoughts_are_told_from_words_in_every_services_way(
    connect: Connect, service: FakeOpenAI, script: bytes
) -> None:
    service.plays([script + STOP + DONE])

    answer = await ask(connect())

    assert ("".join(answer.thoughts), answer.text) == ("Hm.", "Hi.")


async def test_service_that_only_thought_may_be_asked_again(
    connect: Connect, service: FakeOpenAI
) -> None:
    service.plays([chunk(reasoning_content="Hm.")], [said("Hi.") + STOP + DONE])

    answer = await ask(connect())

    assert (answer.text, answer.error) == ("Hi.", None)


async def test_service_that_cannot_stream_is_understood(
    connect: Connect, service: FakeOpenAI
) -> None:
    whole = b'{"choices":[{"message":{"content":"plain"},"finish_reason":"stop"}]}'
    service.plays(Script([whole[:20], whole[20:]], content_type="application/json"))

    answer = await ask(connect())

    assert (answer.text, answer.error) == ("plain", None)


async def test_closing_the_answer_hangs_up(connect: Connect, service: FakeOpenAI) -> None:
    service.plays([said("a"), 0.1, *[said("b"), 0.01] * 1000])

    async with aclosing(connect().generate(prompt())) as pieces:
        assert await anext(pieces) == Delta("a")

    assert await service.ended(seconds=1) == "hung up"


async def test_cancelling_before_the_first_word_hangs_up(
    connect: Connect, service: FakeOpenAI
) -> None:
    service.plays([60])
    task = asyncio.create_task(ask(connect()))
    await service.asked()

    task.cancel()

    assert await service.ended(seconds=1) == "hung up"
    assert (await asyncio.wait({task}, timeout=1))[0], "it ends"


async def test_stop_strings_beyond_what_a_service_takes_are_found_in_the_answer(
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


async def test_stream_that_flows_is_read_in_sips(connect: Connect, service: FakeOpenAI) -> None:
    service.plays([*[said("x"), 0.005] * 100, STOP + DONE])

    answer = await ask(connect())

    assert answer.text == "x" * 100
    assert len(answer.deltas) < 50


async def test_stream_that_hands_out_one_event_at_a_time_is_read_as_fast_as_it_comes(
    service: FakeOpenAI,
) -> None:
    # As over a unix socket, to a model on this machine.
    service.plays([*[said("x")] * 200, STOP + DONE])
    settings = ProviderSettings(base_url=service.base_url)
    begun = time.monotonic()

    async with httpx2.AsyncClient(base_url=service.base_url) as server:
        way = Answering(settings, Endpoint("acme", service.base_url), ServerConnection(server))
        request = Request("/chat/completions", b"{}", "m", ())
        text = "".join([one.text async for one in way.answer(request) if isinstance(one, Delta)])

    assert text == "x" * 200
    assert time.monotonic() - begun < 2


async def test_connection_is_kept_for_the_next_message(
    connect: Connect, service: FakeOpenAI
) -> None:
    backend = connect()
    for _ in range(3):
        await ask(backend)

    assert service.connections == 1


async def test_check_says_where_it_answers(connect: Connect, service: FakeOpenAI) -> None:
    assert await connect().check() == f"answers at {service.base_url}"


@pytest.mark.parametrize(
    ("status", "words"), [(401, "ACME__API_KEY"), (503, "answers 503"), (302, "elsewhere")]
)
async def test_check_says_what_is_wrong(
    connect: Connect, service: FakeOpenAI, status: int, words: str
) -> None:
    service.models_status = status

    with pytest.raises(BackendUnavailable, match=words):
        await connect().check()


async def test_check_accepts_a_service_that_lists_nothing(
    connect: Connect, service: FakeOpenAI
) -> None:
    service.models_status = 404

    assert "lists no models" in await connect().check()
