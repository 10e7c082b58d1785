"""A tool for Troupe: the phase of the moon. Presets offer it with `"tools": ["moon"]`."""

from collections.abc import Mapping
from datetime import UTC, date, datetime

from bot.chat.prompt import ToolSpec
from bot.tools import Tool, ToolFailed

TROUPE_API = 1
_NEW_MOON = datetime(2000, 1, 6, 18, 14, tzinfo=UTC)
_MONTH_DAYS = 29.530588853
_PHASES = ("new", "waxing crescent", "first quarter", "waxing gibbous")
_PHASES += ("full", "waning gibbous", "last quarter", "waning crescent")


async def _phase(arguments: Mapping[str, object]) -> str:
    try:
        day = date.fromisoformat(str(arguments.get("day") or datetime.now(UTC).date()))
    except ValueError:
        raise ToolFailed("write the day as 2026-11-28") from None
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    age = (noon - _NEW_MOON).total_seconds() / 86_400 % _MONTH_DAYS
    return f"{day}: {_PHASES[round(age / _MONTH_DAYS * 8) % 8]} moon, {age:.1f} days old"


MOON = Tool(
    ToolSpec(
        "moon",
        "The phase of the moon on a day.",
        {
            "type": "object",
            "properties": {"day": {"type": "string", "description": "Such as 2026-11-28."}},
        },
    ),
    _phase,
)
