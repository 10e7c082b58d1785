"""Detect what a chat template accepts, and adapt conversations to it.

Some templates have no system role, or require that roles alternate and start with the user. Group
chats need several users in a row, a greeting by the character, and a persona. So messages are
rewritten to a form that the template accepts; its output decides, not the model's name:

- A system message that the template rejects or drops is put in front of the next user message.
- Consecutive messages with the same role are merged if roles must alternate.
- A user message is inserted before an assistant message at the start, if necessary.
- A string becomes a list with one text part if the template drops strings (vision models).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from bot.chat.prompt import TemplateCapabilities
from bot.errors import RenderUnavailable, TemplateError, TemplateLimitExceeded
from bot.templates.jinja_template import Message

PLACEHOLDER_USER_TEXT: Final = "..."  # the user message to insert before a greeting

_TEXT_PROBES: Final[Mapping[str, Sequence[Message]]] = {
    name: tuple({"role": role, "content": f"probe {role} {number}"} for number, role in turns)
    for name, turns in {
        "accepts_system": enumerate(("system", "user")),
        "accepts_late_system": enumerate(("system", "user", "assistant", "system", "user")),
        "accepts_repeated_roles": enumerate(("user", "user", "assistant", "assistant", "user")),
        "accepts_assistant_first": enumerate(("assistant", "user")),
        "accepts_text_content": enumerate(("user",)),
    }.items()
}
_PARTS_SUFFIX: Final = " in parts"


def _to_parts(content: Any) -> Sequence[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _with_content_parts(messages: Sequence[Message]) -> list[Message]:
    return [{**message, "content": _to_parts(message.get("content") or "")} for message in messages]


PROBES: Final[Mapping[str, Sequence[Message]]] = {
    **_TEXT_PROBES,
    **{name + _PARTS_SUFFIX: _with_content_parts(turns) for name, turns in _TEXT_PROBES.items()},
}


async def detect_capabilities(
    render: Callable[[Sequence[Message]], Awaitable[str]],
) -> TemplateCapabilities:
    """Detect what a template rejects or drops in test chats; raise if a render is stopped."""
    prompts = {name: await render_or_none(render, probe) for name, probe in PROBES.items()}
    text_capabilities, part_capabilities = (
        {
            name: _contains_all_contents(prompts[name + suffix], turns)
            for name, turns in _TEXT_PROBES.items()
        }
        for suffix in ("", _PARTS_SUFFIX)
    )
    if part_capabilities["accepts_text_content"] and not text_capabilities["accepts_text_content"]:
        return TemplateCapabilities(**{**part_capabilities, "accepts_text_content": False})
    return TemplateCapabilities(**{**text_capabilities, "accepts_text_content": True})


async def render_or_none(
    render: Callable[[Sequence[Message]], Awaitable[str]], messages: Sequence[Message]
) -> str | None:
    """Render messages, or return None if the template rejects them."""
    try:
        return await render(messages)
    except (TemplateLimitExceeded, RenderUnavailable):
        raise
    except TemplateError:
        return None


def has_content_parts(messages: Sequence[Message]) -> bool:
    """Return whether any message's content is a list of parts; only Jinja templates read these."""
    return any(isinstance(message.get("content"), list | tuple) for message in messages)


def _contains_all_contents(prompt: str | None, messages: Sequence[Message]) -> bool:
    if prompt is None:
        return False
    lowercase_prompt = prompt.casefold()
    return all(message["content"] in lowercase_prompt for message in messages)


def adapt_messages(
    messages: Sequence[Message], capabilities: TemplateCapabilities, *, trim_inputs: bool = False
) -> list[Message]:
    """Return a conversation rewritten to a form that the template accepts."""
    result = [_trim_content(message) for message in messages] if trim_inputs else list(messages)
    if not (capabilities.accepts_system and capabilities.accepts_late_system):
        result = _fold_system_into_user(result, capabilities)
    if not capabilities.accepts_repeated_roles:
        result = _merge_repeated_roles(result)
    if not capabilities.accepts_assistant_first:
        result = _insert_first_user_message(result)
    return result if capabilities.accepts_text_content else _with_content_parts(result)


def _fold_system_into_user(
    messages: Sequence[Message], capabilities: TemplateCapabilities
) -> list[Message]:
    result: list[Message] = []
    pending_message: Message | None = None
    for index, message in enumerate(messages):
        if message["role"] == "system" and not (capabilities.accepts_system and index == 0):
            pending_message = _join_messages(pending_message, {**message, "role": "user"}, "\n\n")
        elif pending_message is not None and message["role"] == "user":
            result.append(_join_messages(pending_message, message, "\n\n"))
            pending_message = None
        else:
            if pending_message is not None:
                _append_or_merge(result, pending_message, capabilities)
            result.append(message)
            pending_message = None
    if pending_message is not None:
        _append_or_merge(result, pending_message, capabilities)
    return result


def _append_or_merge(
    messages: list[Message], message: Message, capabilities: TemplateCapabilities
) -> None:
    if messages and not capabilities.accepts_repeated_roles and _can_merge(messages[-1], message):
        message = _join_messages(messages.pop(), message, "\n\n")
    messages.append(message)


def _merge_repeated_roles(messages: Sequence[Message]) -> list[Message]:
    result: list[Message] = []
    for message in messages:
        has_same_role = result and result[-1]["role"] == message["role"]
        if has_same_role and _can_merge(result[-1], message):
            new_message = _join_messages(result[-1], message, "\n")
            if new_message.get("name") != result[-1].get("name"):  # it has two speakers
                new_message = {key: value for key, value in new_message.items() if key != "name"}
            result[-1] = new_message
        else:
            result.append(message)
    return result


def _can_merge(first: Message, second: Message) -> bool:
    mergeable_keys = {"role", "content", "name"}  # but not tool calls or their results
    has_same_role = first["role"] == second["role"]
    return has_same_role and first.keys() <= mergeable_keys and second.keys() <= mergeable_keys


def _insert_first_user_message(messages: list[Message]) -> list[Message]:
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            return [
                *messages[:index],
                {"role": "user", "content": PLACEHOLDER_USER_TEXT},
                *messages[index:],
            ]
        if message["role"] == "user":
            break
    return messages


def _join_messages(first: Message | None, second: Message, separator: str) -> Message:
    if first is None:
        return second
    contents = (first.get("content") or "", second.get("content") or "")
    if all(isinstance(content, str) for content in contents):
        return {**second, "content": separator.join(filter(None, contents))}
    return {**second, "content": [part for content in contents for part in _to_parts(content)]}


def _trim_content(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, str) or content == content.strip():
        return message
    return {**message, "content": content.strip()}
