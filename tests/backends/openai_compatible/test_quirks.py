"""Requests are changed to what each well-known service takes."""

import json
from dataclasses import replace
from typing import Any

import pytest

from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.services import WELL_KNOWN
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.prompt import Message, Prompt, Usage
from tests.backends.asking import ask, prompt
from tests.rigs.fake_openai import DONE, STOP, FakeOpenAI, event, said

ASKED = {"temperature": 0.5, "seed": 3, "top_p": 0.9}
TALK = (
    Message("system", "You are Nora."),
    Message("user", "hi", name="Ann"),
    Message("user", "hello", name="Bob"),
    Message("system", "Be short."),
)


async def body(provider: str, question: Prompt, base_url: str | None = None) -> dict[str, Any]:
    given = {"api_key": "sk-x", "base_url": base_url}
    settings = OpenAISettings.model_validate(given).completed(provider)
    backend = OpenAICompatibleBackend(settings, provider)
    sent: dict[str, Any] = json.loads((await backend.describe(question)).text)
    return sent


async def fields(provider: str, model: str) -> dict[str, object]:
    question = prompt(model=model, parameters=ASKED, max_output_tokens=100, stop=("\nAnn:",))
    sent = await body(provider, question)
    return {name: value for name, value in sent.items() if name not in {"messages", "stream"}}


async def test_service_without_quirks_gets_what_the_preset_says() -> None:
    assert await fields("deepseek", "deepseek-chat") == {
        **ASKED,
        "model": "deepseek-chat",
        "max_tokens": 100,
        "stop": ["\nAnn:"],
        "stream_options": {"include_usage": True},
    }


async def test_openai_limits_answers_by_another_name() -> None:
    sent = await fields("openai", "gpt-4o-mini")
    assert sent["max_completion_tokens"] == 100
    assert "max_tokens" not in sent
    assert sent["temperature"] == 0.5


@pytest.mark.parametrize("model", ["o3", "o4-mini", "gpt-5", "gpt-5-nano-2025-08-07"])
async def test_reasoning_models_of_openai_get_no_sampling_parameters(model: str) -> None:
    assert await fields("openai", model) == {
        "model": model,
        "seed": 3,
        "max_completion_tokens": 100,
        "stream_options": {"include_usage": True},
    }


async def test_mistral_is_not_asked_for_usage_and_seeds_by_another_name() -> None:
    assert await fields("mistral_ai", "mistral-small-latest") == {
        "model": "mistral-small-latest",
        "temperature": 0.5,
        "top_p": 0.9,
        "random_seed": 3,
        "max_tokens": 100,
        "stop": ["\nAnn:"],
    }


REFUSED = {
    "groq": {"logit_bias", "logprobs"},
    "gemini": {"frequency_penalty", "presence_penalty", "seed", "logit_bias", "top_k"},
    "cohere": {"logit_bias", "top_logprobs"},
    "mistral_ai": {"logit_bias", "logprobs", "stream_options", "seed"},
}


@pytest.mark.parametrize("provider", sorted(REFUSED))
async def test_parameters_that_a_service_refuses_are_left_out(provider: str) -> None:
    refused = REFUSED[provider]
    given = dict.fromkeys(refused | {"temperature", "logit_bias"}, 1)
    sent = await body(provider, prompt(model="m", parameters=given))
    assert not refused & sent.keys()
    assert sent["temperature"] == 1
    elsewhere = await body("together_ai", prompt(model="m", parameters=given))
    assert given.keys() <= elsewhere.keys()


@pytest.mark.parametrize(
    ("model", "is_sent"),
    [
        ("grok-4", False),
        ("grok-4-1-fast-reasoning", False),
        ("grok-3-mini", False),
        ("grok-4-1-fast-non-reasoning", True),
        ("grok-3", True),
    ],
)
async def test_reasoning_models_of_xai_get_no_stop_strings(model: str, is_sent: bool) -> None:
    assert ("stop" in await fields("x_ai", model)) is is_sent


async def test_limit_of_the_answer_has_the_name_that_the_service_knows() -> None:
    question = prompt(model="m", parameters={"max_completion_tokens": 50})
    names = {
        name: (await body(name, question)).keys() & {"max_tokens", "max_completion_tokens"}
        for name in ("openai", "groq", "deepseek", "mistral_ai", "cohere", "vllm")
    }
    assert names == {
        "openai": {"max_completion_tokens"},
        "groq": {"max_completion_tokens"},
        "deepseek": {"max_tokens"},
        "mistral_ai": {"max_tokens"},
        "cohere": {"max_tokens"},
        "vllm": {"max_completion_tokens"},
    }


async def roles_and_names(provider: str, model: str = "m") -> list[tuple[str, str | None]]:
    sent = await body(provider, replace(prompt(model=model), messages=TALK))
    return [(each["role"], each.get("name")) for each in sent["messages"]]


async def test_messages_stand_in_the_roles_and_the_order_that_the_service_takes() -> None:
    system, user = ("system", None), ("user", None)
    assert await roles_and_names("openai") == [system, ("user", "Ann"), ("user", "Bob"), system]
    assert await roles_and_names("zhipu") == [system, user, user, system]
    assert await roles_and_names("open_router", "openai/gpt-4o") == [system, user, user, system]
    assert await roles_and_names("mistral_ai") == [system, user, user, user]
    assert await roles_and_names("deepseek", "deepseek-reasoner") == [system, user, system]


