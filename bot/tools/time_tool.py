"""Tell the date and the time of day."""

import zoneinfo
from collections.abc import Mapping
from datetime import UTC, datetime

from bot.chat.tool import ToolSpec
from bot.ports import Clock
from bot.tools.tool import Tool, ToolFailed, text_argument, text_parameter

_SPEC = ToolSpec(
    "time",
    "The current date and time.",
    text_parameter(
        "timezone", "An IANA name such as Europe/Berlin; UTC by default.", is_required=False
    ),
)


def time_tool(clock: Clock) -> Tool:
    async def run(arguments: Mapping[str, object]) -> str:
        name = text_argument(arguments, "timezone") or "UTC"
        try:
            zone = UTC if name == "UTC" else zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise ToolFailed("there is no such time zone; use a name such as Asia/Tokyo") from None
        now = datetime.fromtimestamp(clock.now(), UTC).astimezone(zone)
        return now.strftime("%A, %Y-%m-%d %H:%M:%S %Z")

    return Tool(_SPEC, run)
