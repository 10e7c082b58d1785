"""Rates: how often something may happen."""

from dataclasses import replace

from bot.value_class import value_class


@value_class
class Rate:
    """Token bucket: burst size and refill time."""

    key: str
    """What is counted, such as "person:telegram:5"; events of one key share the rate."""
    count: int
    seconds: float
    """The time in which `count` tokens refill."""

    @property
    def interval(self) -> float:
        """The seconds between events once the burst is used up."""
        return self.seconds / self.count

    @property
    def tolerance(self) -> float:
        """How many seconds a burst may run ahead of the average rate."""
        return self.interval * (self.count - 1)


@value_class
class Waiter:
    """A process waiting for a slot: the most urgent goes first, then processes take turns."""

    name: str
    """Identifies the process between its tries."""
    urgency: int
    """The lowest value goes first."""
    seconds: float
    """How long after a try other processes leave a slot to it."""


@value_class
class CallWindow:
    """A sliding window: at most `count` calls in any `seconds`."""

    count: int
    seconds: float
    is_learned: bool = False
    """Whether it is documented as an approximate rate: where rates are learned it holds only in the
    hour after a refused call."""
    reserved: int = 0
    """How many of these calls are reserved for others."""


@value_class
class CallScope:
    """What a platform's rate limit applies to: a bot, a chat, or a kind of call in a chat."""

    key: str
    windows: tuple[CallWindow, ...] = ()
    spans_processes: bool = False
    """Whether every process makes calls in it, as for a bot; a chat has one or two processes."""

    def per_process_share(self, processes: int) -> "CallScope":
        """Return one process's share of the limit, for when processes cannot share a count."""
        if not self.spans_processes or processes <= 1:
            return self
        shares = (
            replace(one, count=max(1, one.count // processes), reserved=one.reserved // processes)
            for one in self.windows
        )
        return replace(self, windows=tuple(shares))
