"""Hold the events of a guild until it is known: a resumed session does not describe its guilds.

After IDENTIFY Discord sends every guild with its channels. After RESUME in a process that has just
started it sends events only, and without its channel a message in a thread has no parent.
"""

import asyncio
from collections.abc import Awaitable, Callable


class HeldEvents:
    """Keeps events of guilds that are not known, in order, until these are loaded."""

    def __init__(
        self,
        is_known: Callable[[int], bool],
        load: Callable[[int], Awaitable[None]],
        release: Callable[[str], None],
    ) -> None:
        """Take what knows the guilds.

        Args:
            is_known: whether a guild's channels are known.
            load: makes them known, or gives up; then the events are released all the same.
            release: takes an event, as it was received.
        """
        self._is_known = is_known
        self._load = load
        self._release = release
        self._held: dict[int, list[tuple[int, str]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def first_held(self) -> int | None:
        """The number of the oldest event that waits; None while there is none."""
        return min((held[0][0] for held in self._held.values()), default=None)

    def hold(self, guild: int, number: int, event: str) -> bool:
        """Keep an event if its guild has to be loaded, and say so; 0: a direct message."""
        if guild in self._held:
            self._held[guild].append((number, event))
            return True
        if not guild or self._is_known(guild):
            return False
        self._held[guild] = [(number, event)]
        task = asyncio.create_task(self._load_and_release(guild))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def clear(self) -> None:
        """Forget what waits: Discord sends it again, or it is read from the channels."""
        for task in self._tasks:
            task.cancel()
        self._held.clear()

    async def _load_and_release(self, guild: int) -> None:
        await self._load(guild)
        for _, event in self._held.pop(guild, ()):
            self._release(event)
