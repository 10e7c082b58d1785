"""Requests are adapted to the quirks of each known service (requests.json)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.services import SERVICE_ADDRESSES
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.prompt import Message, Prompt, Usage
from tests.backends.asking import ask, prompt
from tests.rigs.fake_openai import DONE, STOP, FakeOpenAI, event, said

PARAMETERS = (
    *("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("logprobs", "top_logprobs", "seed", "user"),
)
TALK = (
    Message("system", "You are Nora."),
    Message("assistant", "Hi!"),
    Message("user", "hi", name="Ann"),
    Message("user", "hello", name="Bob"),
    Message("system", "Be short."),
)
REQUESTS = json.loads(Path(__file__).with_name("requests.json").read_text("utf-8"))
CONTINUING = {case.split()[0] for case, sent in REQUESTS.items() if "continued" in sent}


def make_backend(provider: str, base_url: str | None = None) -> OpenAICompatibleBackend:
    given = {"api_key": "sk-x", "base_url": base_url}
    settings = OpenAISettings.model_validate(given).with_defaults(provider)
    return OpenAICompatibleBackend(settings, provider)


async def body(backend: OpenAICompatibleBackend, question: Prompt) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads((await backend.describe(question)).text)
    return sent


def _summarize_message(message: dict[str, Any]) -> str:
    content = message["content"]
    text = content if isinstance(content, str) else json.dumps(content)
    return f"{' '.join(filter(None, (message['role'], message.get('name'))))}: {text}"


async def summarize_requests(case: str) -> dict[str, Any]:
    """Summarize the requests for a case: provider, model, and optionally an address."""
    provider, model, *address = case.split()
    backend = make_backend(provider, *address)
    question = prompt(model=model, parameters=dict.fromkeys(PARAMETERS, 1), stop=("\nAnn:",))
    question = replace(question, messages=TALK, max_output_tokens=100)
    sent = await body(backend, question)
    limited = await body(backend, prompt(model=model, parameters={"max_completion_tokens": 50}))
    found: dict[str, Any] = {
        "parameters": " ".join(sorted(sent.keys() - {"messages", "model", "stream"})),
        "limit": next(name for name in limited if name.startswith("max_")),
        "messages": [_summarize_message(one) for one in sent["messages"]],
    }
    if backend.can_continue(question):
        begun = await body(backend, replace(question, begun="Once upon"))
        found["continued"] = {
            "message": begun["messages"][-1],
            "request": {name: each for name, each in begun.items() if name not in sent},
        }
    return found


@pytest.mark.parametrize("case", REQUESTS)
async def test_each_service_gets_a_request_it_accepts(case: str) -> None:
    assert await summarize_requests(case) == REQUESTS[case]


def test_every_well_known_service_has_a_test_request() -> None:
    assert {case.split()[0] for case in REQUESTS} >= SERVICE_ADDRESSES.keys()


@pytest.mark.parametrize("provider", sorted(SERVICE_ADDRESSES))
async def test_prefill_is_the_last_message_for_every_service(provider: str) -> None:
    talk = (Message("system", "S"), Message("user", "hi"), Message("system", "Be brief."))
    question = replace(prompt(model="m"), messages=(*talk, Message("assistant", "Sure: ")))
    continued = REQUESTS[f"{provider} m"].get("continued", {"message": {}, "request": {}})
    text = "Sure:" if provider in CONTINUING else "Sure: "
    sent = await body(make_backend(provider), question)
    assert sent["messages"][-1] == {"role": "assistant"} | continued["message"] | {"content": text}
    assert continued["request"].items() <= sent.items()
    if provider in CONTINUING:  # the answer was cut off
        sent = await body(make_backend(provider), replace(question, begun=" yes"))
        assert [one["role"] for one in sent["messages"]].count("assistant") == 1
        assert sent["messages"][-1]["content"] == "Sure: yes"


async def test_prompt_is_marked_for_caching_up_to_the_last_answer() -> None:
    system, answer = TALK[0], Message("assistant", "Hello.")
    talk = (system, system, Message("user", "hi"), answer, Message("user", "how are you?"))
    question = replace(prompt(model="anthropic/claude-sonnet-4.5"), messages=talk)
    sent = await body(make_backend("open_router"), question)
    is_marked = ["cache_control" in json.dumps(one["content"]) for one in sent["messages"]]
    assert is_marked == [True, True, False, True, False]


@pytest.mark.parametrize(
    "given",
    [
        {"prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 30}},
        {"prompt_tokens_details": {"cached_tokens": 20}, "cache_creation_input_tokens": 30},
    ],
)
async def test_tokens_written_to_a_cache_are_counted(given: dict[str, object]) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, **given}
    async with FakeOpenAI() as service:
        service.plays([said("Hi."), STOP, event({"choices": [], "usage": usage}), DONE])
        backend = OpenAICompatibleBackend(OpenAISettings(base_url=service.base_url), "x")
        answer = await ask(backend, prompt())
        await backend.close()
    assert answer.finish is not None
    assert answer.finish.usage == Usage(100, 20, 5, 30)
