"""How long an answer may take: until its first word, between words, while it thinks, and in all.

What counts is what the model does, not what the network carries: keep-alive comments and empty
chunks stop no clock. Only time spent waiting for the provider is counted, so that a slow reader of
ours cannot be mistaken for a slow model.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from bot.backends.chat_completions import errors as faults
from bot.backends.chat_completions.errors import Endpoint, Fault
from bot.settings import ProviderSettings

THINKING_SECONDS = 120.0
_AFTER_FINISH_SECONDS = 1.0  # how far the usage may trail behind the finish reason

_T = TypeVar("_T")


class Clocks:
    """The clocks of one attempt; `deadline` (the loop's time) ends all attempts of a turn."""

    def __init__(self, settings: ProviderSettings, endpoint: Endpoint, deadline: float) -> None:
        self._settings = settings
        self._endpoint = endpoint
        self._deadline = deadline
        self._left = settings.first_token_seconds
        self._thinking_left: float | None = None  # a number while it thinks
        self._spoken = False
        self._finished = False

    def progress(self, *, spoken: bool) -> None:
        """Note that the model did something; `spoken`: it is something to show."""
        self._left = self._settings.idle_seconds
        if spoken:
            self._spoken = True
            self._thinking_left = None
        elif not self._spoken and self._thinking_left is None:
            self._thinking_left = THINKING_SECONDS

    def finished(self) -> None:
        """Note that the answer is whole: nothing but its usage is still worth a moment."""
        if not self._finished:
            self._finished = True
            self._left = _AFTER_FINISH_SECONDS

    async def within(self, waited_for: Awaitable[_T]) -> _T:
        """Wait for the provider; raises `Fault` when one of the clocks runs out."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        limits = [start + self._left, self._deadline]
        if self._thinking_left is not None:
            limits.append(start + self._thinking_left)
        try:
            async with asyncio.timeout_at(min(limits)):
                found = await waited_for
        except TimeoutError:
            raise self._ran_out(loop.time()) from None
        finally:
            waited = loop.time() - start
            self._left -= waited
            if self._thinking_left is not None:
                self._thinking_left -= waited
        if start > self._deadline:  # what is always there already is never waited for
            raise self._ran_out(start)
        return found

    def _ran_out(self, now: float) -> Fault:
        settings = self._settings
        if now >= self._deadline:
            limit = (settings.total_seconds, "TOTAL_SECONDS")
            return faults.too_slow(self._endpoint, "no end of the answer", *limit)
        if self._spoken:
            limit = (settings.idle_seconds, "IDLE_SECONDS")
            return faults.too_slow(self._endpoint, "nothing more", *limit)
        if self._thinking_left is None:
            limit = (settings.first_token_seconds, "FIRST_TOKEN_SECONDS")
            return faults.too_slow(self._endpoint, "no first word", *limit)
        limit = (THINKING_SECONDS, "IDLE_SECONDS")
        return faults.too_slow(self._endpoint, "no word after a thought", *limit)
