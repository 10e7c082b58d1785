"""The rows of the outbox that make a turn read on the platform as its result says."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bot.chat.incoming import Pressed
from bot.chat.outgoing import FILE_PARTS, OutboxOperation, OutgoingPart
from bot.chat.session import InboxMessage, TurnResult
from bot.chat.storable import make_storable
from bot.frozen_dataclass import frozen_dataclass
from bot.storage.rows import NOTHING, encode_content

_NO_MESSAGE = {**NOTHING, "interaction": None, "file_name": None, "file_text": None}
"""The columns of a row that deletes a message."""


@frozen_dataclass
class PartChanges:
    """What must happen on the platform for a turn to read as its answer says."""

    common: dict[str, Any]
    """What all rows of the outbox share: turn, platform, bot_id, chat, thread, lane, reply_to."""
    changes: Sequence[dict[str, Any]]
    """The other columns, and `opened`: queue it only if the part was opened (or was not)."""
    parts: Sequence[int]
    """The numbers of the parts; others that were opened are deleted."""
    may_be_opened: bool
    """Whether this turn can have opened parts at all."""

    def rows(self, opened: Collection[int]) -> list[dict[str, Any]]:
        """Return the rows to queue, given the parts that were opened."""
        rows = [
            {**self.common, **change}
            for change in self.changes
            if change["opened"] == (change["part"] in opened)
        ]
        delete = {**self.common, "op": OutboxOperation.DELETE, **_NO_MESSAGE}
        surplus = sorted(set(opened).difference(self.parts))
        return rows + [{**delete, "part": part} for part in surplus]

    def rows_in_place(self, targets: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows to queue, given the messages whose places the parts take, in order.

        A file takes no place and leaves none: it is sent anew, and deleted with its answer.
        """
        nothing = {"external_id": None, "target_turn": None, "target_part": None}
        texts = [part for part in self.parts if part < FILE_PARTS]
        of_texts = [target for target in targets if target["target_part"] < FILE_PARTS]
        files = [target for target in targets if target["target_part"] >= FILE_PARTS]
        places = dict(zip(texts, of_texts, strict=False))
        rows = [
            {**self.common, **change, **places.get(change["part"], nothing)}
            for change in self.changes
            if change["opened"] == (change["part"] in places)
        ]
        delete = {**self.common, "op": OutboxOperation.DELETE, **_NO_MESSAGE}
        surplus = enumerate([*of_texts[len(texts) :], *files], len(texts))
        return rows + [{**delete, "part": number, **target} for number, target in surplus]


def to_opening_row(message: InboxMessage, opening: OutgoingPart) -> dict[str, object]:
    """Return the row with which a part of an answer begins, before the answer is complete."""
    first = _first_as_response(message, opening)
    content = encode_content(first.content, first.thread)
    change = _change(message, first, OutboxOperation.SEND, content, opened=False)
    return {**_common(message), **change}


def to_part_changes(message: InboxMessage, result: TurnResult) -> PartChanges:
    """Say what must happen on the platform so that the turn reads as the result says."""
    changes = []
    outgoing = [_marked_response(message, result, one) for one in result.outgoing]
    for one in outgoing:
        content = encode_content(one.content, one.thread)
        if not one.is_shown:
            changes.append(_change(message, one, OutboxOperation.EDIT, content, opened=True))
        changes.append(_change(message, one, OutboxOperation.SEND, content, opened=False))
    return PartChanges(
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
