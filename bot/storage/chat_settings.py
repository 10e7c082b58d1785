"""Chat settings in SQL, with a cache, because every message reads them."""

import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from typing_extensions import override

from bot.chat.access import AuditEntry
from bot.chat.session import CHARACTER_KEY_PREFIX
from bot.ports import ChatSettings, Clock, ConversationMemory, Signals
from bot.storage.database import ClockStore, transaction
from bot.storage.rows import decode, decode_all
from bot.storage.statements import SQL, Unit


class SqlChatSettings(ClockStore, ChatSettings):
    @override
    @transaction
    def set(
        self, scope: str, key: str, value: str | None, author: str, *, is_audited: bool = False
    ) -> Unit[None]:
        setting_key, at = {"scope": scope, "key": key}, self._clock.now()
        if is_audited:
            rows = yield SQL["locked_choice"].query(setting_key)
            before, after = decode(lambda row: str(row[0]), rows[0]) if rows else "", value or ""
            if before != after:  # a repeated command is not logged
                action = f"{'reset' if value is None else 'set'} {key}"
                if key.startswith(CHARACTER_KEY_PREFIX):  # log only the revision
                    before, after = (one.partition(" ")[0] for one in (before, after))
                yield SQL["record_change"].query(
                    asdict(AuditEntry(at, author, action, scope, before, after))
                )
        if value is None:
            yield SQL["reset_choice"].query(setting_key)
        else:
            choice = {"value": value, "by": author, "conversation": _extract_conversation(scope)}
            yield SQL["set_choice"].query({**setting_key, **choice, "at": at})

    @override
    @transaction
    def get_scopes(self, scopes: Sequence[str]) -> Unit[Mapping[str, Mapping[str, str]]]:
        settings_by_scope: dict[str, dict[str, str]] = {}
        rows = yield SQL["choices_of_scopes"].query_alone(scopes=json.dumps(list(scopes)))
        for scope, key, value in decode_all("setting", rows, _to_setting):
            settings_by_scope.setdefault(scope, {})[key] = value
        return settings_by_scope


def _to_setting(row: Sequence[Any]) -> tuple[str, str, str]:
    scope, key, value = row
    if not isinstance(value, str):  # SQLite stores any type in any column
        raise TypeError
    return scope, key, value


def _extract_conversation(scope: str) -> str:
    """Return the conversation from a scope `person@conversation`, or "" for other scopes."""
    person, _, conversation = scope.partition("@")
    return conversation if ":" in person else ""


CHAT_SETTINGS_TOPIC = "chat_settings"
_MAX_CACHED_SCOPES = 40_000  # of 10,000 chats; an empty scope takes 300 bytes
_MAX_COMMIT_SECONDS = 60.0
"""How long a failed write may still be committed; statements end within 20 s."""
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class CachedChatSettings(ChatSettings, ConversationMemory):
    """Caches the settings of scopes until a signal says that a scope has changed.

    Cached values expire after `max_age_seconds`, because signals may be lost. If it is None, they
    never expire, because no other process writes.
    """

    def __init__(
        self, settings: ChatSettings, signals: Signals, clock: Clock, max_age_seconds: float | None
    ) -> None:
        self._sql_settings = settings
        self._signals = signals
        self._clock = clock
        self._max_age_seconds = max_age_seconds
        # each scope's settings, and when they were read
        self._cached_scopes: OrderedDict[str, tuple[Mapping[str, str], float]] = OrderedDict()
        self._uncacheable_scopes: dict[str, float] = {}  # until when each stays uncached
        self._change_count = 0
        signals.subscribe(CHAT_SETTINGS_TOPIC, self._drop_cached_scopes)

    @override
    async def set(
        self, scope: str, key: str, value: str | None, author: str, *, is_audited: bool = False
    ) -> None:
        is_committed = False
        try:
            await self._sql_settings.set(scope, key, value, author, is_audited=is_audited)
            is_committed = True
        finally:
            if not is_committed:  # a write that failed or was cancelled may still be committed
                now = self._clock.monotonic()
                self._uncacheable_scopes = {
                    one: end for one, end in self._uncacheable_scopes.items() if end > now
                }
                self._uncacheable_scopes[scope] = now + _MAX_COMMIT_SECONDS
            self._signals.publish(CHAT_SETTINGS_TOPIC, [scope])

    @override
    async def get_scopes(self, scopes: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        now = self._clock.monotonic()
        values_by_scope: dict[str, Mapping[str, str]] = {}
        missing_scopes: dict[str, None] = {}
        min_read_at = -math.inf if self._max_age_seconds is None else now - self._max_age_seconds
        for scope in scopes:
            cached_scope = self._cached_scopes.get(scope)
            if cached_scope is None or cached_scope[1] < min_read_at:
                missing_scopes[scope] = None
            else:
                self._cached_scopes.move_to_end(scope)
                values_by_scope[scope] = cached_scope[0]
        if missing_scopes:
            values_by_scope |= await self._read_scopes(list(missing_scopes), now)
        return values_by_scope

    @override
    async def end_session(self, conversation: str) -> None:
        """Do nothing, because settings are kept across sessions."""

    @override
    async def forget(self, conversation: str) -> None:
        """Drop people's cached self-descriptions in all processes."""
        self._signals.publish(CHAT_SETTINGS_TOPIC, [conversation])

    async def _read_scopes(self, scopes: Sequence[str], now: float) -> dict[str, Mapping[str, str]]:
        old_change_count = self._change_count
        stored_scopes = await self._sql_settings.get_scopes(scopes)
        values_by_scope = {scope: stored_scopes.get(scope, _NO_SETTINGS) for scope in scopes}
        if old_change_count == self._change_count:  # otherwise the values may be outdated
            for scope, values in values_by_scope.items():
                self._cache_scope(scope, values, now)
        return values_by_scope

    def _cache_scope(self, scope: str, values: Mapping[str, str], read_at: float) -> None:
        if read_at < self._uncacheable_scopes.get(scope, 0.0):
            return
        self._cached_scopes[scope] = values, read_at
        self._cached_scopes.move_to_end(scope)
        if len(self._cached_scopes) > _MAX_CACHED_SCOPES:
            self._cached_scopes.popitem(last=False)

    def _drop_cached_scopes(self, scopes: Sequence[str]) -> None:
        self._change_count += 1
        suffixes = tuple(f"@{scope}" for scope in scopes)
        changed_scopes = frozenset(scopes)
        outdated_scopes = [
            one for one in self._cached_scopes if one in changed_scopes or one.endswith(suffixes)
        ]
        for one in outdated_scopes:
            del self._cached_scopes[one]
