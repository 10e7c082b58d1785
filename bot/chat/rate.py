"""Rates: how often something may happen."""

from dataclasses import replace

from bot.value_class import value_class


@value_class
class Rate:
    """How often something may happen, as a token bucket: its size, and the time to refill it."""

    key: str
    """What is limited, such as "person:telegram:5"; events with the same key share the rate."""
    count: int
    seconds: float
    """The time in which an empty bucket refills to `count` tokens."""

    @property
    def interval_seconds(self) -> float:
        """The seconds between events once the burst is used up."""
        return self.seconds / self.count

    @property
    def tolerance_seconds(self) -> float:
        """How many seconds a full burst is ahead of the average rate."""
        return self.interval_seconds * (self.count - 1)


@value_class
class WaitingProcess:
    """A process waiting for a slot. The most urgent goes first; equally urgent ones take turns."""

    name: str
    """Identifies the process across its attempts to get a slot."""
    urgency: int
    """Lower values go first."""
    reserved_seconds: float
    """How many seconds other processes reserve a slot for it after each attempt."""


@value_class
class CallWindow:
    """A sliding window: at most `count` calls in any `seconds`."""

    count: int
    seconds: float
    is_learned: bool = False
    """Whether the window is approximate; where limits are learned, it applies only for an hour
    after a rejected call."""
    reserved_count: int = 0
    """How many of the calls are reserved for other purposes."""


@value_class
class RateLimitScope:
    """The scope of a platform's rate limit: a bot, a chat, or one kind of call in a chat."""

    key: str
    call_windows: tuple[CallWindow, ...] = ()
    is_cross_process: bool = False
    """Whether calls from all processes count, as for a bot; a chat has one or two processes."""

    def per_process_share(self, process_count: int) -> "RateLimitScope":
        """Return one process's share of the limit, for when processes cannot share a counter."""
        if not self.is_cross_process or process_count <= 1:
            return self
        reduced_windows = (
            replace(
                one,
                count=max(1, one.count // process_count),
                reserved_count=one.reserved_count // process_count,
            )
            for one in self.call_windows
        )
        return replace(self, call_windows=tuple(reduced_windows))
