"""The home page: what needs attention, what is set up, and usage over time. Also usage as CSV."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import accumulate, groupby
from typing import Annotated, Literal, TypeAlias

from aiohttp import web
from pydantic import Field

from bot.chat.access import ApiScope
from bot.chat.usage import MICROS_PER_DOLLAR, UsageTotal, format_usage_csv
from bot.console.operation import OperationPage
from bot.console.routes import NavigationItem, RouteGroup, Values, make_file_response, route
from bot.ports import Clock
from bot.storage.usage import UsageTotals
from bot.telemetry.logs import ERROR_PREFIX
from bot.texts.text import Text, translatable
from bot.value_class import value_class

_DEFAULT_DAYS = 30
_MAX_DAYS = 400
_FIRST_DAY = date(2020, 1, 1)
_MAX_CHART_GROUPS = 6
_DAY_SECONDS = 86_400
_TIME_STEPS = {"24h": (3_600, 24), "7d": (21_600, 28), "30d": (_DAY_SECONDS, 30)}
"""For each span: the length of a step in seconds, and the number of steps."""
TimeSpan: TypeAlias = Literal["24h", "7d", "30d"]
UsageGroup: TypeAlias = Literal["provider", "preset", "channel", "model", "person"]
Grouping: TypeAlias = Literal["day"] | UsageGroup
_Since = Annotated[
    date | Literal[""], Field(description="The first day, in UTC; by default a month ago.")
]
_Until = Annotated[date | Literal[""], Field(description="The last day; by default today.")]
_UsageRows: TypeAlias = Sequence[tuple[int, str, UsageTotal]]


@value_class
class UsageSum:
    """The total usage of a group of answers, such as those of a day or a preset."""

    name: str
    """The group's name: a day, preset, channel, provider, person or model."""
    answers: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: float
    """The cost in US dollars of those answers whose cost is known."""
    answers_without_cost: int

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@value_class
class Activity:
    """Usage figures of a period, as lists with an item for each time step, oldest first."""

    since: float
    """The start of the period, in Unix seconds."""
    step_seconds: float
    sums: Sequence[UsageSum]
    """The totals of each group, sorted by cost, then by tokens, highest first."""
    answers: Sequence[Sequence[int]]
    """Counts per step: a list for each of the first six groups, then one for all other groups."""
    tokens: Sequence[Sequence[int]]
    cost: Sequence[Sequence[float]]
    """Costs in US dollars, with lists like those of `answers`."""
    cached: Sequence[float | None]
    """The percentage of prompt tokens that were read from a cache."""
    errors: Sequence[int]
    first_words: Sequence[tuple[float, float] | None]
    """The 50th and the 95th percentile of the seconds until an answer's first word, per step."""
    first_word: tuple[float, float] | None
    """The same percentiles for the whole period."""


