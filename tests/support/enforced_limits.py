"""Loopback platforms that enforce the rate limits of the real platforms.

Discord: 5 messages in 5 s for each kind of call in a channel, 5 in 2 s for a webhook, 50 calls a
second for a bot, all in windows that begin with their first call. Telegram: 10 messages and edits
at once in a chat and one more each second, 20 a minute in a group, 30 a second for a bot.

The servers share a process with the model and the simulated people. If the process is late in
reading a call, the call counts as having arrived earlier by that delay.
"""

import asyncio
import math
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from typing_extensions import override

from tests.rigs.simwire import SimWire
from tests.rigs.tgwire import Err, TgWire

IN_FLIGHT_SECONDS = 0.5
"""How long after a refusal calls may still arrive that were sent before it."""
_CLOCK_SECONDS = 0.002
"""The tolerance for the end of a refusal, because clients round to milliseconds."""
_BEAT_SECONDS = 0.005
"""The interval at which delays are measured."""
_RECENT_SECONDS = 2.0
_SHOWN_CALLS = 120
_DISCORD_SECONDS = {"channels": 5.0, "webhooks": 2.0}
_READS = ("getchat",)
_UNCOUNTED = ("sendchataction", "deletemessage")


@dataclass
class FixedWindow:
    count: int
    seconds: float
    left: int = 0
    ends_at: float = -math.inf

    def seconds_until_free(self, now: float) -> float:
        return 0.0 if self.left > 0 or now >= self.ends_at else self.ends_at - now

    def take(self, now: float) -> None:
        if now >= self.ends_at:
            self.left, self.ends_at = self.count, now + self.seconds
        self.left -= 1


@dataclass
class SlidingWindow:
    count: int
    seconds: float
    calls: deque[float] = field(default_factory=deque)

    def seconds_until_free(self, now: float) -> float:
        if len(self.calls) < self.count:
            return 0.0
        return max(0.0, self.calls[-self.count] + self.seconds - now)

    def take(self, now: float) -> None:
        self.calls.append(now)
        if len(self.calls) > self.count:
            self.calls.popleft()


@dataclass
class Bucket:
    """Token bucket: burst size and refill interval."""

    count: int
    interval: float
    empty_until: float = -math.inf

    def seconds_until_free(self, now: float) -> float:
        return max(0.0, self.empty_until - now - self.interval * (self.count - 1))

    def take(self, now: float) -> None:
        self.empty_until = max(now, self.empty_until) + self.interval


Window: TypeAlias = FixedWindow | SlidingWindow | Bucket


@dataclass(frozen=True, slots=True)
class Refusal:
    scope: str
    """The kind and name of the scope, such as "telegram-chat -1001"."""
    at: float
    """Monotonic time, like `until`."""
    until: float
    is_injected: bool
    """Whether a test requested it; otherwise the call exceeded a limit."""
    calls: tuple[str, ...] = ()
    """The latest calls in the scope, newest last, if the call exceeded a limit."""


class LimitEnforcer:
    """Counts the API calls of both platforms by scope, and records refused calls."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.refusals: list[Refusal] = []
        self.early: list[str] = []
        """Calls that came before the end of a refusal of their scope."""
        self.in_flight = 0
        """The number of calls that were already sent when the refusal came."""
        self._delays: deque[tuple[float, float]] = deque()  # when, and how long
        self._beat_at = now()
        self._windows: dict[str, list[Window]] = {}
        self._latest: defaultdict[str, deque[tuple[float, str]]] = defaultdict(
            lambda: deque(maxlen=_SHOWN_CALLS)
        )
        self._planned: dict[str, float] = {}
        self._told: dict[str, Refusal] = {}

    async def measure_delays(self) -> None:
        """Measure the delays of this process's event loop until cancelled."""
        while True:
            self._beat_at = self.now()
            await asyncio.sleep(_BEAT_SECONDS)
            now = self.now()
            self._delays.append((now, now - self._beat_at - _BEAT_SECONDS))
            while self._delays[0][0] < now - _RECENT_SECONDS:
                self._delays.popleft()

    def _recent_delay(self, now: float) -> float:
        if not self._delays:
            return 0.0
        current = now - self._beat_at - _BEAT_SECONDS
        return max(current, *(seconds for _, seconds in self._delays), 0.0)

    def refuse_next(self, kind: str, seconds: float) -> None:
        self._planned[kind] = seconds

    def judge(
        self, scopes: Mapping[str, list[Window]], call: str = "", *, is_counted: bool = True
    ) -> Refusal | None:
        """Check a call, and count it if `is_counted`; return its refusal, or None."""
        now = self.now()
        for scope, windows in scopes.items():
            self._windows.setdefault(scope, windows)
        refusal = (
            self._told_before(scopes, now)
            or self._injected(scopes, now)
            or (self._too_many(scopes, now) if is_counted else None)
        )
        if refusal is None and is_counted:
            for scope in scopes:
                self._latest[scope].append((now, call))
                for window in self._windows[scope]:
                    window.take(now)
        return refusal

    def window(self, scope: str) -> Window:
        return self._windows[scope][0]

    def _told_before(self, scopes: Mapping[str, Any], now: float) -> Refusal | None:
        for scope in scopes:
            told = self._told.get(scope)
            if told is None or now >= told.until - _CLOCK_SECONDS:
                continue
            if now <= told.at + IN_FLIGHT_SECONDS + self._recent_delay(now):
                self.in_flight += 1
            else:
                passed, seconds = now - told.at, told.until - told.at
                self.early.append(f"{scope}: {passed:.2f} s after a refusal for {seconds:.2f} s")
            return told
        return None

    def _injected(self, scopes: Mapping[str, Any], now: float) -> Refusal | None:
        for scope in scopes:
            seconds = self._planned.pop(scope.partition(" ")[0], None)
            if seconds is not None:
                return self._refuse(Refusal(scope, now, now + seconds, is_injected=True))
        return None

    def _too_many(self, scopes: Mapping[str, Any], now: float) -> Refusal | None:
        earliest = now + self._recent_delay(now)  # had those before come without a delay
        for scope in scopes:
            waits = [one.seconds_until_free(earliest) for one in self._windows[scope]]
            if (wait := max(waits)) > 0:
                calls = tuple(f"-{now - at:.3f} {call}" for at, call in self._latest[scope])
                return self._refuse(Refusal(scope, now, now + wait, False, calls))
        return None

    def _refuse(self, refusal: Refusal) -> Refusal:
        self.refusals.append(refusal)
        self._told[refusal.scope] = refusal
        return refusal

    def self_inflicted(self) -> list[Refusal]:
        return [one for one in self.refusals if not one.is_injected]


