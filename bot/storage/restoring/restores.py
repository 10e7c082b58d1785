"""What a process has to know of the newest restore, in SQL."""

from sqlalchemy import Connection, select
from typing_extensions import override

from bot.chat.console.operation import Restore
from bot.ports import Clock, Restores
from bot.storage.sql.database import Database
from bot.storage.sql.tables import forgotten_message, restore

_MATTERS_SECONDS = 30 * 86_400.0
"""No platform delivers what is older."""
_NEWEST = select(restore.c.at, restore.c.answered_until).order_by(restore.c.id.desc()).limit(1)
_FORGOTTEN = select(
    forgotten_message.c.conversation, forgotten_message.c.message_id, forgotten_message.c.at
)


class SqlRestores(Restores):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def newest(self) -> Restore | None:
        since = self._clock.now() - _MATTERS_SECONDS

        def unit(connection: Connection) -> Restore | None:
            row = connection.execute(_NEWEST).first()
            if row is None or row.at < since:
                return None
            forgotten = [tuple(one) for one in connection.execute(_FORGOTTEN)]
            return Restore(
                row.answered_until,
                frozenset((key, name) for key, name, _ in forgotten if name),
                {key: at for key, name, at in sorted(forgotten) if not name},
            )

        return await self._database.read(unit)
