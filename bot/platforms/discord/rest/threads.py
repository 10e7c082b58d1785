"""Threads that long answers go on in, each opened from the first message of its answer.

A thread has the id of the message that it was opened from, and a message has one thread at most. So
opening it twice is the same as once, and what was sent to it can be found without any record.
"""

import time

import structlog

from bot.chat.incoming import Address
from bot.chat.outgoing import MessageThread
from bot.errors import MessageNotFound, Refused, WordsRefused
from bot.platforms.discord.rest.client import RestClient, RestEndpoint
from bot.platforms.discord.rest.refusals import ThreadExists

_OPEN = RestEndpoint("POST", "/channels/{}/messages/{}/threads")
_MAX_TITLE_CHARS = 100
_REFUSED_SECONDS = 30.0
_MAX_REMEMBERED = 5000
_MARK = "/"
_log = structlog.get_logger(__name__)


class AnswerThreads:
    """Opens threads where the bot may; elsewhere answers go on in their channels."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest
        self._opened: set[str] = set()
        self._refused_until: dict[str, float] = {}

    async def open(self, channel: str, thread: MessageThread) -> str | None:
        """Return the channel id of a thread that exists now; None: it may not be opened.

        Raises:
            PlatformError: it is not known whether it exists.
        """
        if thread.message_id in self._opened:
            return thread.message_id
        if self._refused_until.get(channel, 0.0) > time.monotonic():
            return None
        body = {"name": thread.title[:_MAX_TITLE_CHARS]}
        try:
            await self._rest.call(_OPEN, channel, thread.message_id, body=body)
        except ThreadExists:
            pass
        except (MessageNotFound, WordsRefused):
            return None
        except Refused as error:  # no right to open threads, or a channel that has none
            self.refuse(channel, str(error))
            return None
        if len(self._opened) >= _MAX_REMEMBERED:
            self._opened.clear()
        self._opened.add(thread.message_id)
        return thread.message_id

    def refuse(self, channel: str, reason: str) -> None:
        """Open and use no threads of a channel for a while."""
        _log.info("no_thread", channel=channel, reason=reason)
        if len(self._refused_until) >= _MAX_REMEMBERED:
            self._refused_until.clear()
        self._refused_until[channel] = time.monotonic() + _REFUSED_SECONDS


def id_in_thread(thread: str, message_id: str) -> str:
    """Name a message that stands in a thread of the channel that it was sent for."""
    return f"{thread}{_MARK}{message_id}"


def locate(address: Address, message_id: str) -> tuple[str, str]:
    """Return the channel or thread that a message stands in, and its id there."""
    thread, mark, own_id = message_id.rpartition(_MARK)
    return (thread if mark else address.chat), own_id
