"""Pauses of answering, in SQL."""

from collections.abc import Sequence

from sqlalchemy import bindparam, delete, select
from typing_extensions import override

from bot.chat.console.operation import Pause
from bot.ports import Clock, Pauses
from bot.storage.sql.database import Database
from bot.storage.sql.tables import pause, upsert

_CURRENT = select(pause.c.scope, pause.c.by, pause.c.at).order_by(pause.c.at)
_BEGIN = upsert(pause, lambda insert: insert.on_conflict_do_nothing())
_END = delete(pause).where(pause.c.scope == bindparam("of_scope"))


class SqlPauses(Pauses):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def current(self) -> Sequence[Pause]:
        rows = await self._database.read(lambda c: c.execute(_CURRENT).all())
        return [Pause(*row) for row in rows]

    @override
    async def begin(self, scope: str, by: str) -> bool:
        row = {"scope": scope, "by": by, "at": self._clock.now()}
        statement = _BEGIN[self._database.dialect]
        return bool(await self._database.write(lambda c: c.execute(statement, row).rowcount))

    @override
    async def end(self, scope: str) -> bool:
        asked = {"of_scope": scope}
        return bool(await self._database.write(lambda c: c.execute(_END, asked).rowcount))
