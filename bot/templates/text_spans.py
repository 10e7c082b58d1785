"""Cuts a prompt into the template's text and people's text, so that neither is taken for the other.

Nothing that people write may become a control token. Escaping cannot promise that: it must know
every control word of every vocabulary. Cutting can: the template's pieces are tokenized with
control tokens, people's pieces without, and the ids are joined.

To find the cuts, the messages are rendered a second time with invisible marks around people's text.
If the marked prompt without its marks is the prompt, the marks show what came from whom.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from bot.errors import TemplateError
from bot.templates.control_tokens import ChatTemplate, break_control_tokens, cuts, markers
from bot.templates.jinja.jinja_template import JinjaTemplate, Message
from bot.templates.string_template import StringTemplate

UNTRUSTED_FIELDS = ("content", "name", "reasoning_content", "thinking")
PRIVATE_USE_CODE_POINTS = range(0xF0000, 0x10FFFE)
RenderMessages = Callable[[Sequence[Message]], str]
MarkText = Callable[[str, str, str], str]


@dataclass(frozen=True, slots=True)
class TextSpan:
    text: str
    trusted: bool  # False: from people; it must not become a control token


def pieces(template: ChatTemplate, messages: Sequence[Message], **options: Any) -> list[TextSpan]:
    """Render and cut; `options` are those of the template's `render`.

    The pieces joined are the rendered prompt. Only where a template changes people's text so that
    it cannot be followed, the text has the template's control words broken first.
    """

    def render(given: Sequence[Message]) -> str:
        return render_messages(template, given, **options)

    words = markers(template)
    prompt = render(messages)
    for wrap in (_whole, _without_margins, _between(cuts(template))):
        found = _cut(render, messages, prompt, wrap, words)
        if found is not None:
            return found
    safe = [
        _changed(message, lambda text: break_control_tokens(text, words)) for message in messages
    ]
    prompt = render(safe)
    return _cut(render, safe, prompt, _without_margins, words) or [TextSpan(prompt, trusted=True)]


def render_messages(template: ChatTemplate, messages: Sequence[Message], **options: Any) -> str:
    """Render with any kind of template."""
    match template:
        case JinjaTemplate():
            return template.render(messages, **options)
        case StringTemplate():
            return template.render(messages)
        case _:
            prompt = template.messages2prompt(messages, **options)
            if prompt is None:
                raise TemplateError("this template has no form for conversations, only for a text")
            return prompt


def _cut(
    render: RenderMessages,
    messages: Sequence[Message],
    prompt: str,
    wrap: MarkText,
    words: Sequence[str],
) -> list[TextSpan] | None:
    """Return the pieces, or None if marks that are set so change the prompt or get lost."""
    marks = _free_marks(messages, prompt)
    if marks is None:
        return None
    pairs = zip(messages, marks, strict=True)
    try:
        marked = render([_changed(message, _marking(wrap, *pair)) for message, pair in pairs])
    except TemplateError:
        return None
    every_mark = [ord(mark) for pair in marks for mark in pair]
    parts = re.split(f"({_one_of(every_mark)})", marked) if every_mark else [marked]
    if "".join(parts[::2]) != prompt:
        return None
    return _read_marks(parts, dict(marks), words)


def _read_marks(
    parts: Sequence[str], ends: Mapping[str, str], words: Sequence[str]
) -> list[TextSpan] | None:
    """Read `text, mark, text, mark, …, text`; None when the marks do not come in pairs."""
    found = [TextSpan(parts[0], trusted=True)]
    before, awaited = "", ""
    for mark, text in zip(parts[1::2], parts[2::2], strict=True):
        if awaited:
            if mark != awaited:
                return None
            found.append(TextSpan(text, trusted=True))
            awaited = ""
        else:
            if mark not in ends:
                return None
            awaited = ends[mark]
            if before == awaited and any(word in found[-1].text for word in words):
                # Between two parts of the same message stands a control word that people wrote.
                found[-1] = TextSpan(found[-1].text, trusted=False)
            found.append(TextSpan(text, trusted=False))
        before = mark
    if awaited:
        return None
    return _joined(found)


def _joined(found: Iterable[TextSpan]) -> list[TextSpan]:
    with_text = (piece for piece in found if piece.text)
    return [
        TextSpan("".join(piece.text for piece in group), trusted)
        for trusted, group in groupby(with_text, key=lambda piece: piece.trusted)
    ]


def _changed(message: Message, change: Callable[[str], str]) -> Message:
    """Return the message with all of people's texts in it changed, the parts of a content too."""
    changed: dict[str, Any] = dict(message)
    for field in UNTRUSTED_FIELDS:
        value = message.get(field)
        if isinstance(value, str):
            changed[field] = change(value)
        elif field == "content" and isinstance(value, list | tuple):
            changed[field] = [
                {**part, "text": change(part["text"])}
                if isinstance(part, Mapping) and isinstance(part.get("text"), str)
                else part
                for part in value
            ]
    return changed


def _marking(wrap: MarkText, begin: str, end: str) -> Callable[[str], str]:
    return lambda text: wrap(text, begin, end)


def _whole(text: str, begin: str, end: str) -> str:
    return f"{begin}{text}{end}" if text.strip() else text


def _without_margins(text: str, begin: str, end: str) -> str:
    """Mark what is left when a template trims; the white space around it is nobody's."""
    core = text.strip()
    margin = len(text) - len(text.lstrip())
    return f"{text[:margin]}{begin}{core}{end}{text[margin + len(core) :]}" if core else text


def _between(words: Sequence[str]) -> MarkText:
    """Mark what stands between the words at which a template splits: `</think>`."""
    pattern = re.compile("(" + "|".join(map(re.escape, words)) + ")") if words else None

    def wrap(text: str, begin: str, end: str) -> str:
        parts = pattern.split(text) if pattern else [text]
        return "".join(
            part if index % 2 else _without_margins(part, begin, end)
            for index, part in enumerate(parts)
        )

    return wrap


def _one_of(signs: Sequence[int]) -> str:
    """A pattern for one of these code points, which ascend.

    Runs are written as ranges: `re` tries what stands above U+FFFF one after the other.
    """
    runs = groupby(enumerate(signs), key=lambda place: place[1] - place[0])
    ends = [(run[0][1], run[-1][1]) for _, found in runs if (run := list(found))]
    return "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in ends) + "]"


def _free_marks(messages: Sequence[Message], prompt: str) -> list[tuple[str, str]] | None:
    """Return a pair of characters for each message that occur nowhere in what is rendered."""
    taken = set(prompt + json.dumps(messages, ensure_ascii=False, default=str))
    free = (mark for mark in map(chr, PRIVATE_USE_CODE_POINTS) if mark not in taken)
    found = list(islice(free, 2 * len(messages)))
    if len(found) < 2 * len(messages):
        return None
    return list(zip(found[::2], found[1::2], strict=True))
