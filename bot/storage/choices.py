"""Settings made in chats, and who made them."""

from collections.abc import Sequence

from sqlalchemy import Connection, delete, select
from typing_extensions import override

from bot.chat.session import Choice
from bot.ports import Choices, Clock
from bot.storage.database import Database
from bot.storage.inbox import insert
from bot.storage.tables import choice


class SqlChoices(Choices):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def choose(self, scope: str, key: str, value: str | None, by: str) -> None:
        now = self._clock.now()

        def unit(connection: Connection) -> None:
            if value is None:
                connection.execute(
                    delete(choice).where(choice.c.scope == scope, choice.c.key == key)
                )
                return
            made = {"value": value, "chosen_by": by, "chosen_at": now}
            upsert = insert(connection, choice).values(scope=scope, key=key, **made)
            connection.execute(
                upsert.on_conflict_do_update(index_elements=["scope", "key"], set_=made)
            )

        await self._database.write(unit)

    @override
    async def chosen(self, scopes: Sequence[str], key: str) -> Choice | None:
        query = select(choice.c.scope, choice.c.value).where(
            choice.c.key == key, choice.c.scope.in_(scopes)
        )
        rows = await self._database.read(lambda c: c.execute(query).all())
        values = {row.scope: row.value for row in rows}
        for scope in scopes:
            if scope in values:
                return Choice(scope, values[scope])
        return None
