"""What was spent, in SQL: budgets, usage of requests without a receipt, and totals.

Usage stands in the columns that receipts keep when their text is gone.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, case, cast, func, insert, select
from sqlalchemy.types import Integer

from bot.chat.prompt import Usage
from bot.chat.usage import AnswerCharge, BudgetCap, UsageRow, UsageTotal
from bot.ports import Clock
from bot.storage import budgets as units
from bot.storage.database import Database
from bot.storage.tables import receipt


class SqlBudgets:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def reserve(self, caps: Sequence[BudgetCap], amount: int) -> BudgetCap | None:
        """Count an amount against all of these caps in one transaction.

        Returns:
            None; or the first cap that would be exceeded: then nothing was counted.
        """
        return await self._database.run(lambda: units.reserve(caps, amount))

    async def settle(self, caps: Sequence[BudgetCap], reserved: int, spent: int) -> None:
        """Replace what was reserved by what was spent, in one transaction."""
        if spent != reserved:
            await self._database.run(lambda: units.settle(caps, spent - reserved))

    async def spent(self, caps: Sequence[BudgetCap]) -> Mapping[str, int]:
        """Return what is spent or reserved, by the key of the cap; what is missing is 0."""
        return await self._database.run(lambda: units.read_spent(caps))


class SqlUsageLog:
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


class SqlUsageTotals:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def of_person(self, person: str, since: datetime) -> UsageTotal:
        asked = {"of": person, "since": since.timestamp()}
        row = await self._database.read(lambda c: c.execute(_OF_PERSON, asked).one())
        return UsageTotal(*map(int, row))

    async def by_day(self, since: datetime, until: datetime) -> Sequence[UsageRow]:
        """Return a row for each day, person, channel, preset and model, oldest first."""
        asked = {"since": since.timestamp(), "until": until.timestamp()}
        rows = await self._database.read(lambda c: c.execute(_BY_DAY, asked).all())
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
