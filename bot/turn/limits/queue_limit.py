"""Refuse questions where too many wait in a conversation, and say so behind the next answer.

What is refused is finished together with the answer in progress: a process that dies before that
has refused nothing, and the questions are answered in their order.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import structlog

from bot.chat.command import parse
from bot.chat.incoming import Said
from bot.errors import Fenced, StoreError
from bot.ports import Clock
from bot.replying.live_replies import LiveReplies
from bot.runtime.tasks import cancel_and_wait
from bot.storage.conversations import Conversations
from bot.telemetry.metrics import LIMITED_MESSAGES
from bot.texts.text import translatable
from bot.turn.arrivals import ArrivalSignals
from bot.turn.message_groups import MessageGroup
from bot.value_class import value_class

_log = structlog.get_logger(__name__)
_LOOK_SECONDS = 1.0
"""After which what has arrived is counted: a burst is counted once."""
BUSY = translatable(
    "⏳ I am busy: too many messages wait here. I have read the newest ones, but will not answer"
    " them. Please write again later."
)
_COUNTED_BEYOND = 100
"""How many messages beyond the limit one look finds; the next look finds the others."""


@value_class
class QueueLimit:
    """Limits how many questions wait in each conversation while one is answered."""

    conversations: Conversations
    arrivals: ArrivalSignals
    replies: LiveReplies
    clock: Clock
    most: int
    """How many may wait."""

    @contextlib.asynccontextmanager
    async def enforced(self, group: MessageGroup, gathers_at_most: int) -> AsyncIterator[None]:
        """Refuse, while the block runs, the newest questions over the limit.

        Args:
            group: what is being answered; gets what is refused.
            gathers_at_most: how many messages its answer may cover: those are never refused.
        """
        looks: list[asyncio.Task[None]] = []
        most = max(self.most, gathers_at_most)
        has_arrived, conversation = group.message.is_followed, group.claim.conversation

        async def look() -> None:
            nonlocal has_arrived
            while has_arrived:
                await self.clock.sleep(_LOOK_SECONDS)
                has_arrived = False
                try:
                    await self._refuse_newest(group, most)
                except (Fenced, StoreError) as error:  # the answer's own transaction tells it
                    _log.warning("queue_not_limited", reason=str(error))

        def on_arrival() -> None:
            nonlocal has_arrived
            has_arrived = True
            if not looks or looks[-1].done():
                looks[:] = [asyncio.create_task(look(), name=f"limit: {conversation}")]

        unsubscribe = self.arrivals.subscribe(conversation, on_arrival)
        try:
            if has_arrived:
                on_arrival()
            yield
        finally:
            unsubscribe()
            await cancel_and_wait(looks)

    async def _refuse_newest(self, group: MessageGroup, most: int) -> None:
        refused = {one.id for one in group.message.refused}
        limit = most + len(refused) + _COUNTED_BEYOND
        following = await self.conversations.following(group.claim, group.message, limit)
        waiting = [
            (one, one.incoming)
            for one in following
            if one.id not in refused
            and isinstance(one.incoming, Said)
            and _is_question(one.incoming)
        ]
        for message, said in waiting[most:]:
            LIMITED_MESSAGES.labels("queue_full").inc()
            if said.interaction is not None:
                # At once: this response delays no answer.
                await self.replies.open_notice(group.claim, message, BUSY)
            group.message = replace(group.message, refused=(*group.message.refused, message))


def _is_question(said: Said) -> bool:
    """Return whether somebody waits for an answer that a model makes."""
    is_meant = said.wake is not None and not (said.author_is_bot or said.is_late)
    return is_meant and parse(said.text) is None
