"""What is sent to the Messages API: roles, images, parameters, cache markers."""

from typing import Any

import pytest
from inline_snapshot import snapshot

from bot.backends.anthropic.settings import AnthropicSettings
from bot.backends.anthropic.wire import to_wire
from bot.backends.factory import parameter_problems
from bot.chat.prompt import Image, Message, Prompt
from bot.errors import BackendUnavailable
from bot.settings import read_settings
from tests.backends.anthropic.conftest import Connect
from tests.backends.asking import ask, prompt
from tests.rigs.fake_anthropic import FakeAnthropic, problem_of

PNG = "data:image/png;base64,iVBORw0KGgo="


def body(*messages: tuple[str, str] | Message, **more: Any) -> dict[str, Any]:
    """The body of a valid request with these messages."""
    cache = more.pop("cache", "off")
    model = more.pop("model", "claude-opus-4-8")
    given = tuple(each if isinstance(each, Message) else Message(*each) for each in messages)  # type: ignore[arg-type]
    made = to_wire(Prompt(given, model, "channel", **more), model, cache=cache)
    assert problem_of(made) is None
    return made


async def test_request_body_holds_system_messages_and_parameters(
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
    assert service.log[0]["body"] == snapshot(
        {
            "model": "claude-haiku-5-5",
            "temperature": 0.5,
            "max_tokens": 300,
            "system": [
                {
                    "type": "text",
                    "text": "You are Nora.",
                    "cache_control": {"type": "ephemeral"},
                }
            ],
            "messages": [
                {"role": "user", "content": "Ann: hi"},
                {
                    "role": "assistant",
                    "content": [
                        {
                            "type": "text",
                            "text": "Hello, Ann.",
                            "cache_control": {"type": "ephemeral"},
                        }
                    ],
                },
                {"role": "user", "content": "Bob: 日本?"},
            ],
            "stop_sequences": ["\nAnn:", "###"],
            "stream": True,
        }
    )


def test_messages_of_the_same_role_are_merged() -> None:
    sent = body(("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d"), ("user", "e"))

    assert [each["role"] for each in sent["messages"]] == ["user", "assistant", "user"]
    assert [block["text"] for block in sent["messages"][0]["content"]] == ["a", "b"]


def test_later_system_messages_become_a_users() -> None:
    sent = body(("system", "persona"), ("user", "a"), ("system", "lore"), ("assistant", "b"))

    assert [block["text"] for block in sent["system"]] == ["persona"]
    assert [block["text"] for block in sent["messages"][0]["content"]] == ["a", "lore"]


@pytest.mark.parametrize(
    "messages", [[("assistant", "Welcome!"), ("user", "hi")], [("system", "Greet.")], []]
)
def test_conversation_always_begins_with_a_user(messages: list[tuple[str, str]]) -> None:
    assert body(*messages)["messages"][0] == snapshot(
        {"role": "user", "content": "(The conversation begins.)"}
    )


def test_empty_texts_are_left_out() -> None:
    sent = body(("system", " "), ("user", "a"), ("assistant", "\n"), ("user", "b"))

    assert "system" not in sent
    assert len(sent["messages"]) == 1


def test_white_space_at_the_end_of_a_final_answer_is_removed() -> None:
    talk = (("user", "a"), ("assistant", "Well, \n"))
    assert body(*talk, model="claude-opus-4-1")["messages"][-1]["content"] == "Well,"


def test_beginning_of_an_answer_is_left_out_for_models_that_reject_it() -> None:
    talk = (("user", "a"), ("assistant", "Well,"))
    assert body(*talk, model="claude-opus-4-8")["messages"] == [{"role": "user", "content": "a"}]
    reasoning = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
    sent = body(*talk, model="claude-opus-4-1", parameters=reasoning)
    assert sent["messages"][-1]["role"] == "user"


def test_images_are_sent_between_their_texts() -> None:
    seen = Message("user", "this?and?", ("this?", Image(PNG), "and?", Image("https://x/y.jpg")))

    assert body(seen)["messages"][0]["content"] == snapshot(
        [
            {"type": "text", "text": "this?"},
            {
                "type": "image",
                "source": {
                    "type": "base64",
                    "media_type": "image/png",
                    "data": "iVBORw0KGgo=",
                },
            },
            {"type": "text", "text": "and?"},
            {"type": "image", "source": {"type": "url", "url": "https://x/y.jpg"}},
        ]
    )


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            Message("user", "", (Image("data:image/bmp;base64,AAAA"),)),
            "'data:image/bmp;base64,AAAA'",
        ),
        (Message("user", "", (Image("file:///etc/passwd"),)), "is no link and no base64"),
        (Message("assistant", "", (Image(PNG),)), "a message of the role 'assistant'"),
    ],
)
def test_image_that_the_api_cannot_take_is_named(message: Message, words: str) -> None:
    with pytest.raises(BackendUnavailable, match=words):
        body(message)


