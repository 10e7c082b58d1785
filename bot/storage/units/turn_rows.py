"""The rows of the turns of a history, as `bot.storage.units` writes and reads them."""

from collections.abc import Mapping, Sequence
from typing import Any

from bot.chat.session import HistoryChange, Turn
from bot.chat.storable import make_storable
from bot.storage.sql.tables import turn
from bot.storage.units import history
from bot.storage.units.changes import ChangedRows

TURN_COLUMNS = (
    *(turn.c.role, turn.c.speaker_id, turn.c.speaker_name, turn.c.text, turn.c.at),
    *(turn.c.preset, turn.c.preset_version, turn.c.message_id, turn.c.observed),
    turn.c.files,
)


def to_turn_row(one: Turn, *, is_active: bool = True) -> dict[str, object]:
    return {
        "role": one.role,
        "speaker_id": one.speaker.id if one.speaker else None,
        "speaker_name": one.speaker.name if one.speaker else None,
        "text": make_storable(one.text),
        "at": one.at.timestamp(),
        "preset": one.preset,
        "preset_version": one.preset_version,
        "message_id": one.message_id,
        "sent_as": history.encode_parts(one.sent_as),
        "observed": one.observed,
        "active": is_active,
        "files": history.encode_files(one.files),
    }


def from_turn_row(row: Mapping[str, object]) -> Turn:
    """Return the turn as it will be read."""
    return to_turn([row[column.name] for column in TURN_COLUMNS])


def to_turn(row: Sequence[Any]) -> Turn:
    """Read a row that starts with `TURN_COLUMNS`; further columns are ignored."""
    *answered, observed, files = row[5 : len(TURN_COLUMNS)]
    return history.read_turn(row[:5], (*answered, None, observed, files))


def to_change_rows(change: HistoryChange) -> ChangedRows:
    return ChangedRows(
        texts={turn_id: make_storable(text) for turn_id, text in change.texts.items()},
        versions={turn_id: _to_version_row(one) for turn_id, one in change.versions.items()},
        superseded=tuple(change.superseded),
        restored=tuple(change.restored),
        deleted=tuple(change.deleted),
        replaced=tuple(change.replaced),
        observed=dict(change.observed),
        files={turn_id: history.encode_files(files) for turn_id, files in change.files.items()},
    )


def _to_version_row(one: Turn) -> dict[str, object]:
    row = to_turn_row(one)
    return {name: row[name] for name in ("text", "at", "preset", "preset_version", "sent_as")}
