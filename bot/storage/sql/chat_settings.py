"""Settings made in chats, in SQL."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select
from typing_extensions import override

from bot.chat.access import AuditEntry
from bot.chat.session import ChatSetting
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import ChatSettings, Clock
from bot.storage.decoding import decode_all
from bot.storage.engine.statements import Statement, Unit
from bot.storage.sql.database import Database
from bot.storage.sql.tables import audit, choice, upsert
from bot.storage.units.dialects import bound_texts

_CHANGED = ("value", "chosen_by", "chosen_at", "conversation")
_SET = upsert(
    choice,
    lambda insert: insert.on_conflict_do_update(
        index_elements=["scope", "key"],
        set_={name: insert.excluded[name] for name in _CHANGED},
    ),
)
_OF_SCOPES = Statement(
    lambda dialect: select(choice.c.scope, choice.c.key, choice.c.value).where(
        choice.c.scope.in_(bound_texts("scopes", dialect))
    )
)
_VALUE = (
    select(choice.c.value)
    .where(choice.c.scope == bindparam("scope"), choice.c.key == bindparam("key"))
    .with_for_update()
)


class SqlChatSettings(ChatSettings):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def set(
        self, scope: str, key: str, value: str | None, by: str, *, audited: bool = False
    ) -> None:
        now = self._clock.now()

        def unit(connection: Connection) -> None:
            if audited:
                _note_change(connection, _Change(scope, key, value, by, now))
            if value is None:
                connection.execute(
                    delete(choice).where(choice.c.scope == scope, choice.c.key == key)
                )
                return
            row = {"scope": scope, "key": key, "value": value, "chosen_by": by, "chosen_at": now}
            row["conversation"] = _conversation_of(scope)
            connection.execute(_SET[connection.dialect.name], row)

        await self._database.write(unit)

    @override
    async def resolve(self, scopes: Sequence[str], key: str) -> ChatSetting | None:
        values = await self.get_all(scopes, key)
        for scope in scopes:
            if scope in values:
                return ChatSetting(scope, values[scope])
        return None

    @override
    async def get_all(self, scopes: Sequence[str], key: str) -> Mapping[str, str]:
        found = await self.get_scopes(scopes)
        return {scope: values[key] for scope, values in found.items() if key in values}

    @override
    async def get_scopes(self, scopes: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        asked = {"scopes": json.dumps(list(scopes))}

        def unit() -> Unit[dict[str, dict[str, str]]]:
            found: dict[str, dict[str, str]] = {}
            rows = yield _OF_SCOPES.query_alone(asked)
            for scope, key, value in decode_all("setting", rows, _to_setting):
                found.setdefault(scope, {})[key] = value
            return found

        return await self._database.run(unit)


def _to_setting(row: Sequence[Any]) -> tuple[str, str, str]:
    scope, key, value = row
    if not isinstance(value, str):  # SQLite stores any type in any column
        raise TypeError
    return scope, key, value


@frozen_dataclass
class _Change:
    scope: str
    key: str
    value: str | None
    by: str
    at: float


def _note_change(connection: Connection, change: _Change) -> None:
    """Note what an admin changes; nothing if a command is run again and changes nothing."""
    of = {"scope": change.scope, "key": change.key}
    before, after = connection.execute(_VALUE, of).scalar() or "", change.value or ""
    if before != after:
        action = f"{'reset' if change.value is None else 'set'} {change.key}"
        entry = AuditEntry(change.at, change.by, action, change.scope, before, after)
        connection.execute(insert(audit), asdict(entry))


def _conversation_of(scope: str) -> str:
    """Return where somebody said this of themselves; "" for a scope that is no `person@scope`.

    A person's id has a colon, and the name of a bot before the "@" of its own id has none.
    """
    person, _, said_in = scope.partition("@")
    return said_in if ":" in person else ""
