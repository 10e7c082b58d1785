"""Settings made in chats, in SQL and cached: each message looks them up, few change them."""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select
from typing_extensions import override

from bot.chat.access import AuditEntry
from bot.chat.session import ChatSetting
from bot.ports import ChatSettings, Clock, ConversationMemory, Signals
from bot.storage.database import Database
from bot.storage.rows import decode_all
from bot.storage.statements import Statement, Unit
from bot.storage.tables import audit, choice, upsert
from bot.value_class import value_class

_CHANGED = ("value", "chosen_by", "chosen_at", "conversation")
_SET = upsert(
    choice,
    lambda insert: insert.on_conflict_do_update(
        index_elements=["scope", "key"],
        set_={name: insert.excluded[name] for name in _CHANGED},
    ),
)
_OF_SCOPES = Statement("""
SELECT scope, key, value FROM choice
WHERE scope IN (SELECT value FROM jsonb_array_elements_text(:scopes))
""")
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


@value_class
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


_TOPIC = "chat_settings"
_MAX_SCOPES = 40_000  # those of ten thousand chats; a scope where nothing is set takes 300 bytes
_UNCERTAIN_SECONDS = 60.0
"""After that, what became of a write is settled: statements end within 20 s."""
_NOTHING: Mapping[str, str] = MappingProxyType({})


@value_class
class _Scope:
    values: Mapping[str, str]
    """All that is set in it, by key."""
    read_at: float


class CachedChatSettings(ChatSettings, ConversationMemory):
    """Reads a scope once, with all that is set in it, and forgets it when that has changed.

    A signal of the topic `chat_settings` names scopes in which something has changed. A scope
    stands for itself and for what people set of themselves there, under `person@scope`.

    Args:
        stored: the settings themselves.
        signals: tell this process and the others about changes.
        max_age_seconds: how long a value is believed where a signal may be lost; None: for ever,
            because nobody else writes.
    """

    def __init__(
        self, stored: ChatSettings, signals: Signals, clock: Clock, max_age_seconds: float | None
    ) -> None:
        self._stored = stored
        self._signals = signals
        self._clock = clock
        self._max_age_seconds = max_age_seconds
        self._scopes: OrderedDict[str, _Scope] = OrderedDict()
        self._uncertain: dict[str, float] = {}  # not kept until a moment
        self._changes = 0
        signals.subscribe(_TOPIC, self._drop)

    @override
    async def set(
        self, scope: str, key: str, value: str | None, by: str, *, audited: bool = False
    ) -> None:
        is_committed = False
        try:
            await self._stored.set(scope, key, value, by, audited=audited)
            is_committed = True
        finally:
            if not is_committed:  # a write that failed or was cancelled may still be committed
                now = self._clock.monotonic()
                self._uncertain = {one: end for one, end in self._uncertain.items() if end > now}
                self._uncertain[scope] = now + _UNCERTAIN_SECONDS
            self._signals.publish(_TOPIC, [scope])

    @override
    async def resolve(self, scopes: Sequence[str], key: str) -> ChatSetting | None:
        found = await self.get_scopes(scopes)
        for scope in scopes:
            if key in found[scope]:
                return ChatSetting(scope, found[scope][key])
        return None

    @override
    async def get_all(self, scopes: Sequence[str], key: str) -> Mapping[str, str]:
        found = await self.get_scopes(scopes)
        return {scope: values[key] for scope, values in found.items() if key in values}

    @override
    async def get_scopes(self, scopes: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        now = self._clock.monotonic()
        found: dict[str, Mapping[str, str]] = {}
        missing: dict[str, None] = {}
        for scope in scopes:
            values = self._get(scope, now)
            if values is None:
                missing[scope] = None
            else:
                found[scope] = values
        if missing:
            found |= await self._read(list(missing), now)
        return found

    @override
    async def end_session(self, conversation: str) -> None:
        """Settings outlive sessions."""

    @override
    async def forget(self, conversation: str) -> None:
        """Drop what people said of themselves in a conversation, here and in other processes."""
        self._signals.publish(_TOPIC, [conversation])

    def _get(self, scope: str, now: float) -> Mapping[str, str] | None:
        kept = self._scopes.get(scope)
        if kept is None:
            return None
        if self._max_age_seconds is not None and now - kept.read_at > self._max_age_seconds:
            return None
        self._scopes.move_to_end(scope)
        return kept.values

    async def _read(self, scopes: Sequence[str], now: float) -> dict[str, Mapping[str, str]]:
        changes = self._changes
        stored = await self._stored.get_scopes(scopes)
        found = {scope: stored.get(scope, _NOTHING) for scope in scopes}
        if changes == self._changes:  # else it may have been read before the change
            for scope, values in found.items():
                self._keep(scope, _Scope(values, now))
        return found

    def _keep(self, name: str, scope: _Scope) -> None:
        if scope.read_at < self._uncertain.get(name, 0.0):
            return
        self._scopes[name] = scope
        self._scopes.move_to_end(name)
        if len(self._scopes) > _MAX_SCOPES:
            self._scopes.popitem(last=False)

    def _drop(self, scopes: Sequence[str]) -> None:
        self._changes += 1
        endings = tuple(f"@{scope}" for scope in scopes)
        named = frozenset(scopes)
        changed = [one for one in self._scopes if one in named or one.endswith(endings)]
        for one in changed:
            del self._scopes[one]
