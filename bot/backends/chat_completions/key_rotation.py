"""Use the keys of a provider in turn, and leave those out for a while that it refuses."""

from collections.abc import Sequence
from http import HTTPStatus

import structlog
from typing_extensions import override

from bot.backends.chat_completions.connection import PooledConnection
from bot.backends.chat_completions.errors import retry_after
from bot.backends.chat_completions.request import HttpConnection, HttpStatusError
from bot.ports import Clock
from bot.runtime.http_connection import HttpResponse

_log = structlog.get_logger(__name__)
_WRONG_KEY_SECONDS = 3600.0
_RATE_LIMITED_SECONDS = 60.0


class KeyRotation(HttpConnection):
    """Connections to one service, one for each key; at least one.

    A key that is refused (401, 402) is left out for an hour, one that is used too often (429) for
    as long as the service says. The request goes to the next key at once: that is no repetition
    which a service in trouble would feel.
    """

    def __init__(self, connections: Sequence[PooledConnection], clock: Clock) -> None:
        self._connections = connections
        self._clock = clock
        self._free_at = [0.0] * len(connections)
        self._next = 0

    @override
    async def post(self, path: str, body: bytes, deadline: float, header: str = "") -> HttpResponse:
        for _ in self._connections[1:]:
            index = self._select()
            try:
                return await self._connections[index].post(path, body, deadline, header)
            except HttpStatusError as error:
                if not self._bench(index, error) or not self._has_free:
                    raise
        index = self._select()
        try:
            return await self._connections[index].post(path, body, deadline, header)
        except HttpStatusError as error:
            self._bench(index, error)
            raise

    async def list_models(self) -> Sequence[str]:
        """Return the ids of the models; raises as `post` does."""
        return await self._connections[self._select()].list_models()

    async def close(self) -> None:
        """Close all connections."""
        for one in self._connections:
            await one.close()

    @property
    def _has_free(self) -> bool:
        return min(self._free_at) <= self._clock.monotonic()

    def _select(self) -> int:
        """Return the next key that is not left out; if all are, the one that is free first."""
        count, now = len(self._connections), self._clock.monotonic()
        order = [(self._next + step) % count for step in range(count)]
        free = [index for index in order if self._free_at[index] <= now]
        index = free[0] if free else min(order, key=lambda one: self._free_at[one])
        self._next = (index + 1) % count
        return index

    def _bench(self, index: int, error: HttpStatusError) -> bool:
        """Leave a key out for a while if an error is its own; return whether it is."""
        now = self._clock.now()
        match error.status:
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.PAYMENT_REQUIRED:
                seconds = _WRONG_KEY_SECONDS
            case HTTPStatus.TOO_MANY_REQUESTS:
                seconds = retry_after(error.headers.get("retry-after"), now)
                seconds = seconds or _RATE_LIMITED_SECONDS
            case _:
                return False
        if len(self._connections) > 1:
            _log.warning("key_left_out", number=index + 1, status=error.status, seconds=seconds)
            self._free_at[index] = self._clock.monotonic() + seconds
        return True
