"""Plain messages are read without aiogram, and just as with it."""

from typing import Any

import pytest
from aiogram.types import Update

from bot.platforms.telegram.incoming import parse_updates, read_update
from bot.platforms.telegram.plain_messages import PlainUpdate
from tests.platforms.telegram.messages import ALICE, BOT, BOT_JSON, GROUP, NOON, PRIVATE, entity

_MENTION = "@nova_bot what is new, @bob?"
_PLAIN: dict[str, dict[str, Any]] = {
    "in private": {"chat": PRIVATE},
    "in a group": {"text": "hello\n  there "},
    "of a bot": {"from": BOT_JSON},
    "with more of the author": {
        "from": {**ALICE, "username": "alice", "language_code": "de", "is_premium": True}
    },
    "with mentions": {
        "text": _MENTION,
        "entities": [
            entity("mention", _MENTION, "@nova_bot"),
            entity("mention", _MENTION, "@bob"),
            entity("text_mention", _MENTION, "new", user={**BOT_JSON, "id": 9}),
        ],
    },
    "a command": {
        "text": "/preset nova",
        "entities": [entity("bot_command", "/preset", "/preset")],
    },
    "with a hidden link preview": {"link_preview_options": {"is_disabled": True}},
}
_OTHER: dict[str, dict[str, Any]] = {
    "without a text": {"text": None, "dice": {"emoji": "x", "value": 1}},
    "a reply": {
        "reply_to_message": {"message_id": 3, "date": NOON, "chat": GROUP, "from": BOT_JSON}
    },
    "in a topic": {"message_thread_id": 9, "is_topic_message": True},
    "as a channel": {"sender_chat": {"id": -200, "type": "channel", "title": "News"}},
    "of a new field": {"something_new": {}},
    "of another form": {"message_id": "42"},
}


def _update(fields: dict[str, Any]) -> dict[str, Any]:
    body = {"message_id": 42, "date": NOON, "chat": GROUP, "from": ALICE, "text": "hello"}
    given = {name: value for name, value in {**body, **fields}.items() if value is not None}
    return {"update_id": 1, "message": given}


@pytest.mark.parametrize("fields", _PLAIN.values(), ids=_PLAIN)
@pytest.mark.parametrize("commands", [(), ("preset",)])
def test_plain_message_is_read_as_by_the_library(
    fields: dict[str, Any], commands: tuple[str, ...]
) -> None:
    raw = _update(fields)
    [plain] = parse_updates([raw])
    assert isinstance(plain, PlainUpdate)
    by_library = read_update(Update.model_validate(raw), BOT, "", commands)
    assert read_update(plain, BOT, "", commands) == by_library


@pytest.mark.parametrize("fields", _OTHER.values(), ids=_OTHER)
def test_any_other_message_is_left_to_the_library(fields: dict[str, Any]) -> None:
    [update] = parse_updates([_update(fields)])
    assert isinstance(update, Update)
