"""What a response of Discord that is no success means, as a `PlatformError`."""

from collections.abc import Mapping

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
_THREAD_CLOSED = frozenset({50083, 160005})  # archived, locked


class WebhookNotFound(Refused):
    """The webhook was deleted, or the token of a response to a command has expired."""


class ChannelNotFound(Refused):
    """The channel or thread does not exist."""


class ThreadExists(Refused):
    """A thread was opened from the message before."""


class AlreadyAcknowledged(Refused):
    """The interaction was responded to before."""


_BY_CODE: Mapping[int, type[Refused]] = {
    10003: ChannelNotFound,
    10008: MessageNotFound,
    10015: WebhookNotFound,
    40060: AlreadyAcknowledged,
    50027: WebhookNotFound,  # its token is unknown
    160004: ThreadExists,
    200000: WordsRefused,  # by AutoMod, in a message
    200001: WordsRefused,  # in a title
}


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
    if code in _BY_CODE:
        return _BY_CODE[code](answer)
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
