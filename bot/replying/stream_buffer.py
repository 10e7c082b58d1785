"""Buffer the text of a growing answer and say when its next live update is due."""

import math

from bot.chat.outgoing import Limits
from bot.replying.splitting.open_marks import close_unfinished
from bot.replying.splitting.split import split

_SECONDS_BEFORE_FIRST_MESSAGE = 0.8  # an answer that is complete by then is sent as a whole
_FIRST_MESSAGE_CHARS = 30  # a shorter text waits longer for its first message
_SECONDS_BEFORE_SHORT_MESSAGE = 1.0
_MAX_PAUSE_SECONDS = 10.0


class StreamBuffer:
    """Paces the updates of one answer; `now` is always the time of a monotonic clock."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._chunks: list[str] = []
        self._chars = 0
        self._notice = ""
        self._first_fed_at: float | None = None  # -inf: a notice, which is due at once
        self._shown = False
        self._changed = False
        self._pause = limits.seconds_between_edits
        self._not_before = -math.inf

    def feed(self, text: str, now: float) -> None:
        """Append text of the model."""
        self._chunks.append(text)
        self._chars += len(text)
        self._changed = True
        if self._first_fed_at is None or self._first_fed_at == -math.inf:
            self._first_fed_at = now

    def clear(self) -> None:
        """Drop all text."""
        self._chunks, self._chars = [], 0
        self._changed = True

    def set_notice(self, notice: str) -> None:
        """Show this instead of the answer until its first text."""
        if self._chars == 0 and notice != self._notice:
            self._notice = notice
            self._changed = True
            self._first_fed_at = -math.inf

    @property
    def is_empty(self) -> bool:
        """Whether there is neither text nor a notice."""
        return self._chars == 0 and not self._notice

    @property
    def due_at(self) -> float:
        """When the next update is due; infinite if nothing has changed."""
        if not self._changed or self._first_fed_at is None:
            return math.inf
        if self._shown:
            return self._not_before
        is_short = self._chars < _FIRST_MESSAGE_CHARS
        delay = _SECONDS_BEFORE_SHORT_MESSAGE if is_short else _SECONDS_BEFORE_FIRST_MESSAGE
        delay = min(delay, self._limits.seconds_between_edits)
        return max(self._not_before, self._first_fed_at + delay)

    def seconds_until_due(self, now: float) -> float:
        """Return how long to wait before the next update; infinite if nothing has changed."""
        return max(0.0, self.due_at - now)

    def take_parts(self, now: float) -> list[str]:
        """Return the whole text, split into messages; the next update is due one pause later."""
        text = "".join(self._chunks)
        self._chunks = [text]
        text = text or self._notice
        self._changed = False
        self._shown = True
        self._not_before = now + self._pause
        parts = split(text, self._limits)
        if parts and self._limits.render is not None:
            parts[-1] = self._without_half_marks(parts[-1])
        return parts

    def _without_half_marks(self, part: str) -> str:
        """Return the newest part with its open marks closed, if that fits."""
        closed = close_unfinished(part)
        is_whole = split(closed, self._limits) == [closed]
        return closed if is_whole else part

    def restart_pause(self, now: float) -> None:
        """Wait one pause from now on: a message that is opened may have waited for others."""
        self._not_before = now + self._pause

    def restart_pause_if_over(self, now: float) -> None:
        """Wait another pause after an update that took longer than one, as behind a rate limit."""
        if now >= self._not_before:
            self.restart_pause(now)

    def slow_down(self, now: float, retry_after_seconds: float = 0.0) -> None:
        """Double the pause after a refused update, and wait at least for the time given."""
        self._pause = min(self._pause * 2, max(_MAX_PAUSE_SECONDS, self._pause))
        self._not_before = now + max(self._pause, retry_after_seconds)
        self._changed = True  # the refused text still has to be shown

    def recover(self) -> None:
        """Return to the platform's normal pause after a successful update."""
        self._pause = self._limits.seconds_between_edits
