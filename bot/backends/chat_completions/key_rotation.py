"""Use a provider's keys in turn, and skip refused keys for a while."""

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Generic, Protocol, TypeVar

import structlog
from pydantic import SecretStr

from bot.backends.chat_completions.request_runner import HttpStatusError
from bot.backends.chat_completions.retries import find_wait_seconds
from bot.backends.chat_completions.settings import HttpProviderSettings
from bot.ports import Clock
from bot.runtime.http_client import HttpResponse
from bot.runtime.secret_file import SecretFile
from bot.telemetry.secret_masker import register_secrets

_log = structlog.get_logger(__name__)
_WRONG_KEY_PAUSE_SECONDS = 3600.0
_RATE_LIMIT_PAUSE_SECONDS = 60.0
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
        """Return the unread response; raise `HttpStatusError` or `ConnectionFailed`."""
        ...

    async def list_models(self) -> Sequence[str]: ...

    async def close(self) -> None: ...


C = TypeVar("C", bound=KeyedConnection)


class KeyRotation(Generic[C]):
    """Sends requests to a service over one connection per key.

    A refused key (401, 402) is skipped for an hour, and a rate-limited key (429) for as long as the
    service says. The request is then repeated at once with the next key. A changed key file is read
    again within seconds. Requests in progress keep their key.
    """

    def __init__(
        self, connect: Callable[[SecretStr | None], C], settings: HttpProviderSettings, clock: Clock
    ) -> None:
        self._connect = connect
        self._clock = clock
        key_file = settings.api_key_file
        self._key_file = None if key_file is None else SecretFile(key_file, clock)
        file_keys = set(self._key_file.secrets if self._key_file else ())
        keys = [key.get_secret_value() for key in settings.keys]
        self._configured_keys = [key for key in keys if key not in file_keys]
        self._connections: dict[str | None, C] = {}  # including keys since removed from the file
        self._pause_end_times = defaultdict[str | None, float](float)  # in monotonic seconds
        self._key_queue = deque[str | None]()
        self._connect_with_keys(keys or [None])

    def _connect_with_keys(self, keys: Sequence[str | None]) -> None:
        for key in keys:
            if key not in self._connections:
                self._connections[key] = self._connect(None if key is None else SecretStr(key))
        self._key_queue = deque(keys)

    async def send(self, send_with_connection: Callable[[C], Awaitable[T]]) -> T:
        """Send a request with the next key; if that key is refused, retry with the others."""
        self._reload_key_file()
        for tries_left in reversed(range(len(self._key_queue))):
            key = self._choose_soonest_usable_key()
            try:
                return await send_with_connection(self._connections[key])
            except HttpStatusError as error:
                if not (self._skip_if_refused(key, error) and tries_left and self._has_usable_key):
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def list_models(self) -> Sequence[str]:
        return await self.send(lambda connection: connection.list_models())

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()

    @property
    def _has_usable_key(self) -> bool:
        return min(self._pause_end_times[key] for key in self._key_queue) <= self._clock.monotonic()

    def _choose_soonest_usable_key(self) -> str | None:
        """Return the next usable key or, if there is none, the key that becomes usable first."""
        now = self._clock.monotonic()
        key = min(self._key_queue, key=lambda candidate: max(now, self._pause_end_times[candidate]))
        self._key_queue.rotate(-1 - self._key_queue.index(key))
        return key

    def _skip_if_refused(self, key: str | None, error: HttpStatusError) -> bool:
        """Skip a key for a while if the service refused it, and return whether it was refused."""
        match error.status:
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.PAYMENT_REQUIRED:
                pause_seconds = _WRONG_KEY_PAUSE_SECONDS
            case HTTPStatus.TOO_MANY_REQUESTS:
                wait_seconds = find_wait_seconds(error.headers, error.body, self._clock.now())
                pause_seconds = wait_seconds or _RATE_LIMIT_PAUSE_SECONDS
            case _:
                return False
        if len(self._key_queue) > 1:
            number = [*self._connections].index(key) + 1
            _log.warning("key_skipped", number=number, status=error.status, seconds=pause_seconds)
            self._pause_end_times[key] = self._clock.monotonic() + pause_seconds
        return True

    def _reload_key_file(self) -> None:
        if self._key_file is None or not self._key_file.reload_if_changed():
            return
        keys = list(dict.fromkeys([*self._configured_keys, *self._key_file.secrets]))
        new_keys = [key for key in keys if key not in self._connections]
        register_secrets(new_keys)
        self._connect_with_keys(keys)
        _log.info("keys_reloaded", keys=len(keys), new=len(new_keys))
