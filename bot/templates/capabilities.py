"""Detect what a chat template accepts, and adapt conversations to it.

Some templates have no system role, or require that roles alternate and start with the user. Group
chats need several users in a row, a greeting by the character, and a persona. So messages are
rewritten to a form that the template accepts, judging by its output, not by the model's name:

- A system message that it rejects or drops is put in front of the next user message.
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


def _as_parts(content: Any) -> Sequence[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _with_content_parts(messages: Sequence[Message]) -> list[Message]:
    return [{**message, "content": _as_parts(message.get("content") or "")} for message in messages]


PROBES: Final[Mapping[str, Sequence[Message]]] = {
    **_TEXT_PROBES,
    **{name + _PARTS_SUFFIX: _with_content_parts(turns) for name, turns in _TEXT_PROBES.items()},
}


async def detect_capabilities(
    render: Callable[[Sequence[Message]], Awaitable[str]],
) -> TemplateCapabilities:
    """Detect what a template rejects or drops in test chats; raise if a rendering was stopped."""
    prompts = {name: await render_or_none(render, probe) for name, probe in PROBES.items()}
    texts, parts = (
        {
            name: _contains_all_contents(prompts[name + suffix], turns)
            for name, turns in _TEXT_PROBES.items()
        }
        for suffix in ("", _PARTS_SUFFIX)
    )
    if parts["accepts_text_content"] and not texts["accepts_text_content"]:
        return TemplateCapabilities(**{**parts, "accepts_text_content": False})
    return TemplateCapabilities(**{**texts, "accepts_text_content": True})


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


def has_parts(messages: Sequence[Message]) -> bool:
    """Return whether any message's content is a list of parts; only Jinja templates read these."""
    return any(isinstance(message.get("content"), list | tuple) for message in messages)


def _contains_all_contents(prompt: str | None, messages: Sequence[Message]) -> bool:
    if prompt is None:
        return False
    lowered = prompt.casefold()
    return all(message["content"] in lowered for message in messages)


def adapt_messages(
    messages: Sequence[Message], capabilities: TemplateCapabilities, *, trim_inputs: bool = False
) -> list[Message]:
    """Return a conversation rewritten to a form that the template accepts."""
    adapted = [_trim(message) for message in messages] if trim_inputs else list(messages)
    if not (capabilities.accepts_system and capabilities.accepts_late_system):
        adapted = _fold_system_into_user(adapted, capabilities)
    if not capabilities.accepts_repeated_roles:
        adapted = _merge_repeated_roles(adapted)
    if not capabilities.accepts_assistant_first:
        adapted = _insert_first_user_message(adapted)
    return adapted if capabilities.accepts_text_content else _with_content_parts(adapted)


def _fold_system_into_user(
    messages: Sequence[Message], capabilities: TemplateCapabilities
) -> list[Message]:
    folded: list[Message] = []
    pending: Message | None = None
    for index, message in enumerate(messages):
        if message["role"] == "system" and not (capabilities.accepts_system and index == 0):
            pending = _join_messages(pending, {**message, "role": "user"}, "\n\n")
        elif pending is not None and message["role"] == "user":
            folded.append(_join_messages(pending, message, "\n\n"))
            pending = None
        else:
            if pending is not None:
                _append_folded(folded, pending, capabilities)
            folded.append(message)
            pending = None
    if pending is not None:
        _append_folded(folded, pending, capabilities)
    return folded


def _append_folded(
    folded: list[Message], pending: Message, capabilities: TemplateCapabilities
) -> None:
    if folded and not capabilities.accepts_repeated_roles and _can_merge(folded[-1], pending):
        pending = _join_messages(folded.pop(), pending, "\n\n")
    folded.append(pending)


def _merge_repeated_roles(messages: Sequence[Message]) -> list[Message]:
    merged: list[Message] = []
    for message in messages:
        same_role = merged and merged[-1]["role"] == message["role"]
        if same_role and _can_merge(merged[-1], message):
            joined = _join_messages(merged[-1], message, "\n")
            if joined.get("name") != merged[-1].get("name"):  # its parts have different speakers
                joined = {key: value for key, value in joined.items() if key != "name"}
            merged[-1] = joined
        else:
            merged.append(message)
    return merged


def _can_merge(first: Message, second: Message) -> bool:
    mergeable = {"role", "content", "name"}  # but not tool calls or their results
    same_role = first["role"] == second["role"]
    return same_role and first.keys() <= mergeable and second.keys() <= mergeable


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
    return {**second, "content": [part for content in contents for part in _as_parts(content)]}


def _trim(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, str) or content == content.strip():
        return message
    return {**message, "content": content.strip()}
