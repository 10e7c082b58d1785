"""Send what a platform refuses to show once more in a simpler form, so that no answer is lost."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from bot.chat.outgoing import MessageContent, OutboxRow
from bot.errors import ContentRefused
from bot.texts.text import in_every_language, translatable

_log = structlog.get_logger(__name__)
_NOT_SHOWN = translatable(
    "⚠ A part of my answer belongs here, but this chat does not let me show it."
)
Response = TypeVar("Response")


async def request_in_any_form(
    row: OutboxRow, request: Callable[[MessageContent], Awaitable[Response]]
) -> Response:
    """Make a request with a row's content; if that is refused, in plain text, then as a sentence.

    Raises:
        PlatformError: what the request raises for another reason than its content.
    """
    face = row.content.face
    for content in (row.content, MessageContent(row.text, face, is_plain=True)):
        try:
            return await request(content)
        except ContentRefused as error:
            _log.warning("content_refused", row=row.id, plain=content.is_plain, reason=str(error))
    return await request(
        MessageContent(in_every_language(_NOT_SHOWN))
    )  # its face may be what was refused
