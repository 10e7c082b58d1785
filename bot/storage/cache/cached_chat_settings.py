"""Keep settings made in chats in memory: they are looked up for each message and rarely change."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

from bot.chat.session import ChatSetting
from bot.ports import ChatSettings, Clock, ConversationMemory, Signals

_TOPIC = "chat_settings"
_MAX_VALUES = 20_000


@dataclass(frozen=True, slots=True)
class _Value:
    text: str | None
    """None: nothing is set."""
    read_at: float


class CachedChatSettings(ChatSettings, ConversationMemory):
    """Reads through, and forgets what has changed.

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
        self._values: OrderedDict[tuple[str, str], _Value] = OrderedDict()
        self._uncertain: set[tuple[str, str]] = set()  # never kept
        self._changes = 0
        signals.subscribe(_TOPIC, self._drop)

    @override
    async def set(self, scope: str, key: str, value: str | None, by: str) -> None:
        is_committed = False
        try:
            await self._stored.set(scope, key, value, by)
            is_committed = True
        finally:
            if not is_committed:  # a write that failed or was cancelled may still be committed
                self._uncertain.add((key, scope))
            self._signals.publish(_TOPIC, [scope])

    @override
    async def resolve(self, scopes: Sequence[str], key: str) -> ChatSetting | None:
        values = await self.get_all(scopes, key)
        for scope in scopes:
            if scope in values:
                return ChatSetting(scope, values[scope])
        return None

    @override
    async def get_all(self, scopes: Sequence[str], key: str) -> Mapping[str, str]:
        now = self._clock.monotonic()
        found = {scope: self._get(scope, key, now) for scope in scopes}
        missing = [scope for scope, value in found.items() if value is None]
        texts = {scope: value.text for scope, value in found.items() if value is not None}
        if missing:
            texts |= await self._read(missing, key, now)
        return {scope: text for scope in scopes if (text := texts[scope]) is not None}

    @override
    async def end_session(self, conversation: str) -> None:
        """Settings outlive sessions."""

    @override
    async def forget(self, conversation: str) -> None:
        """Drop what people said of themselves in a conversation, here and in other processes."""
        self._signals.publish(_TOPIC, [conversation])

    def _get(self, scope: str, key: str, now: float) -> _Value | None:
        value = self._values.get((key, scope))
        if value is None:
            return None
        if self._max_age_seconds is not None and now - value.read_at > self._max_age_seconds:
            return None
        self._values.move_to_end((key, scope))
        return value

    async def _read(self, scopes: Sequence[str], key: str, now: float) -> dict[str, str | None]:
        changes = self._changes
        stored = await self._stored.get_all(scopes, key)
        texts = {scope: stored.get(scope) for scope in scopes}
        if changes == self._changes:  # else it may have been read before the change
            for scope, text in texts.items():
                self._keep(scope, key, _Value(text, now))
        return texts

    def _keep(self, scope: str, key: str, value: _Value) -> None:
        if (key, scope) in self._uncertain:
            return
        self._values[key, scope] = value
        self._values.move_to_end((key, scope))
        if len(self._values) > _MAX_VALUES:
            self._values.popitem(last=False)

    def _drop(self, scopes: Sequence[str]) -> None:
        self._changes += 1
        endings = tuple(f"@{scope}" for scope in scopes)
        named = frozenset(scopes)
        changed = [one for one in self._values if one[1] in named or one[1].endswith(endings)]
        for one in changed:
            del self._values[one]
