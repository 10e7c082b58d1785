"""Search the stories of the character that answers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from bot.chat.story import Story
from bot.chat.tool import ToolSpec
from bot.tools.tool import Tool, ToolFailed, text_argument, text_parameter

_SPEC = ToolSpec(
    "stories",
    "Search the character's own stories for what is nearest in meaning.",
    text_parameter("about", "What they should be about."),
)
_MAX_FOUND = 3
_MAX_CHARS = 1200


def story_tool(search: Callable[[str], Awaitable[Sequence[Story]]]) -> Tool:
    """Return the tool; `search` finds the stories that are nearest to a text, best first."""

    async def run(arguments: Mapping[str, object]) -> str:
        about = text_argument(arguments, "about")
        if not about:
            raise ToolFailed("say what the stories should be about")
        found = (await search(about))[:_MAX_FOUND]
        return "\n\n".join(one.text[:_MAX_CHARS] for one in found) or "nothing was found"

    return Tool(_SPEC, run)
