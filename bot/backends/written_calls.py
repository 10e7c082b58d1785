"""Read the calls of tools that a local model writes into its answer, in the form of its template.

Nothing of a call is shown. What cannot be read as JSON still becomes a call with the arguments as
they stand, so that the model is told what was wrong with it; calls are bounded in number and size.
"""

import json
import re
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from bot.backends.tool_calls import MAX_ARGUMENT_CHARS, MAX_CALLS, MAX_NAME_CHARS
from bot.chat.prompt import Delta, Finish, FinishReason, ReasoningDelta
from bot.chat.tool import ToolCall
from bot.templates.tool_forms import ToolForm

_OPEN, _CLOSE, _LIST, _PYTHON = "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>"
MARKERS: Final = (_OPEN, _CLOSE, _LIST, "[ARGS]", "[CALL_ID]", _PYTHON)
"""What an engine must return as text, although some vocabularies call it a control token."""

_MAX_CHARS: Final = 2 * MAX_ARGUMENT_CHARS  # of all calls of an answer
_NAME: Final = re.compile(r'"name"\s*:\s*"([^"\\]{1,64})"')
_NAMED_ARGUMENTS: Final = re.compile(r"\s*([\w.-]{1,64})\s*(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*\{")
_DECODER: Final = json.JSONDecoder()


class WrittenCallParser:
    """Takes an answer in pieces of any size and separates its calls from its text."""

    def __init__(self, form: ToolForm, offered: Collection[str]) -> None:
        """Take the form, and the names of the tools: JSON that names none is an answer."""
        self._form = form
        self._offered = offered
        self._pending = ""  # text that may be the beginning of a marker
        self._is_calling = False
        self._is_answering = False  # for BARE: the answer has begun as text
        self._written = ""

    def feed(self, text: str) -> str:
        """Return what of the answer is text for readers."""
        if self._is_calling:
            return self._add(text)
        self._pending += text
        if self._form is ToolForm.BARE:
            return self._feed_bare()
        marker = _OPEN if self._form is ToolForm.TAGGED else _LIST
        before, found, after = self._pending.partition(marker)
        if found:
            self._pending, self._is_calling = "", True
            return before + self._add(found + after)
        kept = _length_of_beginning(self._pending, marker)
        shown = self._pending[: len(self._pending) - kept]
        self._pending = self._pending[len(shown) :]
        return shown

    def finish(self, *, is_cut: bool = False) -> tuple[str, tuple[ToolCall, ...]]:
        """Return the rest of the text, and the calls.

        Args:
            is_cut: whether the answer was longer than it may be; its last call is not whole then.
        """
        if not self._is_calling:
            return self._pending, ()
        found = _read(self._form, self._written, is_cut=is_cut)
        if self._form is ToolForm.BARE:
            found = [one for one in found if one[0] in self._offered]
            if not found:
                return self._written, ()
        calls = [
            ToolCall(f"call_{number}", name[:MAX_NAME_CHARS], arguments[:MAX_ARGUMENT_CHARS])
            for number, (name, arguments) in enumerate(found[:MAX_CALLS])
        ]
        return "", tuple(calls)

    def _add(self, text: str) -> str:
        self._written += text
        if len(self._written) <= _MAX_CHARS:
            return ""
        if self._form is ToolForm.BARE:  # no call is so long: somebody asked for JSON
            shown, self._written = self._written, ""
            self._is_calling, self._is_answering = False, True
            return shown
        self._written = self._written[:_MAX_CHARS]
        return ""

    def _feed_bare(self) -> str:
        start = self._pending.lstrip()
        if not self._is_answering and start.startswith(("{", _PYTHON)):
            text, self._pending, self._is_calling = self._pending, "", True
            return self._add(text)
        if not self._is_answering and _PYTHON.startswith(start):
            return ""
        self._is_answering = True
        shown, self._pending = self._pending, ""
        return shown


async def separate_calls(
    events: AsyncGenerator[Delta | ReasoningDelta | Finish, None],
    form: ToolForm,
    offered: Collection[str],
) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
    """Pass the events of an answer on; its calls come with the finish."""
    parser = WrittenCallParser(form, offered)
    async with aclosing(events):
        async for event in events:
            match event:
                case Delta(text):
                    if shown := parser.feed(text):
                        yield Delta(shown)
                case Finish():
                    is_cut = event.reason is FinishReason.LENGTH
                    rest, calls = parser.finish(is_cut=is_cut)
                    if rest:
                        yield Delta(rest)
                    yield replace(event, tool_calls=calls) if calls else event
                case _:
                    yield event


def _length_of_beginning(text: str, marker: str) -> int:
    """Return how many characters at the end of a text are the beginning of a marker."""
    lengths = range(min(len(text), len(marker) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(marker[:length])), 0)


def _read(form: ToolForm, written: str, *, is_cut: bool) -> list[tuple[str, str]]:
    match form:
        case ToolForm.TAGGED:
            return _read_tagged(written, is_cut=is_cut)
        case ToolForm.LISTED:
            return _read_listed(written, is_cut=is_cut)
        case ToolForm.BARE:
            return _read_bare(written)


def _read_tagged(written: str, *, is_cut: bool) -> list[tuple[str, str]]:
    """Read blocks between tags; the last one may lack its end, unless the answer was cut."""
    calls: list[tuple[str, str]] = []
    for block in written.split(_OPEN)[1:]:
        inner, closed, _ = block.partition(_CLOSE)
        if inner.strip() and (closed or not is_cut):
            calls.append(_read_call(inner))
    return calls


def _read_listed(written: str, *, is_cut: bool) -> list[tuple[str, str]]:
    """Read a list of calls, or names with their arguments, behind each marker."""
    calls: list[tuple[str, str]] = []
    for block in written.split(_LIST)[1:]:
        text = block.strip()
        listed = _decode(text)
        if isinstance(listed, list):
            calls += [_call_of(one) for one in listed[:MAX_CALLS] if isinstance(one, dict)]
        elif named := _NAMED_ARGUMENTS.match(text):
            start = named.end() - 1
            arguments = _decode(text[start:])
            if isinstance(arguments, dict):
                calls.append((named[1], _encode(arguments)))
            elif not is_cut:
                calls.append((named[1], text[start:]))
        elif text and not is_cut:
            calls.append(_read_call(text))
    return calls


def _read_bare(written: str) -> list[tuple[str, str]]:
    """Read objects one after the other, with `;` or white space between them."""
    calls: list[tuple[str, str]] = []
    text = written.strip().removeprefix(_PYTHON).strip()
    while text.startswith("{") and len(calls) < MAX_CALLS:
        try:
            found, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            break
        calls.append(_call_of(found))
        text = text[end:].lstrip("; \t\r\n")
    return calls


def _read_call(text: str) -> tuple[str, str]:
    found = _decode(text.strip())
    if isinstance(found, dict):
        return _call_of(found)
    name = _NAME.search(text)
    return name[1] if name else "unknown", text.strip()


def _call_of(found: dict[str, object]) -> tuple[str, str]:
    inner = found.get("function")
    given = inner if isinstance(inner, dict) else found
    name = given.get("name", inner)
    arguments = given.get("arguments", given.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = _encode(arguments)
    return name if isinstance(name, str) and name else "unknown", arguments


def _encode(arguments: object) -> str:
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except (RecursionError, ValueError):
        return "too deep to be read"


def _decode(text: str) -> object:
    """Return the JSON value that a text begins with, None if there is none."""
    try:
        return _DECODER.raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None