class LimitedDiscord(SimWire):  # type: ignore[misc] # rigs have no types
    """Discord with limits per route and bot, which are reported in headers."""

    enforcer: LimitEnforcer

    @override
    def _take_fault(self, method: str, path: str) -> Any:
        refusal = self.enforcer.judge(discord_scopes(method, path), f"{method} {path}")
        if refusal is None:
            return super()._take_fault(method, path)
        return {
            "delay": 0,
            "drop": False,
            "after": False,
            "retry_after": round(refusal.until - self.enforcer.now(), 3),
            "is_global": refusal.scope == "discord-bot",
            "scope": "user",
            "via": True,
        }

    @override
    def _resp(self, entry: Any, status: int, obj: Any, headers: Any = None) -> Any:
        told = _route_headers(self.enforcer, entry["method"], entry["path"])
        return super()._resp(entry, status, obj, {**told, **(headers or {})})


class LimitedTelegram(TgWire):  # type: ignore[misc] # rigs have no types
    """Telegram with limits per chat, group, and bot."""

    enforcer: LimitEnforcer

    @override
    async def _call(self, spec: Any, p: Any, up: Any) -> Any:
        chat, name = p.get("chat_id"), spec.__api_method__.lower()
        if chat is not None and not name.startswith(_READS):
            is_counted = not name.startswith(_UNCOUNTED)
            refusal = self.enforcer.judge(telegram_scopes(str(chat)), name, is_counted=is_counted)
            if refusal is not None:
                seconds = max(1, math.ceil(refusal.until - self.enforcer.now()))
                description = f"Too Many Requests: retry after {seconds}"
                raise Err(429, description, retry_after=seconds)
        return await super()._call(spec, p, up)


def discord_scopes(method: str, path: str) -> dict[str, list[Window]]:
    """Return the scopes that count a request; responses to interactions are not counted."""
    kind, *ids = path.strip("/").split("/")
    if kind == "interactions" or (kind == "webhooks" and "messages/@original" in path):
        return {}
    scopes: dict[str, list[Window]] = {"discord-bot": [FixedWindow(50, 1.0)]}
    if kind in _DISCORD_SECONDS and ids:
        # the kind of call and the channel or webhook, without the other ids
        rest = [one for one in ids[1:] if one in {"messages", "typing", "webhooks", "threads"}]
        route = f"discord-route {method} {'/'.join([kind, ids[0], *rest])}"
        return {route: [FixedWindow(5, _DISCORD_SECONDS[kind])], **scopes}
    return scopes


def _route_headers(enforcer: LimitEnforcer, method: str, path: str) -> dict[str, str]:
    for scope in discord_scopes(method, path):
        window = enforcer.window(scope)
        if scope.startswith("discord-route") and isinstance(window, FixedWindow):
            left = max(0.0, window.ends_at - enforcer.now())
            bucket = scope.replace(f"/{path.strip('/').split('/')[1]}", "")
            return {
                "X-RateLimit-Limit": str(window.count),
                "X-RateLimit-Remaining": str(window.left),
                "X-RateLimit-Reset-After": f"{left:.3f}",
                "X-RateLimit-Bucket": f"{zlib.crc32(bucket.encode()):x}",
            }
    return {}


def telegram_scopes(chat: str) -> dict[str, list[Window]]:
    """Return the scopes that count a call in a chat."""
    windows: list[Window] = [Bucket(10, 1.0)]
    if chat.startswith("-"):
        windows.append(SlidingWindow(20, 60.0))
    return {f"telegram-chat {chat}": windows, "telegram-bot": [SlidingWindow(30, 1.0)]}
