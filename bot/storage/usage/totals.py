"""Totals of usage, from the columns that the rows of receipts keep when their text is gone."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, case, cast, func, select
from sqlalchemy.types import Integer
from typing_extensions import override

from bot.chat.usage import UsageRow, UsageTotal
from bot.ports import UsageTotals
from bot.storage.sql.database import Database
from bot.storage.sql.tables import receipt

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


class SqlUsageTotals(UsageTotals):
    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    async def of_person(self, person: str, since: datetime) -> UsageTotal:
        asked = {"of": person, "since": since.timestamp()}
        row = await self._database.read(lambda c: c.execute(_OF_PERSON, asked).one())
        return UsageTotal(*map(int, row))

    @override
    async def by_day(self, since: datetime, until: datetime) -> Sequence[UsageRow]:
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