@pytest.mark.parametrize(
    ("provider", "base_url"),
    [
        *((name, None) for name in ("vllm", "sglang", "llama_server", "ollama", "lmstudio")),
        *((name, None) for name in ("open_router", "groq", "together_ai", "litellm")),
        ("openai", "http://10.0.0.5:8000/v1"),
        ("mine", "http://10.0.0.5:8000/v1"),
    ],
)
async def test_unknown_template_gets_one_system_message_and_alternating_roles(
    provider: str, base_url: str | None
) -> None:
    question = replace(prompt(), messages=(TALK[0], Message("assistant", "Hi!"), *TALK[1:]))
    assert (await body(provider, question, base_url))["messages"] == [
        {"role": "system", "content": "You are Nora."},
        {"role": "user", "content": "..."},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "hi\nhello\n\nBe short."},
    ]


CONTINUED = {
    "mistral_ai": ({"prefix": True}, {}),
    "deepseek_beta": ({"prefix": True}, {}),
    "moonshot": ({"partial": True}, {}),
    "dash_scope": ({"partial": True}, {}),
    "vllm": ({}, {"continue_final_message": True, "add_generation_prompt": False}),
    "sglang": ({}, {"continue_final_message": True, "add_generation_prompt": False}),
    "llama_server": ({}, {}),
}


@pytest.mark.parametrize("provider", sorted(WELL_KNOWN))
async def test_beginning_of_an_answer_is_sent_where_the_service_goes_on_behind_it(
    provider: str,
) -> None:
    question = prompt(model="m", begun="Once upon")
    settings = OpenAISettings.model_validate({"api_key": "sk-x"}).completed(provider)
    assert OpenAICompatibleBackend(settings, provider).can_continue(question) is (
        provider in CONTINUED
    )
    if provider in CONTINUED:
        of_message, of_request = CONTINUED[provider]
        sent = await body(provider, question)
        begun = {"role": "assistant", "content": "Once upon", **of_message}
        assert sent["messages"][-1] == begun
        assert of_request.items() <= sent.items()


@pytest.mark.parametrize("provider", sorted(WELL_KNOWN))
async def test_prefill_of_a_preset_is_the_last_message_everywhere(provider: str) -> None:
    talk = (Message("system", "S"), Message("user", "hi"), Message("system", "Be brief."))
    question = prompt(model="m").with_messages((*talk, Message("assistant", "Sure: ")))
    of_message, of_request = CONTINUED.get(provider, ({}, {}))
    sent = await body(provider, question)
    text = "Sure:" if provider in CONTINUED else "Sure: "
    assert sent["messages"][-1] == {"role": "assistant", "content": text, **of_message}
    assert of_request.items() <= sent.items()
    if provider in CONTINUED:  # the answer was cut off
        sent = await body(provider, replace(question, begun=" yes"))
        assert [one["role"] for one in sent["messages"]].count("assistant") == 1
        assert sent["messages"][-1]["content"] == "Sure: yes"


async def test_own_server_has_its_quirks_at_any_address() -> None:
    question = prompt(model="m", begun="Once upon")
    sent = await body("vllm", question, base_url="http://10.0.0.5:8000/v1")
    assert sent["continue_final_message"] is True
    sent = await body("mistral_ai", question, base_url="http://10.0.0.5:8000/v1")
    assert sent["messages"] == [{"role": "user", "content": "hello"}]


async def test_prefix_is_marked_where_it_is_cached_only_then() -> None:
    talk = (
        Message("system", "You are Nora."),
        Message("system", "Examples."),
        Message("user", "hi"),
        Message("assistant", "Hello."),
        Message("user", "how are you?"),
    )
    question = replace(prompt(model="anthropic/claude-sonnet-4.5"), messages=talk)
    marked = [
        each["content"][-1].get("cache_control") if isinstance(each["content"], list) else None
        for each in (await body("open_router", question))["messages"]
    ]
    mark = {"type": "ephemeral"}
    assert marked == [mark, mark, None, mark, None]
    plain = await body("open_router", replace(question, model="openai/gpt-4o"))
    assert [each["content"] for each in plain["messages"]] == [each.content for each in talk]
    first = replace(question, messages=(Message("user", "hi"),))
    assert (await body("open_router", first))["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "given",
    [
        {"prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 30}},
        {"prompt_tokens_details": {"cached_tokens": 20}, "cache_creation_input_tokens": 30},
    ],
)
async def test_what_is_written_to_a_cache_is_counted(given: dict[str, object]) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, **given}
    async with FakeOpenAI() as service:
        service.plays([said("Hi."), STOP, event({"choices": [], "usage": usage}), DONE])
        backend = OpenAICompatibleBackend(OpenAISettings(base_url=service.base_url), "x")
        answer = await ask(backend, prompt())
        await backend.close()
    assert answer.finish is not None
    assert answer.finish.usage == Usage(100, 20, 5, 30)
