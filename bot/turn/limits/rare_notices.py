"""Keep notices from being repeated: people read them once, and then they are in the way."""

from bot.chat.rate import Rate
from bot.ports import RateLimits

_SECONDS_BETWEEN_NOTICES = 60.0


class RareNotices:
    """Remembers which notices were shown lately; without rate limits it remembers nothing."""

    def __init__(self, rates: RateLimits | None = None) -> None:
        self._rates = rates

    async def is_due_in(self, channel: str) -> bool:
        """Return whether the service may say in a channel that it is too busy for something.

        That is once a minute, whatever it says and to whom: a channel takes few messages, and
        most of them are to be answers.
        """
        return await self.is_due(f"notice:{channel}", _SECONDS_BETWEEN_NOTICES)

    async def is_due(self, name: str, seconds: float) -> bool:
        """Return whether a notice is to be shown that is shown at most once in so many seconds."""
        if self._rates is None:
            return True
        return await self._rates.take([Rate(f"told:{name}", 1, seconds)]) <= 0
