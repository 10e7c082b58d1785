"""Webhook events, derived from rows that are stored for other reasons.

A cursor per kind of event marks the last row sent as an event. After a crash, an event may be sent
again with the same id.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import takewhile
from typing import Any

from bot.chat.incoming import parse_address
from bot.chat.usage import MICROS_PER_DOLLAR
from bot.storage.database import ClockStore, run_readonly, transaction
from bot.storage.leases import read_installation_id
from bot.storage.statements import SQL, Rows, Unit
from bot.telemetry.logs import ERROR_PREFIX
from bot.value_class import value_class

_SENT_CURSOR_PREFIX = "events:"
_START_CURSOR_PREFIX = "events begun:"
_MAX_LISTED_EVENTS = 50
_MAX_TRANSACTION_SECONDS = 60.0
"""The maximum duration of one of our transactions."""
_MAX_SECONDS_TO_WRITE = 2.0
"""The maximum time between the assignment of a row's id and its transaction's first write."""
DRILL_PLATFORM = "drill"
"""The platform name of the deletion drill (bot/service/drill.py), which causes no events."""


class EventKind(StrEnum):
    ANSWERED = "answered"
    FAILED = "failed"
    FEEDBACK = "feedback"
    JOINED = "joined"


@value_class
class EventRow:
    """A row that may contain an event."""

    kind: EventKind
    position: float
    at: float
    """The row's time, in Unix seconds."""
    data: Mapping[str, object] | None
    """The event's data, without message texts; None if the row contains no event."""
    is_sent: bool = False


class EventLog(ClockStore):
    _installation_id = ""

    @run_readonly
    def load_rows_after(
        self, kind: EventKind, position: float, limit: int
    ) -> Unit[Sequence[EventRow]]:
        """Return up to `limit` rows after a position; no later commit inserts rows among them."""
        rows = yield from _load_rows_after(kind, position, limit)
        return [_decode_row(kind, *row) for row in takewhile(self._are_earlier_rows_visible, rows)]

    @transaction
    def load_sent_positions(self) -> Unit[dict[EventKind, float]]:
        """Return the position of each kind's last sent row; new kinds start at their newest row."""
        [newest_positions] = yield SQL["event_positions"].query()
        for kind, position in zip(EventKind, newest_positions, strict=True):
            for prefix in (_SENT_CURSOR_PREFIX, _START_CURSOR_PREFIX):
                cursor_values = {"name": f"{prefix}{kind}", "reached": repr(float(position))}
                yield SQL["begin_cursor"].query(cursor_values)
        return (yield from _read_positions(_SENT_CURSOR_PREFIX))

    @transaction
    def advance(self, kind: EventKind, position: float) -> Unit[None]:
        values = {"name": f"{_SENT_CURSOR_PREFIX}{kind}", "reached": repr(position)}
        yield SQL["advance_cursor"].query(values)

    def _are_earlier_rows_visible(self, row: Sequence[Any]) -> bool:
        """Return whether no earlier row can still appear; PostgreSQL may commit lower ids late."""
        _, at, has_no_older_transaction, *_ = row
        seconds = _MAX_SECONDS_TO_WRITE if has_no_older_transaction else _MAX_TRANSACTION_SECONDS
        return self._database.is_sqlite or self._clock.now() - at > seconds

    @run_readonly
    def list_recent(self) -> Unit[Sequence[EventRow]]:
        """Return recent events, newest first; empty if events were never turned on."""
        events = []
        start_positions = yield from _read_positions(_START_CURSOR_PREFIX)
        for kind, position in (yield from _read_positions(_SENT_CURSOR_PREFIX)).items():
            # The positions of feedback are times in seconds, and other positions are row ids.
            max_distance = 86_400.0 if kind is EventKind.FEEDBACK else _MAX_LISTED_EVENTS
            rows = yield from _load_rows_after(
                kind, max(start_positions[kind], position - max_distance), 2 * _MAX_LISTED_EVENTS
            )
            batch = [_decode_row(kind, *row) for row in rows]
            events += [replace(one, is_sent=one.position <= position) for one in batch if one.data]
        return sorted(events, key=lambda one: -one.at)[:_MAX_LISTED_EVENTS]

    async def installation_id(self) -> str:
        """Return the installation's id, which makes event ids unique across installations."""
        self._installation_id = self._installation_id or await read_installation_id(self._database)
        return self._installation_id


def _read_positions(prefix: str) -> Unit[dict[EventKind, float]]:
    rows = yield SQL["cursors"].query(prefix=prefix)
    return {EventKind(name.removeprefix(prefix)): float(value) for name, value in rows}


def _load_rows_after(kind: EventKind, position: float, limit: int) -> Unit[Rows]:
    after = position if kind is EventKind.FEEDBACK else int(position)  # a time, or a row's id
    return (yield SQL[f"rows_of_{kind}"].query(beyond=after, most=limit))


def _decode_row(kind: EventKind, position: float, at: float, _: object, *columns: Any) -> EventRow:
    data: dict[str, object] | None = None
    match kind:
        case EventKind.ANSWERED:
            turn, conversation, preset, provider, model, prompt, output, cost_micros = columns
            # A receipt without a turn is the usage of a summary or recap.
            if turn and not _belongs_to_drill(conversation):
                data = {"answer": position, "channel": parse_address(conversation).channel}
                data |= {"preset": preset, "provider": provider, "model": model}
                data |= {"prompt_tokens": prompt, "output_tokens": output}
                data |= {"cost": None if cost_micros is None else cost_micros / MICROS_PER_DOLLAR}
        case EventKind.FAILED:
            if (key := columns[0]).startswith(ERROR_PREFIX):
                data = {"error": key.removeprefix(ERROR_PREFIX)}
        case EventKind.FEEDBACK:
            receipt_number, reaction, person = columns
            if not _belongs_to_drill(person):
                data = {"answer": receipt_number, "reaction": reaction}
        case EventKind.JOINED:
            conversation, event_kind = columns
            if event_kind == "joined" and not _belongs_to_drill(conversation):
                data = {"channel": parse_address(conversation).channel}
    return EventRow(kind, position, at, data)


def _belongs_to_drill(key: str) -> bool:
    return parse_address(key).platform == DRILL_PLATFORM
