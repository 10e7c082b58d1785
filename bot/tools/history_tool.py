"""Search what was said in the channel: in its own session only."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from bot.chat.session import Turn
from bot.chat.tool import ToolSpec
from bot.tools.tool import Tool, ToolFailed, text_argument, text_parameter

_SPEC = ToolSpec(
    "history",
    "Search the earlier messages of this channel for words.",
    text_parameter("words", "Each of them must stand in a message, in any case."),
)
_MAX_FOUND = 8
_MAX_CHARS = 300
_HALF = _MAX_CHARS // 2


def history_tool(
    load_turns: Callable[[], Awaitable[Sequence[Turn]]],
    label: Callable[[Sequence[Turn]], Callable[[Turn, str], str]],
) -> Tool:
    """Return the tool.

    Args:
        load_turns: loads what may be searched, oldest first.
        label: is given all of these, so that two people of one name are told apart, and returns
            what adds the speaker's name to a text of a turn, so that no line break can forge one.
    """

    async def run(arguments: Mapping[str, object]) -> str:
        words = text_argument(arguments, "words").casefold().split()
        if not words:
            raise ToolFailed("say which words to search for")
        turns = await load_turns()
        found = [turn for turn in turns if all(word in turn.text.casefold() for word in words)]
        if not found:
            return "nothing was found"
        tag = label(turns)
        return "\n".join(
            f"{turn.at:%Y-%m-%d %H:%M} {tag(turn, _excerpt(turn.text, words[0]))}"
            for turn in found[-_MAX_FOUND:]
        )

    return Tool(_SPEC, run)


def _excerpt(text: str, word: str) -> str:
    """Return the text, or what stands around the word in a long one."""
    if len(text) <= _MAX_CHARS:
        return text
    at = max(0, text.casefold().find(word) - _HALF)
    end = at + _MAX_CHARS
    return f"{'…' if at else ''}{text[at:end]}{'…' if end < len(text) else ''}"
