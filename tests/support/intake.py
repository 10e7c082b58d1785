"""An intake in memory that stores each event once and can fail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from bot.chat.incoming import Incoming, IncomingMessage
from bot.errors import StoreError
from bot.ports import Intake


@dataclass
class FakeIntake(Intake):
    events: list[Incoming] = field(default_factory=list)
    stored: dict[str, str] = field(default_factory=dict)
    failures: float = 0
    """The number of first calls that fail."""
    failed: int = 0
    """The number of calls that have failed."""

    @override
    async def receive(self, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        if self.failed < self.failures:
            self.failed += 1
            raise StoreError("the disk is full")
        known = {event.external_key for event in self.events}
        self.events += [event for event in messages if event.external_key not in known]
        self.stored |= cursors

    @override
    async def cursors(self, prefix: str) -> Mapping[str, str]:
        return {name: value for name, value in self.stored.items() if name.startswith(prefix)}

    @property
    def received(self) -> list[IncomingMessage]:
        return [event for event in self.events if isinstance(event, IncomingMessage)]

    @property
    def texts(self) -> list[str]:
        return [said.text for said in self.received]
