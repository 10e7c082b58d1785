"""Keep notices from being repeated: people read them once, and then they are in the way."""

from bot.chat.rate import Rate
from bot.ports import RateLimits


class RareNotices:
    """Remembers which notices were shown lately; without rate limits it remembers nothing."""

    def __init__(self, rates: RateLimits | None = None) -> None:
        self._rates = rates

    async def is_due(self, name: str, seconds: float) -> bool:
        """Return whether a notice is to be shown that is shown at most once in so many seconds."""
        if self._rates is None:
            return True
        return await self._rates.take([Rate(f"told:{name}", 1, seconds)]) <= 0
