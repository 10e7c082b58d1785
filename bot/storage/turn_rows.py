"""The rows of a history's turns, and the outbox rows that show them on the platform."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bot.chat.incoming import Pressed
from bot.chat.outgoing import OutboxOperation, OutgoingPart
from bot.chat.session import HistoryChange, InboxMessage, Turn, TurnResult
from bot.chat.storable import make_storable
from bot.storage import claims as units
from bot.storage import histories as history
from bot.storage.histories import ChangedRows
from bot.storage.rows import encode_content
from bot.storage.tables import turn

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


def to_opening_row(message: InboxMessage, opening: OutgoingPart) -> dict[str, object]:
    """Return the row with which a part of an answer begins, before the answer is complete."""
    first = _first_as_response(message, opening)
    content = encode_content(first.content, first.thread)
    change = _change(message, first, OutboxOperation.SEND, content, opened=False)
    return {**_common(message), **change}


def to_part_changes(message: InboxMessage, result: TurnResult) -> units.PartChanges:
    """Say what must happen on the platform so that the turn reads as the result says."""
    changes = []
    outgoing = [_marked_response(message, result, one) for one in result.outgoing]
    for one in outgoing:
        content = encode_content(one.content, one.thread)
        if not one.is_shown:
            changes.append(_change(message, one, OutboxOperation.EDIT, content, opened=True))
        changes.append(_change(message, one, OutboxOperation.SEND, content, opened=False))
    return units.PartChanges(
        _common(message),
        changes,
        [one.part for one in outgoing if not _is_beside_places(message, result, one)],
        may_be_opened=bool(outgoing or result.was_stopped or message.crashes),
    )


def _change(
    message: InboxMessage,
    one: OutgoingPart,
    op: OutboxOperation,
    content: Mapping[str, object],
    *,
    opened: bool,
) -> dict[str, object]:
    """Return the columns of one row of the outbox, and whether its part has to be opened."""
    file = one.file if op is OutboxOperation.SEND else None
    return {
        "part": one.part,
        "op": op,
        **content,
        "interaction": message.incoming.interaction if one.is_response else None,
        "file_name": file.name if file else None,
        "file_text": make_storable(file.text) if file else None,
        "opened": opened,
    }


def _marked_response(message: InboxMessage, result: TurnResult, part: OutgoingPart) -> OutgoingPart:
    """Mark the first part as the response to a native command, unless another one is marked."""
    if any(one.is_response for one in result.outgoing) or result.in_place_of:
        return part
    return _first_as_response(message, part)


def _is_beside_places(message: InboxMessage, result: TurnResult, part: OutgoingPart) -> bool:
    """Whether a part is no new text of an earlier message, but answers a native command."""
    is_command = not isinstance(message.incoming, Pressed)
    return bool(result.in_place_of) and is_command and part.is_response


def _first_as_response(message: InboxMessage, part: OutgoingPart) -> OutgoingPart:
    """Mark it if it is the first; in response to a press it would change the pressed message."""
    is_response = part.part == 0 and not isinstance(message.incoming, Pressed)
    return part if part.is_response == is_response else replace(part, is_response=is_response)


def _common(message: InboxMessage) -> dict[str, object]:
    """Return the columns that all rows of the outbox of a turn share."""
    asked = message.replied_to.incoming
    return {
        "turn": message.turn,
        "platform": asked.address.platform,
        "bot_id": asked.address.bot_id,
        "chat": asked.address.chat,
        "thread": asked.address.thread,
        "lane": asked.address.lane,
        "reply_to": asked.message_id,
    }
