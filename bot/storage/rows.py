"""Encode and decode the columns of events, outbox messages and turns.

A row may be unreadable because of another version of Troupe, an operator's SQL, or a damaged disk;
it must not affect other rows.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar, get_args

import msgspec
import structlog

from bot.chat.incoming import (
    Address,
    ButtonPress,
    ChatJoin,
    ForgetRequest,
    Incoming,
    IncomingMessage,
    MediaItem,
    MessageDeletion,
    MessageEdit,
    Person,
    ReactionChange,
    SayRequest,
    to_storable_text,
)
from bot.chat.outgoing import AnswerThread, Button, Face, Menu, MessageContent, PrivateDelivery
from bot.chat.prompt import Role
from bot.chat.session import Turn
from bot.errors import Undecodable

InputT = TypeVar("InputT")
Value = TypeVar("Value")
_log = structlog.get_logger(__name__)

_QUOTABLE_ERRORS = (msgspec.MsgspecError, json.JSONDecodeError, zlib.error)
"""Errors whose texts may be logged, because they quote nothing that people wrote."""
_DECODING_ERRORS = (
    *_QUOTABLE_ERRORS,
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, OSError),
)


def decode(parse: Callable[[InputT], Value], stored_value: InputT) -> Value:
    """Decode a row or signal; raises `Undecodable` for any failure."""
    if isinstance(stored_value, Sequence) and not isinstance(stored_value, str | bytes):
        for column in stored_value:  # the text could not be decrypted
            if isinstance(column, Undecodable):
                raise column
    try:
        return parse(stored_value)
    except _DECODING_ERRORS as error:
        is_quotable = isinstance(error, _QUOTABLE_ERRORS)
        raise Undecodable(str(error) if is_quotable else type(error).__name__) from None


def decode_all(label: str, rows: Iterable[InputT], parse: Callable[[InputT], Value]) -> list[Value]:
    """Decode rows or signals; unreadable ones are skipped and logged with the reason."""
    values: list[Value] = []
    for row in rows:
        try:
            values.append(decode(parse, row))
        except Undecodable as error:
            row_id = getattr(row, "id", None)
            _log.warning("not_decodable", what=label, row=row_id, reason=str(error))
    return values


_KIND_BY_TYPE: Mapping[type, str] = {
    IncomingMessage: "said",
    MessageEdit: "edited",
    MessageDeletion: "deleted",
    ButtonPress: "pressed",
    ReactionChange: "reacted",
    ChatJoin: "joined",
    ForgetRequest: "forget",
    SayRequest: "say",
}
_DECODERS: Mapping[str, Callable[[bytes | str], Incoming]] = {
    kind: msgspec.json.Decoder(event_type).decode for event_type, kind in _KIND_BY_TYPE.items()
}

encode_event: Callable[[Incoming], bytes] = msgspec.json.Encoder().encode


def get_event_kind(event: Incoming) -> str:
    return _KIND_BY_TYPE[type(event)]


def decode_event(kind: str, payload: bytes | str | Undecodable | None) -> Incoming:
    """Decode an event; raises `Undecodable`."""
    if kind not in _DECODERS:
        raise Undecodable(f"unknown kind {kind!r}")
    if payload is None:
        raise Undecodable("no payload")
    if isinstance(payload, Undecodable):  # the payload cannot be decrypted
        raise payload
    return decode(_DECODERS[kind], payload)


class _RowExtras(msgspec.Struct, omit_defaults=True):
    """The content of the JSON column `buttons`: controls, and fields without their own column."""

    buttons: tuple[Button, ...] = ()
    menus: tuple[Menu, ...] = ()
    thread: AnswerThread | None = None
    thoughts: str = ""
    private: PrivateDelivery | None = None


_NO_EXTRAS = _RowExtras()
_decode_extras = msgspec.json.Decoder(_RowExtras).decode
_decode_face = msgspec.json.Decoder(Face).decode
NO_CONTENT = {
    "text": "",
    "face": None,
    "buttons": None,
    **dict.fromkeys(("interaction", "file_name", "file_text")),
}
"""The columns of a row without a message, such as a deletion."""


def to_address_columns(address: Address) -> dict[str, object]:
    """Return the outbox columns for a message's address."""
    return {
        "platform": address.platform,
        "bot_id": address.bot_id,
        "chat": address.chat,
        "thread": address.thread,
        "lane": address.lane,
    }


