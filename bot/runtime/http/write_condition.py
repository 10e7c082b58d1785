"""Ask at the last moment whether a request may still leave.

Between the decision to send something and the write to the socket a task waits: for a rate, for a
connection. A process can stand still there for a minute, while another one takes its work over;
what it sent then would appear twice.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from bot.runtime.http.failures import ConnectionFailed

_may_write: ContextVar[Callable[[], bool] | None] = ContextVar("may_write", default=None)


@contextmanager
def write_only_if(may_write: Callable[[], bool]) -> Iterator[None]:
    """Let each request that is made in the block leave only if this holds just before its write."""
    token = _may_write.set(may_write)
    try:
        yield
    finally:
        _may_write.reset(token)


def check_write() -> None:
    """Raise `ConnectionFailed` if the request that is about to leave may not leave any more."""
    may_write = _may_write.get()
    if may_write is not None and not may_write():
        raise ConnectionFailed("it is too late to send the request", sent=False)
