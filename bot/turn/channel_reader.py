"""Read once what was said in a channel before anything of it was stored."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import structlog

from bot.chat.attachments import described_text
from bot.chat.incoming import Said, WakeReason
from bot.chat.session import Turn
from bot.errors import PlatformError
from bot.intake.intake import storable_said
from bot.routing.active_presets import ActiveCharacters

ReadBefore: TypeAlias = Callable[[Said, int], Awaitable[Sequence[Said]]]
"""Lists at most so many messages before one, oldest first; raises `PlatformError`."""

ReadStart: TypeAlias = Callable[[Said], Awaitable[Said | None]]
"""Returns what a thread was opened about; raises `PlatformError`."""

KeptSince: TypeAlias = Callable[[], float]
"""Returns from which moment on this installation keeps what is said, in Unix seconds."""

_log = structlog.get_logger(__name__)
_MAX_MESSAGES = 50
_READ_SECONDS = 3.0  # the answer waits for it


def _keep_all() -> float:
    return -math.inf


class ChannelReader:
    """Makes observed turns of what people said before the first message that wakes the bot.

    What is older than the installation keeps histories is left where it is: it would come back.
    """

    def __init__(
        self,
        read_before: ReadBefore,
        read_start: ReadStart | None = None,
        kept_since: KeptSince = _keep_all,
    ) -> None:
        self._read_before = read_before
        self._read_start = read_start
        self._kept_since = kept_since

    async def read(
        self, said: Said, active: ActiveCharacters, known: Sequence[Turn] = ()
    ) -> tuple[Turn, ...]:
        """Return what was said before and is not known, oldest first.

        Nothing is returned where it cannot or must not be read.

        A channel of which nothing could be read is answered all the same.
        """
        if said.wake is WakeReason.DM or not active.reads_all:
            return ()
        if said.address.history:  # what was said in the channel belongs to others
            return ()
        try:
            async with asyncio.timeout(_READ_SECONDS):
                found = await self._read_before(said, _MAX_MESSAGES)
        except (PlatformError, TimeoutError) as error:
            conversation, reason = said.address.conversation, str(error) or "no answer"
            _log.info("channel_not_read", conversation=conversation, reason=reason)
            return ()
        ids = {turn.message_id for turn in known}
        return self._observed_turns([one for one in found if one.message_id not in ids])

    async def read_start(
        self, said: Said, active: ActiveCharacters, known: Sequence[Turn]
    ) -> tuple[Turn, ...]:
        """Return what a thread was opened about, before the first answer in it.

        That message is in another channel, or older than what was read; nothing where it is known.
        """
        is_new_thread = said.in_thread and not any(turn.role == "assistant" for turn in known)
        if self._read_start is None or not (is_new_thread and active.reads_all):
            return ()
        if said.address.history or said.opened_from is not None:
            return ()
        start = said.address.chat  # Discord gives a thread the id of this message
        if start in {said.message_id, *(turn.message_id for turn in known)}:
            return ()
        try:
            async with asyncio.timeout(_READ_SECONDS):
                found = await self._read_start(said)
        except (PlatformError, TimeoutError) as error:
            _log.info("thread_start_not_read", reason=str(error) or "no answer")
            return ()
        return self._observed_turns([found] if found is not None else [])

    def _observed_turns(self, found: Sequence[Said]) -> tuple[Turn, ...]:
        since = self._kept_since()
        kept = (one for one in found if one.at.timestamp() >= since and described_text(one))
        return tuple(_observed_turn(storable_said(one)) for one in kept)


def _observed_turn(said: Said) -> Turn:
    return Turn(
        "user",
        described_text(said),
        said.author,
        said.at,
        message_id=said.message_id,
        observed=True,
    )
