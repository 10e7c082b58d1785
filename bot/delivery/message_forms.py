"""Send what a platform refuses to show once more in a simpler form, so that no answer is lost."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from bot.chat.outgoing import MessageContent, OutboxRow
from bot.errors import ContentRefused, WordsRefused
from bot.texts.text import in_every_language, translatable

_log = structlog.get_logger(__name__)
_NOT_SHOWN = translatable(
    "⚠ A part of my answer belongs here, but this chat does not let me show it."
)
_WORDS_BLOCKED = translatable(
    "⚠ A moderation rule of this server (AutoMod) blocked a part of my answer. Please ask in other"
    " words, or ask its admins about the rule."
)
Response = TypeVar("Response")


async def request_in_any_form(
    row: OutboxRow, request: Callable[[MessageContent], Awaitable[Response]]
) -> Response:
    """Make a request with a row's content; if that is refused, in plain text, then as a sentence.

    Where its words are what is refused, it is that sentence at once.

    Raises:
        PlatformError: what the request raises for another reason than its content.
    """
    face, notice = row.content.face, _NOT_SHOWN
    for content in (row.content, MessageContent(row.text, face, is_plain=True)):
        try:
            return await request(content)
        except ContentRefused as error:
            _log.warning("content_refused", row=row.id, plain=content.is_plain, reason=str(error))
            if isinstance(error, WordsRefused):
                notice = _WORDS_BLOCKED
                break
    # Its face may be what was refused.
    return await request(MessageContent(in_every_language(notice)))
