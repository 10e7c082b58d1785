"""Read the calls of tools that a local model writes into its answer, in the form of its template.

Nothing of a call is shown. What cannot be read (`call_syntax`) still becomes a call with the
arguments as they stand, so that the model is told what was wrong with it; calls are bounded in
number and size.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from bot.backends import call_syntax
from bot.backends.call_syntax import Parameters, read_calls
from bot.backends.tool_calls import MAX_ARGUMENT_CHARS, MAX_CALLS, MAX_NAME_CHARS
from bot.chat.prompt import Delta, Finish, FinishReason, GenerationEvent
from bot.chat.tool import ToolCall
from bot.templates.tool_forms import ToolForm

MARKERS: Final = (
    *(call_syntax.OPEN, call_syntax.CLOSE, call_syntax.LIST, "[ARGS]", "[CALL_ID]"),
    *(call_syntax.PYTHON, *call_syntax.SECTION_TOKENS, *call_syntax.CHANNEL_TOKENS),
)
"""What an engine must return as text, although some vocabularies call it a control token."""

_BEGINNINGS: Final[Mapping[ToolForm, tuple[str, ...]]] = {
    ToolForm.TAGGED: (call_syntax.OPEN,),
    ToolForm.LISTED: (call_syntax.LIST,),
    ToolForm.SECTION: (call_syntax.SECTION,),
    ToolForm.CHANNEL: (call_syntax.CHANNEL, f" {call_syntax.RECIPIENT}", call_syntax.RECIPIENT),
}
"""What a call begins with; the whole answer is one where a form is not listed."""
_TEXT_UNLESS_READ: Final = (ToolForm.BARE, ToolForm.CHANNEL)
_MAX_CHARS: Final = 2 * MAX_ARGUMENT_CHARS  # of all calls of an answer


class WrittenCallParser:
    """Takes an answer in pieces of any size and separates its calls from its text."""

    def __init__(self, form: ToolForm, offered: Mapping[str, Parameters]) -> None:
        """Take the form, and the tools with what they take.

        JSON that names none of them is an answer; texts become what the tool takes.
        """
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
        markers = _BEGINNINGS[self._form]
        found = [at for marker in markers if (at := self._pending.find(marker)) >= 0]
        if found:
            before, begun = self._pending[: min(found)], self._pending[min(found) :]
            self._pending, self._is_calling = "", True
            return before + self._add(begun)
        kept = max(_length_of_beginning(self._pending, marker) for marker in markers)
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
        found = read_calls(self._form, self._written, self._offered, is_cut=is_cut)
        if self._form is ToolForm.BARE:
            found = [one for one in found if one[0] in self._offered]
        if not found and self._form in _TEXT_UNLESS_READ:
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
        if not self._is_answering and start.startswith(("{", call_syntax.PYTHON)):
            text, self._pending, self._is_calling = self._pending, "", True
            return self._add(text)
        if not self._is_answering and call_syntax.PYTHON.startswith(start):
            return ""
        self._is_answering = True
        shown, self._pending = self._pending, ""
        return shown


async def separate_calls(
    events: AsyncGenerator[GenerationEvent, None],
    form: ToolForm,
    offered: Mapping[str, Parameters],
) -> AsyncGenerator[GenerationEvent, None]:
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