@value_class
class HomePage(RouteGroup):
    navigation = (NavigationItem("/home", translatable("Home"), "home"),)

    totals: UsageTotals
    operation_page: OperationPage | None
    read_setup_state: Callable[[], Mapping[Text | str, bool]]
    """Returns the name of each part that can be set up, and whether it is set up."""
    clock: Clock

    @route("GET /home", ApiScope.READ, template="home.html")
    async def show(self, span: TimeSpan = "24h", by: UsageGroup = "provider") -> Values:
        activity = await self.get_activity(span, by)
        return {
            "span": span,
            "spans": list(_TIME_STEPS),
            "by": by,
            "activity": activity,
            "data": asdict(replace(activity, sums=())),
            "first_day": datetime.fromtimestamp(activity.since, UTC).date(),
            "state": await self.operation_page.get_state() if self.operation_page else None,
            "parts": self.read_setup_state(),
        }

    @route("GET /api/v1/figures", ApiScope.READ)
    async def get_activity(self, span: TimeSpan = "24h", by: UsageGroup = "provider") -> Activity:
        """Get answers, errors, waiting times, tokens, and costs over time."""
        step, step_count = _TIME_STEPS[span]
        until = (self.clock.now() // step + 1) * step
        since = until - step * step_count
        delay_counts = [Counter[float]() for _ in range(step_count)]
        for at, seconds, answers in await self.totals.count_answers_by_delay(since, until, step):
            delay_counts[at][seconds] = answers
        error_counts = await self.totals.count_failures(ERROR_PREFIX, since, until, step)
        rows = await self.totals.load_usage_over_time(by, since, until, step)
        usage_sums = sum_usage(rows)
        group_indexes = {one.name: at for at, one in enumerate(usage_sums[:_MAX_CHART_GROUPS])}
        totals_by_cell = defaultdict[tuple[int, int], list[UsageTotal]](list)
        for at, name, total in rows:
            totals_by_cell[group_indexes.get(name, _MAX_CHART_GROUPS), at].append(total)
        series = [
            [_add_totals(totals_by_cell[line, at]) for at in range(step_count)]
            for line in range(min(len(usage_sums), _MAX_CHART_GROUPS + 1))
        ]
        steps = [_add_totals([line[at] for line in series]) for at in range(step_count)]
        return Activity(
            since,
            step,
            usage_sums,
            answers=[[one.answers for one in line] for line in series],
            tokens=[[one.prompt_tokens + one.output_tokens for one in line] for line in series],
            cost=[[one.cost / MICROS_PER_DOLLAR for one in line] for line in series],
            cached=[
                100 * one.cached_tokens / one.prompt_tokens if one.prompt_tokens else None
                for one in steps
            ],
            errors=[error_counts.get(at, 0) for at in range(step_count)],
            first_words=[_compute_percentiles(one) for one in delay_counts],
            first_word=_compute_percentiles(sum(delay_counts, Counter())),
        )

    def _choose_day_range(self, since: _Since, until: _Until) -> tuple[date, date]:
        today = self.clock.utc_now().date()
        last_day = max(_FIRST_DAY, min(until or today, today))
        first_day = min(since or last_day - timedelta(days=_DEFAULT_DAYS - 1), last_day)
        return max(first_day, last_day - timedelta(days=_MAX_DAYS)), last_day

    @route("GET /api/v1/usage", ApiScope.READ)
    async def list_usage_sums(
        self, by: Grouping = "day", since: _Since = "", until: _Until = ""
    ) -> Mapping[str, date | Sequence[UsageSum]]:
        """Get the usage and cost of answers."""
        first, last = self._choose_day_range(since, until)
        begin, end = (_start_of_day(day).timestamp() for day in (first, last + timedelta(days=1)))
        rows = await self.totals.load_usage_over_time(by, begin, end, _DAY_SECONDS)
        if by == "day":
            rows = [(at, str(first + timedelta(days=at)), total) for at, _, total in rows]
        usage_sums = sum_usage(rows)
        if by == "day":
            usage_sums.sort(key=lambda one: one.name, reverse=True)
        return {"since": first, "until": last, "sums": usage_sums}

    @route("GET /usage.csv", ApiScope.READ)
    async def send_usage_csv(self, since: _Since = "", until: _Until = "") -> web.Response:
        """Download usage as CSV, with a row for each day, person, channel and model."""
        first_day, last_day = self._choose_day_range(since, until)
        end = _start_of_day(last_day + timedelta(days=1))
        rows = await self.totals.usage_by_day(_start_of_day(first_day), end)
        return make_file_response(format_usage_csv(rows), "text/csv", 'filename="usage.csv"')


def _compute_percentiles(counts: Counter[float]) -> tuple[float, float] | None:
    if not counts:
        return None
    delays = sorted(counts)
    ranks = list(accumulate(counts[one] for one in delays))
    median, percentile_95 = (delays[bisect_left(ranks, ranks[-1] * share)] for share in (0.5, 0.95))
    return median, percentile_95


def _start_of_day(day: date) -> datetime:
    return datetime.combine(day, time.min, UTC)


def sum_usage(rows: _UsageRows) -> list[UsageSum]:
    """Return the totals of each group's rows, sorted by cost, then by tokens, highest first."""
    usage_sums = []
    for name, group in groupby(sorted(rows, key=lambda row: row[1]), key=lambda row: row[1]):
        group_total = _add_totals([total for *_, total in group])
        total_tokens = (
            group_total.prompt_tokens,
            group_total.cached_tokens,
            group_total.output_tokens,
        )
        costs = (group_total.cost / MICROS_PER_DOLLAR, group_total.unpriced_answer_count)
        usage_sums.append(UsageSum(name, group_total.answers, *total_tokens, *costs))
    return sorted(usage_sums, key=lambda one: (one.cost, one.tokens), reverse=True)


def _add_totals(totals: Sequence[UsageTotal]) -> UsageTotal:
    values = ([getattr(one, name) for one in totals] for name in UsageTotal.__match_args__)
    return UsageTotal(*map(sum, values))
