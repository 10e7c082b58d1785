"""Rates: how often something may happen."""

from dataclasses import replace

from bot.value_class import value_class


@value_class
class Rate:
    """So many events at once, then one whenever the interval has passed."""

    key: str
    """What is counted, such as "person:telegram:5"; events of one key share the rate."""
    count: int
    seconds: float
    """In which `count` events may happen on average."""

    @property
    def interval(self) -> float:
        """The seconds between two events once the burst is used up."""
        return self.seconds / self.count

    @property
    def tolerance(self) -> float:
        """How far ahead of the average the events of a burst may be, in seconds."""
        return self.interval * (self.count - 1)


@value_class
class Waiter:
    """Who waits for a place among other processes: the most urgent first, then in turns."""

    name: str
    """Of a process, which tries again with it until it has the place."""
    urgency: int
    """The lowest value goes first."""
    seconds: float
    """For so long after a try others leave a place to it."""


@value_class
class CallWindow:
    """At most so many calls in any so many seconds."""

    count: int
    seconds: float
    is_learned: bool = False
    """Whether it is documented as an approximate rate: where rates are learned it holds only in the
    hour after a refused call."""
    reserved: int = 0
    """How many of these calls are left to others."""


@value_class
class CallScope:
    """What a platform counts and refuses calls for: a bot, a chat, or a kind of call in a chat."""

    key: str
    windows: tuple[CallWindow, ...] = ()
    is_of_all: bool = False
    """Whether every process makes calls in it: a bot's, while a chat's are made by one or two."""

    def share_of(self, processes: int) -> "CallScope":
        """Return what one of so many processes may call while they cannot count together."""
        if not self.is_of_all or processes <= 1:
            return self
        windows = (
            replace(
                window,
                count=max(1, window.count // processes),
                reserved=window.reserved // processes,
            )
            for window in self.windows
        )
        return replace(self, windows=tuple(windows))
