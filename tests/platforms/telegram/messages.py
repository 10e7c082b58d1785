"""Telegram messages in the form of the Bot API, for tests."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiogram.types import Message, User

BOT = User(id=7, is_bot=True, first_name="Nova", username="nova_bot")
BOT_JSON = {"id": 7, "is_bot": True, "first_name": "Nova", "username": "nova_bot"}
ALICE = {"id": 5, "is_bot": False, "first_name": "Alice", "last_name": "Ng"}
GROUP = {"id": -100, "type": "supergroup", "title": "Round table"}
PRIVATE = {"id": 5, "type": "private", "first_name": "Alice"}
NOON = 1_760_000_000
WIRE_FORMS = json.loads(Path(__file__).with_name("wire_forms.json").read_text("utf-8"))
"""An update, a poll, messages with attachments, and parts of messages that no library knows yet."""


def utf16_units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def entity(kind: str, text: str, word: str, **more: object) -> dict[str, Any]:
    """Return an entity that covers the first `word` in `text`, in UTF-16 units."""
    return {
        "type": kind,
        "offset": utf16_units(text[: text.index(word)]),
        "length": utf16_units(word),
        **more,
    }


def message(
    text: str | None = "hello",
    *,
    chat: Mapping[str, Any] = GROUP,
    entities: Sequence[Mapping[str, Any]] = (),
    **more: Any,
) -> Message:
    """Return a message from Alice; `more` are additional fields."""
    body: dict[str, Any] = {"message_id": 42, "date": NOON, "chat": chat, "from": ALICE, **more}
    if text is not None:
        body |= {"text": text, "entities": list(entities)}
    return Message.model_validate(body)