def cached(sent: dict[str, Any]) -> list[str]:
    """The texts at whose end a cached prefix ends."""
    groups = [sent.get("system", []), *(each["content"] for each in sent["messages"])]
    blocks = [block for group in groups if isinstance(group, list) for block in group]
    return [block["text"] for block in blocks if "cache_control" in block]


def test_stable_prefixes_are_marked_for_the_cache() -> None:
    sent = body(
        ("system", "persona"),
        ("system", "lore"),
        ("system", "summary"),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
        ("assistant", "d"),
        ("system", "observed"),
        ("user", "e"),
        cache="5m",
    )

    assert cached(sent) == ["persona", "summary", "d"]


def test_cache_may_live_an_hour_or_be_off() -> None:
    sent = body(("system", "persona"), ("user", "a"), cache="1h")

    assert sent["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert cached(body(("system", "persona"), ("user", "a"), cache="off")) == []


@pytest.mark.parametrize(
    ("limit", "parameters", "sent"),
    [
        (None, {}, 4096),
        (300, {}, 300),
        (300, {"max_tokens": 100}, 100),
        (300, {"max_completion_tokens": 1000}, 300),
        (300, {"thinking": {"type": "enabled", "budget_tokens": 2000}}, 2300),
        (300, {"thinking": {"type": "adaptive"}}, 8492),
        (300, {"thinking": {"type": "disabled"}}, 300),
    ],
)
def test_max_tokens_covers_answer_and_reasoning(
    limit: int | None, parameters: dict[str, object], sent: int
) -> None:
    made = body(("user", "a"), parameters=parameters, max_output_tokens=limit)

    assert made["max_tokens"] == sent


@pytest.mark.parametrize(
    ("model", "effort", "thinking", "output_config"),
    [
        ("claude-opus-4-8", "high", {"type": "adaptive"}, {"effort": "high"}),
        ("claude-sonnet-5", "minimal", {"type": "adaptive"}, {"effort": "low"}),
        ("claude-sonnet-4-6", "max", {"type": "adaptive"}, {"effort": "max"}),
        ("claude-sonnet-4-5-20250929", "low", {"type": "enabled", "budget_tokens": 2048}, None),
        ("claude-opus-4-20250514", "high", {"type": "enabled", "budget_tokens": 16384}, None),
        ("claude-3-7-sonnet-latest", "max", {"type": "enabled", "budget_tokens": 32000}, None),
        ("claude-opus-4-8", "none", None, None),
    ],
)
def test_reasoning_effort_is_translated_for_the_model(
    model: str, effort: str, thinking: object, output_config: object
) -> None:
    sent = body(("user", "a"), model=model, parameters={"reasoning_effort": effort})

    assert (sent.get("thinking"), sent.get("output_config")) == (thinking, output_config)


def test_user_becomes_metadata_and_null_removes_a_parameter() -> None:
    sent = body(("user", "a"), parameters={"user": "u1", "temperature": None})

    assert sent["metadata"] == {"user_id": "u1"}
    assert "temperature" not in sent


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"TopK": 3}, "unknown parameter 'TopK'; did you mean 'top_k'?"),
        ({"seed": 1}, "unknown parameter 'seed'; the Messages API has max_completion_tokens, "),
        ({"presence_penalty": 1}, "unknown parameter 'presence_penalty'; "),
        ({"temperature": 1.5}, "the parameter 'temperature' must be a number from 0 to 1, not 1.5"),
        ({"n": 2}, "the parameter 'n' must be 1, as a chat gets one answer, not 2"),
        ({"thinking": {"type": "enabled"}}, "the parameter 'thinking' must be "),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "with at least 1024 tokens, not "),
        ({"reasoning_effort": "huge"}, "must be one of none, minimal, low, "),
    ],
)
async def test_parameter_that_the_api_does_not_have_is_rejected_by_name(
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
def test_provider_needs_a_key_only(provider: str, given: dict[str, str], base_url: str) -> None:
    settings = read_settings(providers={provider: {"api_key": "k", **given}}).providers[provider]

    assert isinstance(settings, AnthropicSettings)
    assert settings.base_url == base_url
