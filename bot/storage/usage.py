"""What was spent, in SQL: budgets, usage of requests without a receipt, and totals.

Usage stands in the columns that receipts keep when their text is gone.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, case, cast, func, insert, select
from sqlalchemy.types import Integer

from bot.chat.prompt import Usage
from bot.chat.usage import AnswerCharge, BudgetCap, UsageRow, UsageTotal
from bot.ports import Clock
from bot.storage.database import Database, transaction
from bot.storage.statements import Statement, Unit
from bot.storage.tables import receipt

_LISTED = "WHERE key IN (SELECT value FROM jsonb_array_elements_text(:keys))"
_ENSURE = Statement("INSERT INTO budget (key, spent) VALUES (:key, 0) ON CONFLICT DO NOTHING")
# In one order everywhere, so that nobody deadlocks.
_LOCKED = Statement(f"SELECT key, spent FROM budget {_LISTED} ORDER BY key FOR UPDATE")
_SPENT = Statement(f"SELECT key, spent FROM budget {_LISTED}")
_ADD = Statement(f"UPDATE budget SET spent = spent + :amount {_LISTED}")


class Budgets:
    """What is spent or reserved, in millionths of a dollar: what is reserved counts as spent.

    A process that dies in between leaves its reservation as spent, because the model may have been
    paid for.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @transaction
    def reserve(self, caps: Sequence[BudgetCap], amount: int) -> Unit[BudgetCap | None]:
        """Count an amount against all caps, or nothing and return one that it would exceed."""
        keys = _keys(caps)
        yield _ENSURE.query_many([{"key": key} for key in sorted(cap.key for cap in caps)])
        spent = dict((yield _LOCKED.query({"keys": keys})))
        for cap in caps:
            if spent[cap.key] + amount > cap.limit:
                return cap
        yield _ADD.query({"keys": keys, "amount": amount})
        return None

    async def settle(self, caps: Sequence[BudgetCap], reserved: int, spent: int) -> None:
        """Replace what was reserved by what was spent."""
        if spent != reserved:
            await self._add(caps, spent - reserved)

    @transaction
    def _add(self, caps: Sequence[BudgetCap], amount: int) -> Unit[None]:
        yield _LOCKED.query({"keys": _keys(caps)})
        yield _ADD.query({"keys": _keys(caps), "amount": amount})

    @transaction
    def spent(self, caps: Sequence[BudgetCap]) -> Unit[Mapping[str, int]]:
        """Return what is spent or reserved, by the key of the cap."""
        return dict((yield _SPENT.query({"keys": _keys(caps)})))


def _keys(caps: Sequence[BudgetCap]) -> str:
    return json.dumps([cap.key for cap in caps])


class UsageLog:
    """Usage of requests that no receipt is kept of, such as those for summaries."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def record(
        self, conversation: str, preset: str, provider: str, charge: AnswerCharge, usage: Usage
    ) -> None:
        """Count a request in the totals of usage; it is not counted as an answer."""
        row = {
            "conversation": conversation,
            "turn": "",
            "at": self._clock.now(),
            "content": b"",
            "person": charge.person,
            "server": charge.server,
            "preset": preset,
            "provider": provider,
            "model": charge.model,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
            "cost": charge.cost,
        }
        await self._database.write(lambda c: c.execute(insert(receipt), row))


_IS_ANSWER = receipt.c.turn != ""  # the other rows are of summaries
_SUMS = (
    func.coalesce(func.sum(case((_IS_ANSWER, 1), else_=0)), 0),
    *(
        func.coalesce(func.sum(column), 0)
        for column in (
            receipt.c.prompt_tokens,
            receipt.c.cached_tokens,
            receipt.c.output_tokens,
            receipt.c.cost,
            case((and_(receipt.c.cost.is_(None), _IS_ANSWER), 1), else_=0),
        )
    ),
)
_SINCE = (receipt.c.at >= bindparam("since"), receipt.c.provider.is_not(None))
_OF_PERSON = select(*_SUMS).where(*_SINCE, receipt.c.person == bindparam("of"))
_DAY_SECONDS = 86_400
_DAY = cast(func.floor(receipt.c.at / _DAY_SECONDS), Integer)
_GROUPS: tuple[ColumnElement[object], ...] = (
    receipt.c.person,
    receipt.c.conversation,
    receipt.c.server,
    receipt.c.preset,
    receipt.c.provider,
    receipt.c.model,
)
_BY_DAY = (
    select(_DAY, *_GROUPS, *_SUMS)
    .where(*_SINCE, receipt.c.at < bindparam("until"))
    .group_by(_DAY, *_GROUPS)
    .order_by(_DAY, *_GROUPS)
)


class UsageTotals:
    """What answers cost, added up."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of_person(self, person: str, since: datetime) -> UsageTotal:
        asked = {"of": person, "since": since.timestamp()}
        row = await self._database.read(lambda c: c.execute(_OF_PERSON, asked).one())
        return UsageTotal(*map(int, row))

    async def by_day(self, since: datetime, until: datetime) -> Sequence[UsageRow]:
        """Return a row for each day, person, channel, preset and model, oldest first."""
        rows = await self._database.rows(_BY_DAY, since=since.timestamp(), until=until.timestamp())
        return [_usage_row(*row) for row in rows]


def _usage_row(day: int, *more: Any) -> UsageRow:
    person, conversation, server, preset, provider, model, *sums = more
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
