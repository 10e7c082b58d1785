"""Requests to the Messages API: roles, images, parameters, and cache markers."""

import json
from pathlib import Path
from typing import Any

import pytest

from bot.backends.anthropic.settings import AnthropicSettings
from bot.backends.anthropic.wire import to_wire
from bot.backends.factory import parameter_problems
from bot.chat.prompt import Image, Message, Prompt
from bot.errors import BackendUnavailable
from bot.settings import read_settings
from tests.backends.anthropic.conftest import Connect
from tests.backends.asking import ask, prompt
from tests.rigs.fake_anthropic import FakeAnthropic, problem_of

BODIES = json.loads(Path(__file__).with_name("bodies.json").read_text("utf-8"))
REQUESTS = json.loads(Path(__file__).with_name("requests.json").read_text("utf-8"))
PNG = "data:image/png;base64,iVBORw0KGgo="


def content_part(text: str) -> str | Image:
    return Image(text) if text.startswith(("data:", "https:")) else text


def body(given: dict[str, Any]) -> dict[str, Any]:
    """Return the request body for a case: messages and optional parameters."""
    messages = [
        Message(role, "".join(parts), tuple(map(content_part, parts)) if len(parts) > 1 else ())
        for role, *parts in given["messages"]
    ]
    question = Prompt(
        tuple(messages),
        given.get("model", "claude-opus-4-8"),
        "channel",
        parameters=given.get("parameters", {}),
        max_output_tokens=given.get("limit"),
    )
    return to_wire(question, question.model, cache_ttl=given.get("cache", "off"))


@pytest.mark.parametrize("case", REQUESTS)
def test_request_is_valid_for_the_api(case: str) -> None:
    sent = body(REQUESTS[case]["given"])
    assert problem_of(sent) is None
    assert sent == REQUESTS[case]["sent"]


async def test_request_body_contains_system_messages_and_parameters(
    connect: Connect, service: FakeAnthropic
) -> None:
    question = Prompt(
        messages=(
            Message("system", "You are Nora."),
            Message("user", "Ann: hi", name="Ann"),
            Message("assistant", "Hello, Ann."),
            Message("user", "Bob: 日本?", name="Bob"),
        ),
        model="claude-haiku-5-5",
        conversation="channel",
        stop=("\nAnn:", "\n"),
        parameters={"temperature": 0.5, "stop": ["###"], "n": 1, "user_template": "{{user}}"},
        max_output_tokens=300,
    )

    answer = await ask(connect(), question)

    assert answer.error is None
    assert service.log[0]["path"] == "/v1/messages"
    assert service.log[0]["headers"]["x-api-key"] == "sk-ant-CANARY"
    assert service.log[0]["headers"]["anthropic-version"] == "2023-06-01"
    assert service.log[0]["body"] == BODIES["body"]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            Message("user", "", (Image("data:image/bmp;base64,AAAA"),)),
            "'data:image/bmp;base64,AAAA'",
        ),
        (Message("user", "", (Image("file:///etc/passwd"),)), "is neither a link nor a base64"),
        (Message("assistant", "", (Image(PNG),)), "a message with the role 'assistant'"),
    ],
)
def test_image_unsupported_by_the_api_is_reported(message: Message, words: str) -> None:
    with pytest.raises(BackendUnavailable, match=words):
        to_wire(Prompt((message,), "m", "channel"), "m")


@pytest.mark.parametrize(("parameters", "problem"), BODIES["wrong parameters"])
async def test_unknown_parameter_is_rejected_by_name(
    connect: Connect, service: FakeAnthropic, parameters: dict[str, object], problem: str
) -> None:
    found = parameter_problems(AnthropicSettings(), parameters)
    answer = await ask(connect(), prompt(parameters=parameters))

    assert problem in "; ".join(found)
    assert isinstance(answer.error, BackendUnavailable)
    assert problem in str(answer.error)
    assert service.log == []


def test_valid_parameters_have_no_problems() -> None:
    parameters = {
        "temperature": 1,
        "top_p": 0.95,
        "thinking": {"type": "adaptive"},
        "stop": "###",
        "end_template": "x",
        "seed": None,
    }
    assert parameter_problems(AnthropicSettings(), parameters) == []


async def test_description_is_the_request_with_images_shortened(connect: Connect) -> None:
    seen = Message("user", "", (Image(f"data:image/png;base64,{'A' * 9999}"),))

    description = await connect(model="claude-x").describe(Prompt((seen,), "default", "channel"))

    assert description.model == "claude-x"
    assert not description.is_rendered
    assert "… (9999 characters)" in description.text
    assert len(description.text) < 1000


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("no_environment")
@pytest.mark.parametrize(
    ("provider", "given", "base_url"),
    [
        ("anthropic", {}, "https://api.anthropic.com/v1"),
        ("claude", {"kind": "anthropic"}, "https://api.anthropic.com/v1"),
        ("anthropic", {"base_url": "http://127.0.0.1:9"}, "http://127.0.0.1:9/v1"),
        ("anthropic", {"base_url": "http://127.0.0.1:9/v1/"}, "http://127.0.0.1:9/v1"),
    ],
)
def test_provider_needs_only_a_key(provider: str, given: dict[str, str], base_url: str) -> None:
    settings = read_settings(providers={provider: {"api_key": "k", **given}}).providers[provider]

    assert isinstance(settings, AnthropicSettings)
    assert settings.base_url == base_url
