"""Hold the events of a guild until it is known: a resumed session does not describe its guilds.

After IDENTIFY Discord sends every guild with its channels. After RESUME in a process that has just
started it sends events only, and without its channel a message in a thread has no parent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Payload = Any  # a JSON object of Discord's API
_HELD = ("MESSAGE_CREATE", "MESSAGE_UPDATE", "MESSAGE_DELETE", "MESSAGE_DELETE_BULK")
Parse = Callable[[Payload], None]


class HeldEvents:
    """Parses events in order within a guild; those of an unknown guild wait until it is loaded."""

    def __init__(
        self,
        is_known: Callable[[int], bool],
        load: Callable[[int], Awaitable[None]],
        sequence: Callable[[], int | None],
    ) -> None:
        """Take what knows the guilds.

        Args:
            is_known: whether a guild's channels are known.
            load: makes them known, or gives up; then the events are parsed without.
            sequence: the number of the event that is parsed now.
        """
        self._is_known = is_known
        self._load = load
        self._sequence = sequence
        self._held: dict[int, list[tuple[int, Callable[[], None]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def first_held(self) -> int | None:
        """The number of the oldest event that waits; None while there is none."""
        return min((held[0][0] for held in self._held.values() if held), default=None)

    def hold_unknown(self, parsers: Mapping[str, Parse]) -> dict[str, Parse]:
        """Return the parsers, of which those for messages wait for the guild."""
        held = {name: self._holding(parsers[name]) for name in _HELD if name in parsers}
        return {**parsers, **held}

    def lets_pass(self, guild: int) -> bool:
        """Return whether events of a guild are parsed at once; 0: of direct messages."""
        return guild not in self._held and (not guild or self._is_known(guild))

    def clear(self) -> None:
        """Forget what waits: Discord sends it again, or it is read from the channels."""
        for task in self._tasks:
            task.cancel()
        self._held.clear()

    def _holding(self, parse: Parse) -> Parse:
        def parse_or_hold(data: Payload) -> None:
            guild = int(data.get("guild_id") or 0)
            if self.lets_pass(guild):
                parse(data)
            elif guild in self._held:
                self._held[guild].append((self._sequence() or 0, lambda: parse(data)))
            else:
                self._held[guild] = [(self._sequence() or 0, lambda: parse(data))]
                task = asyncio.create_task(self._load_and_parse(guild))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        return parse_or_hold

    async def _load_and_parse(self, guild: int) -> None:
        await self._load(guild)
        for _, parse in self._held.pop(guild, ()):
            parse()
