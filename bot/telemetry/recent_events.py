"""Keep the newest events of this process's log in memory, for the page of the operation."""

from collections import deque
from collections.abc import Sequence

import msgspec
from structlog.typing import EventDict, WrappedLogger

from bot.chat.console.operation import FailedMessage, LoggedStep
from bot.chat.message_note import MessageNote
from bot.chat.session import error_id_of
from bot.ports import MessageNotes

_MAX_EVENTS = 2000
_MAX_CHARS = 2000  # of one value: a traceback may be long
_FAILURES = {"warning", "error", "critical"}
_OF_EVERY_EVENT = {"event", "level", "timestamp", "turn", "logger"}


class RecentEvents:
    """A processor of the log that keeps what belongs to a message, without secrets.

    It stands behind the one that masks them, and changes nothing.
    """

    def __init__(self, max_events: int = _MAX_EVENTS) -> None:
        self._steps: deque[tuple[str, LoggedStep]] = deque(maxlen=max_events)

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        turn = event.get("turn")
        if turn is not None:
            details = {
                name: str(value)[:_MAX_CHARS]
                for name, value in event.items()
                if name not in _OF_EVERY_EVENT
            }
            at, level = str(event.get("timestamp", "")), str(event.get("level", method))
            step = LoggedStep(at, level, str(event.get("event", "")), details)
            self._steps.append((str(turn), step))
        return event

    def failures(self, limit: int) -> Sequence[FailedMessage]:
        """Return the messages with warnings or errors, those with the newest ones first."""
        turns = dict.fromkeys(
            turn for turn, step in reversed(self._steps) if step.level in _FAILURES
        )
        return [self._failed(turn) for turn in list(turns)[:limit]]

    def failure(self, error_id: str) -> FailedMessage | None:
        """Return a message by the id that people were told; None: nothing is known of it here."""
        turns = dict.fromkeys(turn for turn, _ in reversed(self._steps))
        found = next((turn for turn in turns if error_id_of(turn) == error_id), None)
        return None if found is None else self._failed(found)

    def _failed(self, turn: str) -> FailedMessage:
        steps = tuple(step for each, step in self._steps if each == turn)
        return FailedMessage(error_id_of(turn), turn, steps)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(FailedMessage).decode


def describe_failure(events: RecentEvents, turn: str) -> MessageNote:
    """Return what was logged of a message that failed."""
    error_id = error_id_of(turn)
    failed = events.failure(error_id) or FailedMessage(error_id, turn, ())
    return MessageNote(_key(error_id), _encode(failed).decode())


async def find_failure(notes: MessageNotes, error_id: str) -> FailedMessage | None:
    """Return a message that failed in any process; raises `StoreError`."""
    found = await notes.newest(_key(error_id), 1)
    try:
        return _decode(found[0]) if found else None
    except msgspec.DecodeError:  # of another version of Troupe
        return None


def _key(error_id: str) -> str:
    return f"error:{error_id}"


RECENT_EVENTS = RecentEvents()
"""What this process has logged."""
