"""The audit log, in SQL."""

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import insert, select
from typing_extensions import override

from bot.chat.access import AuditEntry
from bot.ports import AuditLog
from bot.storage.sql.database import Database
from bot.storage.sql.tables import audit

_COLUMNS = (
    *(audit.c.at, audit.c.who, audit.c.action),
    *(audit.c.subject, audit.c.before, audit.c.after),
)
_NEWEST = select(*_COLUMNS).order_by(audit.c.id.desc())


class SqlAuditLog(AuditLog):
    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    async def record(self, entry: AuditEntry) -> None:
        row = asdict(entry)
        await self._database.write(lambda c: c.execute(insert(audit), row).rowcount)

    @override
    async def newest(self, limit: int) -> Sequence[AuditEntry]:
        rows = await self._database.read(lambda c: c.execute(_NEWEST.limit(limit)).all())
        return [AuditEntry(*row) for row in rows]
