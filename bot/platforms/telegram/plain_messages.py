"""The updates that nearly all are, without aiogram: a message with a text and nothing besides.

To validate one as aiogram's `Message`, with its hundred fields, takes ten times as long as all that
is done with it. What has any field that is not here is left to aiogram.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

import msgspec


class PlainUser(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    is_bot: bool
    first_name: str
    last_name: str | None = None
    username: str | None = None
    language_code: str | None = None
    is_premium: bool | None = None

    @property
    def full_name(self) -> str:
        return f"{self.first_name} {self.last_name}" if self.last_name else self.first_name


class PlainChat(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    type: str
    title: str | None = None
    first_name: str | None = None
    last_name: str | None = None
    username: str | None = None
    is_forum: bool | None = None

    is_direct_messages: ClassVar[None] = None


class PlainEntity(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    offset: int
    length: int
    user: PlainUser | None = None


class PlainMessage(msgspec.Struct, forbid_unknown_fields=True):
    """As much of aiogram's `Message` as `incoming` reads of a message with a text."""

    message_id: int
    sent_at: int = msgspec.field(name="date")
    chat: PlainChat
    from_user: PlainUser = msgspec.field(name="from")
    text: Annotated[str, msgspec.Meta(min_length=1)]
    entities: list[PlainEntity] | None = None
    link_preview_options: Any = None

    caption: ClassVar[None] = None
    caption_entities: ClassVar[None] = None
    forward_origin: ClassVar[None] = None
    is_automatic_forward: ClassVar[None] = None
    is_topic_message: ClassVar[None] = None
    media_group_id: ClassVar[None] = None
    message_thread_id: ClassVar[None] = None
    quote: ClassVar[None] = None
    reply_to_message: ClassVar[None] = None
    sender_chat: ClassVar[None] = None

    @property
    def date(self) -> datetime:
        return datetime.fromtimestamp(self.sent_at, UTC)


class PlainUpdate(msgspec.Struct, forbid_unknown_fields=True):
    update_id: int
    message: PlainMessage

    callback_query: ClassVar[None] = None
    edited_message: ClassVar[None] = None
    my_chat_member: ClassVar[None] = None


def read_plain(raw: dict[str, Any]) -> PlainUpdate | None:
    """Return an update as a plain one; None if it is any other."""
    try:
        return msgspec.convert(raw, PlainUpdate)
    except msgspec.ValidationError:
        return None
