"""Use the keys of a provider in turn, and leave out refused ones for a while."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Generic, Protocol, TypeVar

import structlog
from pydantic import SecretStr

from bot.backends.chat_completions.request_runner import HttpStatusError
from bot.backends.chat_completions.retries import wait_asked_for
from bot.backends.chat_completions.settings import HttpProviderSettings
from bot.ports import Clock
from bot.runtime.http_client import HttpResponse
from bot.runtime.secret_file import SecretFile
from bot.telemetry.secret_masker import mask_from_now_on

_log = structlog.get_logger(__name__)
_WRONG_KEY_SECONDS = 3600.0
_RATE_LIMITED_SECONDS = 60.0
T = TypeVar("T")


class KeyedConnection(Protocol):
    """Sends requests to one provider with one of its keys."""

    async def post(
        self,
        path: str,
        body: Mapping[str, object],
        deadline: float,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Send a request, as `request_runner.Post` does."""
        ...

    async def list_models(self) -> Sequence[str]: ...

    async def close(self) -> None: ...


C = TypeVar("C", bound=KeyedConnection)


@dataclass(eq=False, slots=True)
class _Key(Generic[C]):
    value: str | None
    connection: C
    number: int
    free_at: float = 0.0  # of the monotonic clock


class KeyRotation(Generic[C]):
    """Connections to one service, one for each key; at least one.

    A key that is refused (401, 402) is left out for an hour, one that is used too often (429) for
    as long as the service says. The request goes to the next key at once, without backoff.

    The keys of a file are read again within seconds of a change, without a restart. Requests in
    progress end with their old key.
    """

    def __init__(
        self,
        connect: Callable[[SecretStr | None], C],
        settings: HttpProviderSettings,
        clock: Clock,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._keys = [
            _Key(key.get_secret_value() if key else None, connect(key), number)
            for number, key in enumerate(settings.keys or (None,), start=1)
        ]
        self._retired: list[_Key[C]] = []
        file = settings.api_key_file
        self._file = None if file is None else SecretFile(file, clock)
        from_file = set(self._file.secrets if self._file else ())
        self._fixed = [one.value for one in self._keys if one.value not in from_file]
        self._next = 0

    async def post(
        self,
        path: str,
        body: Mapping[str, object],
        deadline: float,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        return await self.send(lambda one: one.post(path, body, deadline, headers))

    async def send(self, request: Callable[[C], Awaitable[T]]) -> T:
        """Make a request over the connection of the next key; raises what it does."""
        self._read_changed_file()
        for tries_left in reversed(range(len(self._keys))):
            key = self._select()
            try:
                return await request(key.connection)
            except HttpStatusError as error:
                if not (self._bench(key, error) and tries_left and self._has_free):
                    raise
        raise AssertionError("the last try returns or raises")

    async def list_models(self) -> Sequence[str]:
        return await self.send(lambda one: one.list_models())

    async def close(self) -> None:
        for one in (*self._keys, *self._retired):
            await one.connection.close()

    @property
    def _has_free(self) -> bool:
        return min(key.free_at for key in self._keys) <= self._clock.monotonic()

    def _select(self) -> _Key[C]:
        count, now = len(self._keys), self._clock.monotonic()
        order = [(self._next + step) % count for step in range(count)]
        free = [index for index in order if self._keys[index].free_at <= now]
        index = free[0] if free else min(order, key=lambda one: self._keys[one].free_at)
        self._next = (index + 1) % count
        return self._keys[index]

    def _bench(self, key: _Key[C], error: HttpStatusError) -> bool:
        """Leave a key out for a while if it caused an error; return whether it did."""
        now = self._clock.now()
        match error.status:
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.PAYMENT_REQUIRED:
                seconds = _WRONG_KEY_SECONDS
            case HTTPStatus.TOO_MANY_REQUESTS:
                seconds = wait_asked_for(error.headers, error.body, now)
                seconds = seconds or _RATE_LIMITED_SECONDS
            case _:
                return False
        if len(self._keys) > 1:
            _log.warning("key_left_out", number=key.number, status=error.status, seconds=seconds)
            key.free_at = self._clock.monotonic() + seconds
        return True

    def _read_changed_file(self) -> None:
        if self._file is None or not self._file.has_changed():
            return
        known = {key.value: key for key in self._keys}
        values = list(dict.fromkeys([*self._fixed, *self._file.secrets]))
        new = [value for value in values if value not in known]
        mask_from_now_on(value for value in new if value is not None)
        self._retired += [key for value, key in known.items() if value not in values]
        self._keys = [
            known.get(value)
            or _Key(value, self._connect(None if value is None else SecretStr(value)), number)
            for number, value in enumerate(values, start=1)
        ]
        self._next = 0
        _log.info("keys_read_again", keys=len(values), new=len(new))
