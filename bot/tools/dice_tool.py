"""Roll dice: the service throws them, so that a model cannot choose the result."""

import re
from collections.abc import Callable, Mapping

from bot.chat.tool import ToolSpec
from bot.tools.tool import Tool, ToolFailed, text_argument, text_parameter

_SPEC = ToolSpec(
    "dice",
    "Roll dice and return each of them and their sum.",
    text_parameter("dice", "Such as 2d6, d20 or 3d8+2: at most 100 dice of 1000 sides."),
)
_NOTATION = re.compile(r"(\d{0,3})[dD](\d{1,4})([+-]\d{1,4})?")
_MAX_DICE = 100
_MAX_SIDES = 1000


def dice_tool(random_number: Callable[[], float]) -> Tool:
    """Return the tool; `random_number` is at least 0 and less than 1."""

    async def run(arguments: Mapping[str, object]) -> str:
        written = text_argument(arguments, "dice").replace(" ", "")
        found = _NOTATION.fullmatch(written)
        count, sides = (int(found[1] or 1), int(found[2])) if found else (0, 0)
        if not (found and 1 <= count <= _MAX_DICE and 1 <= sides <= _MAX_SIDES):
            raise ToolFailed("write dice as 2d6 or 3d8+2: at most 100 dice of 1000 sides")
        added = int(found[3] or 0)
        thrown = [1 + int(random_number() * sides) for _ in range(count)]
        single = f" ({', '.join(map(str, thrown))})" if count > 1 or added else ""
        return f"{written.lower()}: {sum(thrown) + added}{single}"

    return Tool(_SPEC, run)
