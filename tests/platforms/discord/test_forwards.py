"""Forwarded messages of Discord: what they say and hold, and that they call nobody."""

from typing import Any

import pytest

from bot.chat.incoming import MediaItem, MediaKind
from tests.platforms.discord.test_incoming import BOB, BOT, CachedGuild, reply_to


@pytest.fixture
async def cache() -> CachedGuild:
    return CachedGuild()


def forward_of(content: str, **more: Any) -> dict[str, Any]:
    """Return the fields of a message that forwards another one."""
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


async def test_forwarded_message_is_a_marked_quote_with_its_files(cache: CachedGuild) -> None:
    file = {"id": "1", "filename": "cat.png", "size": 9, "url": "u1", "proxy_url": "p"}
    forward = forward_of("Nova, look\nin #1", attachments=[{**file, "content_type": "image/png"}])
    incoming = cache.receive("", where=None, **forward)
    assert incoming is not None
    assert incoming.text == "[forwarded message]\n> Nova, look\n> in #1"
    assert incoming.attachments == (MediaItem(MediaKind.IMAGE, "cat.png", 9, "u1"),)
    assert incoming.own_text == ""


@pytest.mark.parametrize(
    ("embeds", "text", "kinds"),
    [
        ([{"title": "News", "description": "Rain."}], "[forwarded message]\n> News\n> Rain.", []),
        ([], "", [MediaKind.FORWARD]),
    ],
)
async def test_forward_without_text_has_that_of_its_embeds(
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