def encode_content(
    content: MessageContent,
    thread: AnswerThread | None = None,
    private_delivery: PrivateDelivery | None = None,
) -> dict[str, str | None]:
    """Encode content as outbox columns; `buttons` is everything but text and face, as JSON."""
    extras = _RowExtras(content.buttons, content.menus, thread, content.thoughts, private_delivery)
    return {
        "text": to_storable_text(content.text),
        "face": None if content.face is None else _to_json(content.face),
        "buttons": None if extras == _NO_EXTRAS else _to_json(extras),
    }


def _to_json(value: Any) -> str:
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # half a surrogate pair
        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
    return to_storable_text(text).replace("\\u0000", "\ufffd")


def decode_content(
    text: str, face: str | None, buttons: str | None
) -> tuple[MessageContent, AnswerThread | None, PrivateDelivery | None]:
    """Decode the columns of `encode_content`; raises exceptions that `decode` translates."""
    extras = _NO_EXTRAS if buttons is None else _decode_extras(buttons)
    speaker = None if face is None else _decode_face(face)
    content = MessageContent(text, speaker, extras.buttons, extras.menus, extras.thoughts)
    return content, extras.thread, extras.private


TURN_COLUMNS = (
    *("role", "speaker_id", "speaker_name", "text", "at", "preset", "preset_version"),
    *("message_id", "sent_as", "observed", "files"),
)
_ROLES = frozenset(get_args(Role))
_encode_files = msgspec.json.Encoder().encode
_decode_files = msgspec.json.Decoder(tuple[MediaItem, ...]).decode


def to_turn_row(turn: Turn, *, is_active: bool = True) -> dict[str, object]:
    return {
        "role": turn.role,
        "speaker_id": turn.speaker.id if turn.speaker else None,
        "speaker_name": turn.speaker.name if turn.speaker else None,
        "text": to_storable_text(turn.text),
        "at": turn.at.timestamp(),
        "preset": turn.preset,
        "preset_version": turn.preset_version,
        "message_id": turn.message_id,
        "sent_as": encode_names(turn.part_names),
        "observed": turn.is_observed,
        "active": is_active,
        "files": encode_files(turn.files),
    }


def to_turn(row: Sequence[Any]) -> Turn:
    """Decode a row that starts with `TURN_COLUMNS`; raises exceptions that `decode` translates."""
    role, speaker_id, speaker_name, text, at, *other_columns = row[: len(TURN_COLUMNS)]
    preset, version, message_id, sent_as, is_observed, files = other_columns
    speaker = Person(speaker_id, speaker_name) if speaker_id else None
    if role not in _ROLES or not isinstance(text, str):
        raise TypeError(role)
    if speaker is not None and not isinstance(speaker.name, str):
        raise TypeError("speaker_name is not text")
    return Turn(
        *(role, text, speaker, datetime.fromtimestamp(at, UTC), preset, version, message_id),
        part_names=tuple(name for name in (sent_as or "").split("\n") if name),
        is_observed=bool(is_observed),
        files=_decode_stored_files(files),
    )


def encode_names(names: Sequence[str]) -> str | None:
    """Join names, with a line break before and after each; return None if there are none."""
    return "\n" + "".join(f"{name}\n" for name in names) if names else None


def encode_files(files: Sequence[MediaItem]) -> str | None:
    """Encode the addresses of files as text, or return None if there are no files."""
    storable_files = [replace(one, name=to_storable_text(one.name)) for one in files]
    return _encode_files(storable_files).decode() if storable_files else None


def _decode_stored_files(text: str | None) -> tuple[MediaItem, ...]:
    """Decode `encode_files`'s text; return no files if another version of Troupe encoded them."""
    try:
        return _decode_files(text) if text else ()
    except msgspec.DecodeError:
        return ()
