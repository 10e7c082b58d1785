"""Spending in SQL: budgets, usage of requests without receipts, and totals."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from bot.chat.answers import StoredAnswer
from bot.chat.prompt import Usage
from bot.chat.receipt import Receipt
from bot.chat.session import OWNER_SEPARATOR
from bot.chat.usage import AnswerCharge, BudgetCap, UsageRow, UsageTotal
from bot.storage.database import ClockStore, Store, run_readonly, transaction
from bot.storage.receipts import add_receipts, to_receipt_row, to_usage_columns
from bot.storage.statements import SQL, Statement, Unit, to_dict


class Budgets(Store):
    """Stores spending per budget in millionths of a US dollar; reserved money counts as spent.

    If a process dies, its reservations stay, because the model may have been paid.
    """

    @transaction
    def reserve(self, caps: Sequence[BudgetCap], amount: int) -> Unit[BudgetCap | None]:
        """Reserve an amount in all budgets, or return a budget that has too little left."""
        keys = _encode_cap_keys(caps)
        yield SQL["ensure_budget"].query_many(
            [{"key": key} for key in sorted(cap.key for cap in caps)]
        )
        spent_amounts = to_dict((yield SQL["locked_budgets"].query(keys=keys)))
        for cap in caps:
            if spent_amounts[cap.key] + amount > cap.limit:
                return cap
        yield SQL["add_to_budgets"].query(keys=keys, amount=amount)
        return None

    async def settle(self, caps: Sequence[BudgetCap], reserved_amount: int, cost: int) -> None:
        """Replace a reserved amount by the amount actually spent."""
        if cost != reserved_amount:
            await self._add_amount(caps, cost - reserved_amount)

    @transaction
    def _add_amount(self, caps: Sequence[BudgetCap], amount: int) -> Unit[None]:
        yield SQL["locked_budgets"].query(keys=_encode_cap_keys(caps))
        yield SQL["add_to_budgets"].query(keys=_encode_cap_keys(caps), amount=amount)

    @transaction
    def load_spent_amounts(self, caps: Sequence[BudgetCap]) -> Unit[Mapping[str, int]]:
        """Return the amounts spent or reserved, by `BudgetCap.key`."""
        return to_dict((yield SQL["budgets"].query(keys=_encode_cap_keys(caps))))


def _encode_cap_keys(caps: Sequence[BudgetCap]) -> str:
    return json.dumps([cap.key for cap in caps])


class UsageLog(ClockStore):
    """Records the usage of requests that answer no message, such as summaries and replays."""

    @transaction
    def record_replay(self, conversation: str, receipt: Receipt) -> Unit[StoredAnswer]:
        """Store the receipt of a replay, which counts as usage, but not as an answer."""
        at = self._clock.now()
        yield from add_receipts([to_receipt_row(conversation, "", receipt, at)])
        [[number]] = yield SQL["newest_replay"].query(of=conversation)
        return StoredAnswer(number, conversation, at, receipt)

    @transaction
    def record(
        self, conversation: str, preset: str, provider: str, charge: AnswerCharge, usage: Usage
    ) -> Unit[None]:
        """Record a request, which counts in the usage totals but not as an answer."""
        values = {"conversation": conversation, "turn": "", "at": self._clock.now(), "content": b""}
        label = "character" if OWNER_SEPARATOR in preset else preset  # keeps its name private
        usage_values = to_usage_columns(label, provider, charge, usage)
        yield SQL["add_receipt"].query({**values, **usage_values})


_DAY_SECONDS = 86_400
GROUPS = {
    "day": "''",
    "channel": "conversation",
    "preset": "preset",
    "provider": "provider",
    "model": "provider || '/' || coalesce(model, '')",
    "person": "person",
}
"""The groups by which usage can be summed, each with its SQL expression."""


@cache
def _build_usage_statement(group: str) -> Statement:
    return Statement(SQL["usage_over_time"].text.replace("{group}", GROUPS[group]))


class UsageTotals(Store):
    """Reads the total usage and cost of answers."""

    @run_readonly
    def person_total(self, person: str, since: datetime) -> Unit[UsageTotal]:
        [row] = yield SQL["usage_of_person"].query_alone(person=person, since=since.timestamp())
        return UsageTotal(*map(int, row))

    @run_readonly
    def load_usage_over_time(
        self, group: str, since: float, until: float, step: float
    ) -> Unit[Sequence[tuple[int, str, UsageTotal]]]:
        """Return usage by time step (counted from `since`) and by the values of a `GROUPS` key."""
        rows = yield _build_usage_statement(group).query_alone(since=since, until=until, step=step)
        return [(int(at), name or "", UsageTotal(*map(int, sums))) for at, name, *sums in rows]

    @run_readonly
    def count_answers_by_delay(
        self, since: float, until: float, step: float
    ) -> Unit[Sequence[tuple[int, float, int]]]:
        """Count answers by time step (counted from `since`) and by seconds to the first word."""
        rows = yield SQL["first_words"].query_alone(since=since, until=until, step=step)
        return [(int(at), seconds, answers) for at, seconds, answers in rows]

    @run_readonly
    def count_failures(
        self, kind: str, since: float, until: float, step: float
    ) -> Unit[dict[int, int]]:
        """Return the number of failures of a kind per time step, counted from `since`."""
        args = {"kind": kind, "since": since, "until": until, "step": step}
        return {int(at): count for at, count in (yield SQL["failures_over_time"].query_alone(args))}

    @run_readonly
    def usage_by_day(self, since: datetime, until: datetime) -> Unit[Sequence[UsageRow]]:
        """Return the usage per day, person, channel, server, preset and model, oldest first."""
        times = {"since": since.timestamp(), "until": until.timestamp()}
        return [_to_usage_row(*row) for row in (yield SQL["usage_by_day"].query_alone(times))]


def _to_usage_row(day: int, *columns: Any) -> UsageRow:
    person, conversation, server, preset, provider, model, *sums = columns
    return UsageRow(
        datetime.fromtimestamp(day * _DAY_SECONDS, UTC).date().isoformat(),
        person or "",
        conversation,
        server or "",
        preset,
        provider,
        model or "",
        UsageTotal(*map(int, sums)),
    )
