"""Test Discord messages without plain text: forwards, embeds, components and polls."""

import json
from pathlib import Path
from typing import Any

import pytest

from bot.chat.incoming import MediaItem, MediaKind
from bot.platforms.discord.incoming import to_incoming_message
from tests.platforms.discord.test_incoming import BOB, BOT, CachedGuild, reply_to


@pytest.fixture
async def cache() -> CachedGuild:
    return CachedGuild()


def forward_of(content: str, **more: Any) -> dict[str, Any]:
    """Return the JSON fields of a message that forwards another message."""
    snapshot = {
        "type": 0,
        "content": content,
        "embeds": [],
        "attachments": [],
        "timestamp": "2026-01-01T00:00:00+00:00",
        "edited_timestamp": None,
        **more,
    }
    reference = {"type": 1, "message_id": "5", "channel_id": "77"}
    return {"message_reference": reference, "message_snapshots": [{"message": snapshot}]}


async def test_forwarded_message_becomes_a_marked_quote_with_its_files(cache: CachedGuild) -> None:
    file = {"id": "1", "filename": "cat.png", "size": 9, "url": "u1", "proxy_url": "p"}
    forward = forward_of("Nova, look\nin #1", attachments=[{**file, "content_type": "image/png"}])
    incoming = cache.receive("", where=None, **forward)
    assert incoming is not None
    assert incoming.text == "[forwarded message]\n> Nova, look\n> in #1"
    assert incoming.attachments == (MediaItem(MediaKind.IMAGE, "cat.png", 9, "u1"),)
    assert incoming.authored_text == ""


@pytest.mark.parametrize(
    ("embeds", "text", "kinds"),
    [
        ([{"title": "News", "description": "Rain."}], "[forwarded message]\n> News\n> Rain.", []),
        ([], "", [MediaKind.FORWARD]),
    ],
)
async def test_forward_without_text_has_the_text_of_its_embeds(
    cache: CachedGuild, embeds: list[Any], text: str, kinds: list[MediaKind]
) -> None:
    incoming = cache.receive("", where=None, **forward_of("", embeds=embeds))
    assert incoming is not None
    assert (incoming.text, [one.kind for one in incoming.attachments]) == (text, kinds)


async def test_quoted_forward_has_its_text(cache: CachedGuild) -> None:
    reply = reply_to(BOB, "")
    reply["referenced_message"] |= forward_of("It is so.")
    incoming = cache.receive("<@1> really?", mentions=(BOT,), **reply)
    assert incoming is not None
    assert incoming.quote is not None
    assert incoming.quote.text == "[forwarded message]\n> It is so."


DATA = json.loads(Path(__file__).with_name("shown_by_bots.json").read_text("utf-8"))
EMBED, PREVIEW, BUTTONS = DATA["embed"]["given"], DATA["preview"], DATA["buttons"]
EMBED_TEXT, COMPONENTS = DATA["embed"]["text"], DATA["components"]
SHOWN: list[tuple[dict[str, Any], str]] = [
    ({"embeds": [EMBED]}, EMBED_TEXT),
    ({"content": "Hi", "embeds": [EMBED, PREVIEW], "components": BUTTONS}, f"Hi\n{EMBED_TEXT}"),
    ({"embeds": [EMBED], "components": BUTTONS}, f"{EMBED_TEXT}\nGo"),
    ({"components": COMPONENTS["given"], "flags": 1 << 15}, COMPONENTS["text"]),
]


@pytest.mark.parametrize(("fields", "text"), SHOWN)
async def test_embeds_of_bots_are_read_in_replies_and_forwards(
    cache: CachedGuild, fields: dict[str, Any], text: str
) -> None:
    reply = reply_to(BOB, "")
    reply["referenced_message"] |= {"webhook_id": "77", **fields}
    answered = cache.receive("<@1> what is this?", mentions=(BOT,), **reply)
    assert answered is not None
    assert answered.quote is not None
    assert answered.quote.text == text
    forwarded = cache.receive("", where=None, **forward_of(**{"content": "", **fields}))
    assert forwarded is not None
    quoted = "\n".join(f"> {line}" for line in text.splitlines())
    assert forwarded.text == f"[forwarded message]\n{quoted}"
    by_webhook = {"content": "", "webhook_id": "77", **fields}
    started = to_incoming_message(cache.message(**by_webhook), cache.bot, allows_bots=True)
    assert started is not None
    assert started.text == text


async def test_link_preview_is_not_part_of_the_text(cache: CachedGuild) -> None:
    incoming = cache.receive("look at https://a.example", embeds=[EMBED, PREVIEW])
    assert incoming is not None
    assert incoming.text == "look at https://a.example"


@pytest.mark.parametrize("shown", DATA["polls"])
async def test_poll_is_read_with_its_options(cache: CachedGuild, shown: dict[str, Any]) -> None:
    poll, text = shown["given"], shown["text"]
    private = cache.receive("", where=None, poll=poll)
    assert private is not None
    assert (private.text, private.attachments) == (text, ())
    reply = reply_to(BOB, "")
    reply["referenced_message"] |= {"poll": poll}
    answered = cache.receive("<@1> which?", mentions=(BOT,), **reply)
    assert answered is not None
    assert answered.quote is not None
    assert answered.quote.text == text
