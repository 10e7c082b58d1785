"""Usage and cost by day, preset, channel, person or model, also as CSV."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Literal, TypeAlias

from aiohttp import web
from pydantic import Field

from bot.chat.access import Scope
from bot.chat.usage import MICROS, UsageRow, UsageTotal, format_usage_table
from bot.console.routes import ConsoleRequest, NavigationItem, Page, RouteGroup, download, route
from bot.ports import Clock
from bot.storage.usage import UsageTotals
from bot.texts.text import translatable, translate
from bot.value_class import value_class

_DAYS = 30
_MAX_DAYS = 400
_BAR_WIDTH = 1000
_FIRST_DAY = date(2020, 1, 1)

Grouping: TypeAlias = Literal["day", "preset", "channel", "person", "model"]
_Since = Annotated[date | Literal[""], Field(description="By default a month ago; days are UTC's.")]
_Until = Annotated[date | Literal[""], Field(description="The last day; by default today.")]


@value_class
class UsageSum:
    """The totals of several answers."""

    name: str
    """The day, preset, channel, person or model."""
    answers: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: float
    """In US dollars, of the answers whose cost is known."""
    answers_without_cost: int

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@value_class
class UsagePage(RouteGroup):
    navigation = (NavigationItem("/usage", translatable("Usage and cost"), "usage"),)

    totals: UsageTotals
    clock: Clock

    def _day_range(self, since: _Since, until: _Until) -> tuple[date, date]:
        today = datetime.fromtimestamp(self.clock.now(), UTC).date()
        last = max(_FIRST_DAY, min(until or today, today))
        first = min(since or last - timedelta(days=_DAYS - 1), last)
        return max(first, last - timedelta(days=_MAX_DAYS)), last

    async def _rows(self, first: date, last: date) -> Sequence[UsageRow]:
        return await self.totals.by_day(_midnight(first), _midnight(last + timedelta(days=1)))

    @route("GET /api/v1/usage", Scope.READ)
    async def list_sums(
        self, by: Grouping = "day", since: _Since = "", until: _Until = ""
    ) -> Mapping[str, date | Sequence[UsageSum]]:
        """Get the usage and cost of answers."""
        first, last = self._day_range(since, until)
        sums = usage_sums(await self._rows(first, last), by)
        return {"since": first, "until": last, "sums": sums}

    @route("GET /usage", Scope.READ)
    async def show(
        self, request: ConsoleRequest, by: Grouping = "day", since: _Since = "", until: _Until = ""
    ) -> Page:
        first, last = self._day_range(since, until)
        sums = usage_sums(await self._rows(first, last), by)
        most = max((one.tokens for one in sums), default=0)
        is_drawn = sums and by == "day"
        return Page(
            "usage.html",
            {
                "since": first,
                "until": last,
                "sums": sums,
                "by": by,
                "bars": {one.name: round(_BAR_WIDTH * one.tokens / max(1, most)) for one in sums},
                "chart": _day_chart(first, last, sums, request.language) if is_drawn else None,
            },
        )

    @route("GET /usage.csv", Scope.READ)
    async def send_table(self, since: _Since = "", until: _Until = "") -> web.Response:
        """Download a row for each day, person, channel and model."""
        text = format_usage_table(await self._rows(*self._day_range(since, until)))
        return download(text, "text/csv", 'filename="usage.csv"')


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time.min, UTC)


def _day_chart(
    first: date, last: date, sums: Sequence[UsageSum], language: str
) -> Mapping[str, object]:
    by_day = {one.name: one for one in sums}
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    used = [by_day.get(day.isoformat()) for day in days]
    lines = (
        (translatable("Read and written"), "c-1", [one.tokens if one else 0 for one in used]),
        (translatable("Written"), "c-2", [one.output_tokens if one else 0 for one in used]),
    )
    return {
        "title": translate(translatable("Day"), language),
        "times": [int(_midnight(day).timestamp()) for day in days],
        "series": [
            {"label": translate(label, language), "color": color, "values": values}
            for label, color, values in lines
        ],
    }


def usage_sums(rows: Sequence[UsageRow], by: Grouping) -> list[UsageSum]:
    """Add up rows: newest days first, other groups by tokens, most first."""
    groups: dict[str, list[UsageTotal]] = {}
    for row in rows:
        groups.setdefault(_name(row, by), []).append(row.total)
    sums = [_to_sum(name, totals) for name, totals in groups.items()]
    return sorted(sums, key=lambda one: one.name if by == "day" else one.tokens, reverse=True)


def _name(row: UsageRow, by: Grouping) -> str:
    match by:
        case "channel":
            return row.conversation
        case "model":
            return f"{row.provider}/{row.model}"
        case _:
            return str(getattr(row, by))


def _to_sum(name: str, totals: Sequence[UsageTotal]) -> UsageSum:
    return UsageSum(
        name,
        sum(one.answers for one in totals),
        sum(one.prompt_tokens for one in totals),
        sum(one.cached_tokens for one in totals),
        sum(one.output_tokens for one in totals),
        sum(one.cost for one in totals) / MICROS,
        sum(one.unpriced for one in totals),
    )
