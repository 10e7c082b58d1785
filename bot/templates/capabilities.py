"""Fits a conversation to what a template can say, found out by asking the template itself.

Some models know no system role, or only turns that alternate and begin with the user. Chat rooms
have all of it: several people in a row, a greeting by the character, a persona. What a template
refuses is said in a form that it accepts, by rules that never look at the model's name:

- a system text that it refuses or drops goes in front of the user's turn that follows it;
- neighbouring turns of one role become one, if it insists on alternation;
- an answer at the very beginning gets a turn before it, if it insists on the user's beginning;
- a text becomes a list of one part, if it loses any other (those of models that see images may).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bot.errors import TemplateError
from bot.templates.control_tokens import ChatTemplate
from bot.templates.jinja.jinja_template import JinjaTemplate, Message
from bot.templates.text_spans import render_messages

PLACEHOLDER_USER_TEXT: Final = (
    "..."  # what the user "said" before a greeting, where something has to be said
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a template accepts without losing a word."""

    system: bool  # a system text at the beginning
    late_system: bool  # ... and between turns
    repeats: bool  # two turns of the same role in a row
    assistant_first: bool
    texts: bool = True  # a content that is a text, and not only a list of parts


ALL_CAPABILITIES: Final = Capabilities(True, True, True, True)

_TURNS: Final[Mapping[str, Sequence[Message]]] = {
    name: tuple({"role": role, "content": f"probe {role} {number}"} for number, role in turns)
    for name, turns in {
        "system": enumerate(("system", "user")),
        "late_system": enumerate(("system", "user", "assistant", "system", "user")),
        "repeats": enumerate(("user", "user", "assistant", "assistant", "user")),
        "assistant_first": enumerate(("assistant", "user")),
        "texts": enumerate(("user",)),
    }.items()
}
_IN_PARTS: Final = " in parts"


def _parts(content: Any) -> Sequence[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _in_parts(messages: Sequence[Message]) -> list[Message]:
    return [{**message, "content": _parts(message.get("content") or "")} for message in messages]


PROBES: Final[Mapping[str, Sequence[Message]]] = {
    **_TURNS,
    **{name + _IN_PARTS: _in_parts(turns) for name, turns in _TURNS.items()},
}


def capabilities(template: ChatTemplate, **options: Any) -> Capabilities:
    """Render small conversations and see what is refused and what is dropped.

    `options` are what the template needs with any conversation, as for its `render`.
    """
    # What is written in another way than in Jinja knows no parts.
    probes = PROBES if isinstance(template, JinjaTemplate) else _TURNS
    return conclude({name: _rendered(template, probe, options) for name, probe in probes.items()})


def conclude(prompts: Mapping[str, str | None]) -> Capabilities:
    """Read what became of PROBES: the prompt of each, or None when it was refused."""
    texts, parts = (
        {name: _kept(prompts.get(name + form), turns) for name, turns in _TURNS.items()}
        for form in ("", _IN_PARTS)
    )
    if parts["texts"] and not texts["texts"]:
        return Capabilities(**{**parts, "texts": False})
    return Capabilities(**{**texts, "texts": True})


def _rendered(
    template: ChatTemplate, messages: Sequence[Message], options: Mapping[str, Any]
) -> str | None:
    try:
        return render_messages(template, messages, **options)
    except TemplateError:
        return None


def _kept(prompt: str | None, messages: Sequence[Message]) -> bool:
    if prompt is None:
        return False
    seen = prompt.casefold()
    return all(message["content"] in seen for message in messages)


def adapt_messages(
    messages: Sequence[Message], able: Capabilities, *, trim_inputs: bool = False
) -> list[Message]:
    """Return the conversation as the template can say it; messages that fit stay the same objects.

    With `trim_inputs` all texts lose the white space around them, as training data usually had it.
    """
    fitted = [_trimmed(message) for message in messages] if trim_inputs else list(messages)
    if not (able.system and able.late_system):
        fitted = _fold_system(fitted, keep_first=able.system)
    if not able.repeats:
        fitted = _merge_repeats(fitted)
    if not able.assistant_first:
        fitted = _open(fitted)
    return fitted if able.texts else _in_parts(fitted)


def _fold_system(messages: Sequence[Message], *, keep_first: bool) -> list[Message]:
    folded: list[Message] = []
    waiting: Message | None = None
    for index, message in enumerate(messages):
        if message["role"] == "system" and not (keep_first and index == 0):
            waiting = _joined(waiting, {**message, "role": "user"}, "\n\n")
        elif waiting is not None and message["role"] == "user":
            folded.append(_joined(waiting, message, "\n\n"))
            waiting = None
        else:
            folded += [message] if waiting is None else [waiting, message]
            waiting = None
    return folded if waiting is None else [*folded, waiting]


def _merge_repeats(messages: Sequence[Message]) -> list[Message]:
    merged: list[Message] = []
    for message in messages:
        if merged and _can_merge(merged[-1], message):
            merged[-1] = _joined(merged[-1], message, "\n")
        else:
            merged.append(message)
    return merged


def _can_merge(first: Message, second: Message) -> bool:
    mergeable = {"role", "content", "name"}  # not calls of tools and their results
    same_role = first["role"] == second["role"]
    return same_role and first.keys() <= mergeable and second.keys() <= mergeable


def _open(messages: list[Message]) -> list[Message]:
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


def _joined(first: Message | None, second: Message, separator: str) -> Message:
    """Return one message with both contents; a content in parts keeps its parts."""
    if first is None:
        return second
    contents = (first.get("content") or "", second.get("content") or "")
    if all(isinstance(content, str) for content in contents):
        return {**second, "content": separator.join(filter(None, contents))}
    return {**second, "content": [part for content in contents for part in _parts(content)]}


def _trimmed(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, str) or content == content.strip():
        return message
    return {**message, "content": content.strip()}
