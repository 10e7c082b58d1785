"""Refuse questions where too many wait in a conversation: say so at once instead of queueing them.

What is refused is finished together with the answer in progress: a process that dies before that
has refused nothing, and the questions are answered in their order, in place of the notice.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import structlog

from bot.chat.incoming import Said
from bot.chat.session import Claim, InboxMessage
from bot.errors import Fenced, StoreError
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Clock, Conversations
from bot.replying.live_replies import LiveReplies
from bot.routing.command_specs import parse
from bot.runtime.tasks import cancel_and_wait
from bot.telemetry.metrics import LIMITED_MESSAGES
from bot.texts.text import language_of, translatable, translate
from bot.turn.arrivals import ArrivalSignals
from bot.turn.joining import MessageGroup
from bot.turn.limits.rare_notices import RareNotices

_log = structlog.get_logger(__name__)
_LOOK_SECONDS = 1.0
"""After which what has arrived is counted: a burst is counted once."""
_COUNTED_BEYOND = 100
"""How many messages beyond the limit one look finds; the next look finds the others."""


@frozen_dataclass
class QueueLimit:
    """Limits how many questions wait in each conversation while one is answered."""

    conversations: Conversations
    arrivals: ArrivalSignals
    replies: LiveReplies
    notices: RareNotices
    clock: Clock
    most: int
    """How many may wait."""

    @contextlib.asynccontextmanager
    async def enforced(
        self, claim: Claim, group: MessageGroup, gathers_at_most: int
    ) -> AsyncIterator[None]:
        """Refuse, while the block runs, the newest questions over the limit.

        Args:
            claim: the conversation.
            group: what is being answered; gets what is refused.
            gathers_at_most: how many messages its answer may cover: those are never refused.
        """
        looks: list[asyncio.Task[None]] = []
        most = max(self.most, gathers_at_most)
        has_arrived = group.message.is_followed

        async def look() -> None:
            nonlocal has_arrived
            while has_arrived:
                await self.clock.sleep(_LOOK_SECONDS)
                has_arrived = False
                try:
                    await self._refuse_newest(claim, group, most)
                except (Fenced, StoreError) as error:  # the answer's own transaction tells it
                    _log.warning("queue_not_limited", reason=str(error))

        def on_arrival() -> None:
            nonlocal has_arrived
            has_arrived = True
            if not looks or looks[-1].done():
                looks[:] = [asyncio.create_task(look(), name=f"limit: {claim.conversation}")]

        unsubscribe = self.arrivals.subscribe(claim.conversation, on_arrival)
        try:
            if has_arrived:
                on_arrival()
            yield
        finally:
            unsubscribe()
            await cancel_and_wait(looks)

    async def _refuse_newest(self, claim: Claim, group: MessageGroup, most: int) -> None:
        refused = {one.id for one in group.message.refused}
        limit = most + len(refused) + _COUNTED_BEYOND
        following = await self.conversations.following(claim, group.message, limit)
        waiting = [
            (one, one.incoming)
            for one in following
            if one.id not in refused
            and isinstance(one.incoming, Said)
            and _is_question(one.incoming)
        ]
        for message, said in waiting[most:]:
            await self._refuse(claim, message, said, most + 1)
            group.message = replace(group.message, refused=(*group.message.refused, message))

    async def _refuse(self, claim: Claim, message: InboxMessage, said: Said, position: int) -> None:
        """Tell the author, if nobody in the channel was told lately; a native command always."""
        LIMITED_MESSAGES.labels("queue_full").inc()
        if said.interaction is None and not await self.notices.is_due_in(said.address.channel):
            return
        text = translatable(
            "⏳ I am busy: your message would be number {position} of those that wait here. I have"
            " read it, but will not answer it. Please write again later.",
            position=position,
        )
        shown = translate(text, language_of(said.locale))
        for part in self.replies.final_parts(said.address, shown):
            opened = await self.conversations.open(claim, message, part)
            self.replies.deliver(said.address, opened.row)


def _is_question(said: Said) -> bool:
    """Return whether somebody waits for an answer that a model makes."""
    is_meant = said.wake is not None and not (said.author_is_bot or said.is_late)
    return is_meant and parse(said.text) is None
