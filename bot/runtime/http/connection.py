"""One HTTP/1.1 connection: send a request, parse the head of its response, read its body.

A response is read in large pieces: whatever has arrived, however many chunks the server made of it.
Its reader can also let it arrive later: what comes then waits in the kernel, and a stream of tokens
wakes the process once for many of them.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from typing_extensions import override

from bot.runtime.http.failures import ConnectionFailed
from bot.runtime.http.parsing import body_of, parse_head
from bot.runtime.http.write_condition import check_write
from bot.runtime.wake_ups import end_wait, wake_ups

_MAX_HEAD_BYTES = 64 * 1024
_MAX_UNREAD_BYTES = 256 * 1024  # what is above waits in the kernel
_HEAD_END = b"\r\n\r\n"
_FIRST_FINAL_STATUS = 200

_LAST_LOOK_SECONDS = 0.1  # after a deadline, for what has arrived and was not read yet

STOOD_STILL_SECONDS = 1.0
"""A timer that fires later than this tells nothing about the server: this process stood still."""


class HttpResponse:
    """A response whose body is still to be read; close it, also after an error."""

    def __init__(
        self, connection: "HttpClientConnection", status: int, headers: Mapping[str, str]
    ) -> None:
        self.status = status
        self.headers = headers
        """Names are in lower case."""
        self._connection = connection
        self._body = body_of(status, headers)
        if self._body.is_complete:
            self._complete()

    async def read(self, deadline: float, pause_seconds: float = 0.0) -> bytes:
        """Return the next bytes of the body; none at its end.

        Args:
            deadline: in the event loop's time.
            pause_seconds: what arrives before is left in the kernel, unless some is here already.

        Raises:
            ConnectionFailed: the body ends too early, or is malformed.
            TimeoutError: nothing came before the deadline.
        """
        while not self._body.is_complete:
            data = await self._connection.receive(deadline, pause_seconds)
            if not data and not self._body.ends_with_connection:
                raise ConnectionFailed(self._connection.end_reason)
            body = self._body.feed(data)
            if self._body.is_complete:
                self._complete()
            if body:
                return body
        return b""

    async def read_all(self, deadline: float, max_bytes: int) -> bytes:
        """Return the rest of the body, or its beginning if it is longer; raises as `read` does."""
        parts: list[bytes] = []
        size = 0
        while size < max_bytes and (part := await self.read(deadline)):
            parts.append(part)
            size += len(part)
        return b"".join(parts)[:max_bytes]

    async def close(self) -> None:
        """Close the connection unless the body was read to its end."""
        if not self._body.is_complete:
            self._connection.abort()

    def _complete(self) -> None:
        can_stay = not self._body.ends_with_connection and not self._body.surplus
        says_close = "close" in self.headers.get("connection", "").lower()
        self._connection.end_response(keep_alive=can_stay and not says_close)


class HttpClientConnection(asyncio.Protocol):
    """One connection, for one request at a time.

    Args:
        on_connected: is called when it can be used.
        on_idle: is called when a response was read to its end and another request may follow.
        on_closed: is called when the connection has ended.
    """

    def __init__(
        self,
        on_connected: Callable[["HttpClientConnection"], None],
        on_idle: Callable[["HttpClientConnection"], None],
        on_closed: Callable[["HttpClientConnection"], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake_ups = wake_ups()
        self._on_connected = on_connected
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._is_paused = False
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._woken: asyncio.Future[None] | None = None  # the last waiter, if that is due already
        self._deadline = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._is_last_look = False
        self._is_busy = False
        self._requests = 0
        self.end_reason = "the server closed the connection"
        self.idle_since = 0.0

    async def request(self, data: bytes, deadline: float) -> HttpResponse:
        """Send a whole request and return its response, with the body still unread.

        Raises:
            ConnectionFailed: there is no response, or the request may not leave any more.
            TimeoutError: there was none before the deadline.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionFailed(self.end_reason, sent=False)
        try:
            check_write()
        except ConnectionFailed:
            self.abort()
            raise
        self._is_busy = True
        self._requests += 1
        transport.write(data)
        try:
            return await self._read_head(deadline)
        except BaseException:
            self.abort()
            raise

    async def receive(self, deadline: float, pause_seconds: float = 0.0) -> bytes:
        """Return what has arrived, waiting for it; nothing at the end of the connection.

        Raises:
            TimeoutError: nothing came before the deadline.
        """
        if not self._unread and not self._ended:
            await self._wait(deadline, pause_seconds)
        data = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        self._resume()
        return data

    def end_response(self, *, keep_alive: bool) -> None:
        """Let the next request use the connection, or close it."""
        self._is_busy = False
        if keep_alive and not self._ended and not self._unread:
            self.idle_since = self._loop.time()
            self._on_idle(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def idle_seconds(self) -> float:
        """How long nothing has used it."""
        return self._loop.time() - self.idle_since

    @property
    def is_open(self) -> bool:
        return not self._ended and self._transport is not None and not self._transport.is_closing()

    # --- called by the event loop ------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has another base
        self._on_connected(self)

    @override
    def data_received(self, data: bytes) -> None:
        if not self._is_busy:  # nobody has asked for anything
            self.abort()
            return
        self._unread.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > _MAX_UNREAD_BYTES:
            self._pause()
        self._wake()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.end_reason = str(exc) or type(exc).__name__
        self._ended = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._wake()
        self._on_closed(self)

    # --- waiting -----------------------------------------------------------------------------

    async def _wait(self, deadline: float, pause_seconds: float) -> None:
        self._deadline = deadline
        if deadline > self._loop.time():
            self._is_last_look = False
        if self._alarm is None or self._alarm_at > deadline:
            self._set_alarm(deadline)
        self._waiter = self._loop.create_future()
        resume = None
        if pause_seconds > 0:
            self._pause()
            resume = self._loop.call_later(pause_seconds, self._resume)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if resume is not None:
                resume.cancel()

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._loop.call_at(at, self._on_alarm)

    def _on_alarm(self) -> None:
        """End a wait that is too long; one timer serves many waits, of many requests."""
        self._alarm = None
        if self._waiter is None or self._waiter is self._woken or self._waiter.done():
            return
        late = self._loop.time() - self._deadline
        if late > STOOD_STILL_SECONDS:
            # This process was stopped, or the machine was asleep: what the server has sent since
            # is still in the kernel.
            self._deadline = self._loop.time() + late
        if late < 0 or late > STOOD_STILL_SECONDS:
            self._set_alarm(self._deadline)
        elif not self._is_last_look:
            # The loop may have been busy since the pause: nothing was read after it.
            self._is_last_look = True
            self._set_alarm(self._loop.time() + _LAST_LOOK_SECONDS)
        else:
            self._waiter.set_exception(TimeoutError())

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter is self._woken or waiter.done():
            return
        self._woken = waiter
        self._wake_ups.wake(partial(end_wait, waiter))

    def _pause(self) -> None:
        if not self._is_paused and self.is_open:
            self._is_paused = True
            self._transport.pause_reading()  # type: ignore[union-attr] # it is open

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if self.is_open:
                self._transport.resume_reading()  # type: ignore[union-attr] # it is open

    # --- the head of a response --------------------------------------------------------------

    async def _read_head(self, deadline: float) -> HttpResponse:
        while True:
            status, headers = parse_head(await self._receive_head(deadline))
            if status >= _FIRST_FINAL_STATUS:  # after 100 or 103 another one follows
                return HttpResponse(self, status, headers)

    async def _receive_head(self, deadline: float) -> bytes:
        """Return the head; what has come after it stays unread."""
        received = b""
        while len(received) <= _MAX_HEAD_BYTES:
            data = await self.receive(deadline)
            if not data:
                was_idle = not received and self._requests > 1
                raise ConnectionFailed(self.end_reason, was_idle=was_idle)
            received += data
            head, end, rest = received.partition(_HEAD_END)
            if end:
                if rest:
                    self._unread.insert(0, rest)
                    self._unread_bytes += len(rest)
                return head
        raise ConnectionFailed("the server's response has no end of its head")
