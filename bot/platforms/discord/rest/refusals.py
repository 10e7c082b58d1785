"""What a response of Discord that is no success means, as a `PlatformError`."""

from bot.errors import (
    ContentRefused,
    MessageNotFound,
    OutcomeUnknown,
    PlatformError,
    RateLimited,
    Refused,
    TokenRejected,
    WordsRefused,
)
from bot.platforms.discord.settings import BOT_REJECTED

_DEFAULT_RETRY_SECONDS = 5.0
_UNKNOWN_MESSAGE = 10008
_UNKNOWN_CHANNEL = 10003
_THREAD_EXISTS = 160004
_THREAD_CLOSED = frozenset({50083, 160005})  # archived, locked
_BLOCKED_BY_AUTOMOD = frozenset({200000, 200001})  # a message, a title
_NO_WEBHOOK = frozenset({10015, 50027})  # it is unknown, or its token is


class WebhookNotFound(Refused):
    """The webhook was deleted, or the token of a response to a command has expired."""


class ChannelNotFound(Refused):
    """The channel or thread does not exist."""


class ThreadExists(Refused):
    """A thread was opened from the message before."""


def translate_refusal(
    status: int, code: int, text: str, retry_after: str | None = None
) -> PlatformError:
    """Return what a response means.

    Args:
        status: of HTTP.
        code: Discord's own, 0 where there is none.
        text: Discord's words.
        retry_after: the header of that name.
    """
    answer = f"Discord answered {status} ({code}): {text}"
    if code == _UNKNOWN_MESSAGE:
        return MessageNotFound(answer)
    if code == _UNKNOWN_CHANNEL:
        return ChannelNotFound(answer)
    if code == _THREAD_EXISTS:
        return ThreadExists(answer)
    if code in _NO_WEBHOOK:
        return WebhookNotFound(answer)
    if code in _BLOCKED_BY_AUTOMOD:
        return WordsRefused(answer)
    match status:
        case 400 if code not in _THREAD_CLOSED:
            return ContentRefused(answer)
        case 401:
            return TokenRejected(BOT_REJECTED)
        case 429:
            return RateLimited(_seconds(retry_after), "bot")  # something before Discord
        case _ if status >= 500:
            return OutcomeUnknown(answer)
        case _:
            return Refused(answer)


def _seconds(retry_after: str | None) -> float:
    try:
        return float(retry_after or "")
    except ValueError:  # a date
        return _DEFAULT_RETRY_SECONDS
