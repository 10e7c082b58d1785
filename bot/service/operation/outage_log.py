"""Log which part of the service stops working, and when it works again."""

from collections.abc import Awaitable, Callable, Mapping

import structlog

from bot.ports import Clock

_SECONDS_BETWEEN = 2.0
_LOOKS_AT_START = 4
"""A part that has never worked may still be connecting."""
_log = structlog.get_logger(__name__)


class OutageLog:
    """Looks at the parts every two seconds.

    Args:
        look: returns "ok" or the reason by the name of each part.
        clock: the time between two looks.
    """

    def __init__(self, look: Callable[[], Awaitable[Mapping[str, str]]], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._began: dict[str, float] = {}
        self._has_worked: set[str] = set()

    async def run(self) -> None:
        """Log outages until cancelled."""
        looks = 0
        while True:
            looks += 1
            for part, state in (await self._look()).items():
                if state == "ok":
                    self._has_worked.add(part)
                    self._end(part)
                elif part in self._has_worked or looks >= _LOOKS_AT_START:
                    self._begin(part, state)
            await self._clock.sleep(_SECONDS_BETWEEN)

    def _begin(self, part: str, reason: str) -> None:
        if part not in self._began:
            self._began[part] = self._clock.monotonic()
            _log.warning("outage_began", part=part, reason=reason)

    def _end(self, part: str) -> None:
        if part in self._began:
            seconds = self._clock.monotonic() - self._began.pop(part)
            _log.info("outage_ended", part=part, seconds=round(seconds, 1))
