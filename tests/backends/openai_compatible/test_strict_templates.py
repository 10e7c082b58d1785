"""Every conversation works with servers whose templates reject unusual role orders."""

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.prompt import Image, Message, Prompt, Role, ToolCall, ToolExchange, ToolSpec
from bot.errors import TemplateError
from bot.templates import JinjaTemplate
from tests.backends.asking import Answer, ask
from tests.rigs.fake_openai import FakeOpenAI, Script
from tests.shared_data import shared_folder

STRICT = "strict rules"
TEMPLATES = (
    "hfjs/Qwen/Qwen3.5-4B",
    "gemma-3",
    "mistral-nemo",
    "mistral-v1-system",
    "llama-default",
    "orig/mistral-v0.1",  # it has no system role, nor has the next
    "orig/gemma-1.1",
)
SPEC = ToolSpec("dice", "Roll dice.", {"type": "object", "properties": {}})
EXCHANGE = ToolExchange("I roll.", (ToolCall("abcdefghi", "dice", "{}"),), ("7",))


class StrictServer(FakeOpenAI):  # type: ignore[misc] # the rig has no types
    """Renders a model's chat template, and answers with status 400 if the template raises."""

    def __init__(self, template: str) -> None:
        super().__init__()
        self._template = None if template == STRICT else read_template(template)

    @override
    def refusal(self, entry: Mapping[str, Any]) -> Script | None:
        messages = entry["body"]["messages"]
        try:
            if self._template is None:
                require_alternation(messages)
            else:
                render(self._template, messages, entry["body"].get("tools"))
        except TemplateError as error:
            return Script([json.dumps({"error": {"message": str(error)}}).encode()], status=400)
        return None


def read_template(name: str) -> JinjaTemplate:
    path = shared_folder() / "golden" / "chat_templates.templates.json"
    found = json.loads(path.read_text(encoding="utf-8"))[name]
    tokens = {key: found[key] or "" for key in ("bos_token", "eos_token")}
    return JinjaTemplate(found["template"], **tokens)


def render(template: JinjaTemplate, messages: Sequence[Mapping[str, Any]], tools: Any) -> None:
    given = [to_template_message(each) for each in messages]
    prompt = template.render(given, tools=tools, add_generation_prompt=True)
    # Mistral's template writes the system message only in front of a question that comes last.
    missing = [one for one in message_texts(messages) if one not in prompt and not tools]
    if missing:
        raise TemplateError(f"lost {missing}")


def require_alternation(messages: Sequence[Mapping[str, Any]]) -> None:
    turns = messages[1:] if messages[0]["role"] == "system" else messages
    roles = [one["role"] for one in turns if one["role"] != "tool" and "tool_calls" not in one]
    if any(role != ("user", "assistant")[at % 2] for at, role in enumerate(roles)):
        raise TemplateError("roles must alternate, behind one system message")


def to_template_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a message as servers do: arguments become objects, and images get their own type."""
    calls = [
        {
            **one,
            "function": {**one["function"], "arguments": json.loads(one["function"]["arguments"])},
        }
        for one in message.get("tool_calls", ())
    ]
    content = message["content"]
    if isinstance(content, list):
        content = [{"type": "image"} if one["type"] == "image_url" else one for one in content]
    return {**message, "content": content, **({"tool_calls": calls} if calls else {})}


def message_texts(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the texts of people and models; templates may drop the text next to a tool call."""
    contents = [one["content"] for one in messages if "tool_calls" not in one]
    parts = [
        part for one in contents for part in (one if isinstance(one, list) else [{"text": one}])
    ]
    return [part["text"] for part in parts if "text" in part]


async def ask_server(template: str, question: Prompt) -> Answer:
    async with StrictServer(template) as server:
        backend = OpenAICompatibleBackend(OpenAISettings(base_url=server.base_url), "x")
        answer = await ask(backend, question)
        await backend.close()
    return answer


ROLES: st.SearchStrategy[Role] = st.sampled_from(("system", "user", "assistant"))

SYSTEM: st.SearchStrategy[Role] = st.just("system")


@st.composite
def conversations(draw: st.DrawFn, *, has_images: bool = False) -> tuple[Message, ...]:
    """Generate conversations with pinned messages, summaries, lore, greetings, and speakers."""
    roles: list[Role] = [
        *draw(st.lists(ROLES, max_size=9)),
        "user",
        *draw(st.lists(SYSTEM, max_size=2)),
    ]
    pictures = (Image("data:image/png;base64,AAAA"),)
    return tuple(
        Message(role, text, (text, *pictures) if has_images and role == "user" else ())
        for text, role in ((f"text {at}.", role) for at, role in enumerate(roles))
    )


@pytest.mark.parametrize("template", [STRICT, *TEMPLATES])
def test_any_conversation_is_answered(template: str) -> None:
    has_images = template in {STRICT, "gemma-3", "hfjs/Qwen/Qwen3.5-4B"}
    models = itertools.count()  # what is learned of one is not known of the next

    with asyncio.Runner() as runner:
        server = StrictServer(template)
        runner.run(server.__aenter__())
        backend = OpenAICompatibleBackend(OpenAISettings(base_url=server.base_url), "x")

        @settings(max_examples=40, deadline=None)
        @given(messages=conversations(has_images=has_images))
        def check(messages: tuple[Message, ...]) -> None:
            answer = runner.run(ask(backend, Prompt(messages, f"m{next(models)}", "chat")))
            assert answer.error is None, answer.error_texts

        check()
        runner.run(backend.close())
        runner.run(server.__aexit__(None, None, None))


@pytest.mark.parametrize("template", [STRICT, "hfjs/Qwen/Qwen3.5-4B", "mistral-nemo"])
async def test_conversation_with_tool_calls_is_answered(template: str) -> None:
    roles: tuple[Role, ...] = ("system", "system", "assistant", "user", "user")
    messages = tuple(Message(role, f"text {at}.") for at, role in enumerate(roles))
    question = Prompt(
        messages, "m", "chat", tools=(SPEC,), tool_exchanges=(EXCHANGE, EXCHANGE), begun="Seven"
    )
    answer = await ask_server(template, question)
    assert answer.error is None, answer.error_texts
