"""Apply the timeouts of a streamed answer: first token, between tokens, reasoning, and in total.

Only what the model does counts as progress: keep-alive comments and empty chunks do not. Only time
spent waiting for the provider is measured, so that neither a slow consumer nor a pause of this
process (a laptop that sleeps, a machine that moves) is taken for a slow model.
"""

from collections.abc import Callable

from bot.backends.chat_completions import errors
from bot.backends.chat_completions.errors import Endpoint, RequestFailed
from bot.backends.spec import ProviderSettings
from bot.runtime.http.client import STOOD_STILL_SECONDS

REASONING_SECONDS = 120.0
_AFTER_FINISH_SECONDS = 1.0  # how long after the finish reason the usage may still arrive


class Timeouts:
    """The timeouts of one attempt; `deadline` ends all attempts of an answer.

    Times are the event loop's, which `time` returns.
    """

    def __init__(
        self,
        settings: ProviderSettings,
        endpoint: Endpoint,
        deadline: float,
        time: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._endpoint = endpoint
        self._deadline = deadline
        self._time = time
        self._start = self._until = 0.0  # of the newest wait; a pause is before its start
        self._left = settings.first_token_seconds
        # A slow model of one's own thinks longer, too.
        self._reasoning_seconds = max(REASONING_SECONDS, settings.first_token_seconds)
        self._reasoning_left: float | None = None  # a number while the model reasons
        self._has_text = False
        self._finished = False

    def record_progress(self, *, has_text: bool) -> None:
        """Note that the model produced something; `has_text`: a part of the answer itself."""
        self._left = self._settings.idle_seconds
        if has_text:
            self._has_text = True
            self._reasoning_left = None
        elif not self._has_text and self._reasoning_left is None:
            self._reasoning_left = self._reasoning_seconds

    def record_finish(self) -> None:
        """Note that the answer is complete: only its usage is still worth a short wait."""
        if not self._finished:
            self._finished = True
            self._left = _AFTER_FINISH_SECONDS

    def begin(self, pause_seconds: float = 0.0) -> float:
        """Begin a wait for the provider; return the time at which it must raise `TimeoutError`.

        Call `end` after it, whatever its end. The pause is let pass at first, and does not count.

        Raises:
            RequestFailed: the time is up: data that is always there already is never waited for.
        """
        self._start = start = self._time() + pause_seconds
        if start > self._deadline:
            raise self._expired(start)
        until = min(start + self._left, self._deadline)
        if self._reasoning_left is not None:
            until = min(until, start + self._reasoning_left)
        self._until = until
        return until

    def expired(self) -> RequestFailed:
        """Return the error for a wait that raised `TimeoutError`, before its `end`."""
        now = self._time()
        if now - self._until > STOOD_STILL_SECONDS:
            return errors.stood_still(self._endpoint)
        return self._expired(now)

    def end(self) -> None:
        """Count the time that was waited."""
        now = self._time()
        late = now - self._until
        if late > STOOD_STILL_SECONDS:  # nobody's fault, so it does not count
            self._deadline += late
            now -= late
        if now > self._start:
            self._left -= now - self._start
            if self._reasoning_left is not None:
                self._reasoning_left -= now - self._start

    def _expired(self, now: float) -> RequestFailed:
        settings = self._settings
        if now >= self._deadline:
            limit = (settings.total_seconds, "TOTAL_SECONDS")
            return errors.timed_out(self._endpoint, "no end of the answer", *limit)
        if self._has_text:
            limit = (settings.idle_seconds, "IDLE_SECONDS")
            return errors.timed_out(self._endpoint, "no next token", *limit)
        if self._reasoning_left is None:
            limit = (settings.first_token_seconds, "FIRST_TOKEN_SECONDS")
            return errors.timed_out(self._endpoint, "no first token", *limit, is_silent=True)
        limit = (self._reasoning_seconds, "FIRST_TOKEN_SECONDS")
        return errors.timed_out(self._endpoint, "no answer after its reasoning", *limit)
