"""Reasons not to answer, and who is told: pauses, full queues, chats that refuse."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from bot.chat.command import parse
from bot.chat.incoming import Incoming, Said, address_of
from bot.chat.operation import Pause, Restore
from bot.chat.session import InboxMessage
from bot.commands.admin_notes import AdminNotes, NoteReaders
from bot.errors import BackendError, Fenced, StoreError
from bot.ports import Clock, Signals
from bot.prompting.presets.preset import Preset
from bot.replying.live_reply import LiveReplies
from bot.runtime.tasks import cancel_and_wait
from bot.storage.conversations import Conversations
from bot.storage.operation import Pauses
from bot.telemetry.metrics import LIMITED_MESSAGES
from bot.texts.text import Text, translatable
from bot.turn.limits.rate_limits import RareNotices
from bot.turn.message_groups import MessageGroup
from bot.turn.signals import ArrivalSignals
from bot.value_class import value_class

_SECONDS_BETWEEN_NOTES = 6 * 3600.0
_Model = tuple[str, str]


@dataclass(eq=False)
class FallbackNotes:
    """Remembers who was told of which failing model, until that model answers again.

    Admins get at most one note in six hours, even if the model keeps failing and recovering, or
    several processes notice the outage.
    """

    notices: RareNotices
    admin_notes: AdminNotes | None

    def __post_init__(self) -> None:
        self._told: dict[_Model, set[str]] = {}
        """The names of the notes of each outage."""
        self._unreachable: dict[_Model, set[NoteReaders]] = {}

    def end_outage(self, preset: Preset) -> None:
        """Note that the preset's own model has answered."""
        if self._told:
            self._told.pop(_model(preset), None)
            self._unreachable.pop(_model(preset), None)

    async def tell(self, preset: Preset, failure: BackendError, said: Said) -> Text | None:
        """Tell admins why another model answers; return a note for everybody if none reads it."""
        note = translatable(
            "⚠ For the admins here: another model answers in place of {preset}'s own, which"
            " failed: “{reason}” More: /settings why",
            preset=preset.name,
            reason=failure.notice,
        )
        model, admin_notes = _model(preset), self.admin_notes
        unreachable = self._unreachable.setdefault(model, set())
        readers = await admin_notes.readers(said) if admin_notes is not None else None
        if admin_notes is not None and readers is not None and readers not in unreachable:
            name = ",".join([readers[0] or "", *readers[1]])
            if not await self._is_due(model, f"to:{name}"):
                return None
            if await admin_notes.send(readers, said, note):
                return None
            unreachable.add(readers)
        is_due = await self._is_due(model, f"under:{said.address.conversation}")
        return note if is_due else None

    async def _is_due(self, model: _Model, name: str) -> bool:
        told = self._told.setdefault(model, set())
        if name in told:
            return False
        told.add(name)
        shared_name = f"fallback:{'/'.join(model)}:{name}"
        return await self.notices.is_due(shared_name, _SECONDS_BETWEEN_NOTES)


def _model(preset: Preset) -> _Model:
    return preset.provider, preset.model


REFUSED_SECONDS = 5.0
_MAX_CHATS = 1000
_TOPIC = "refused_chats"
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class RefusedChats:
    """The lanes in which the platform has just refused a message of the bot, and why."""

    clock: Clock
    signals: Signals
    notices: RareNotices
    admin_notes: AdminNotes | None = None

    def __post_init__(self) -> None:
        self._refused: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self.signals.subscribe(_TOPIC, self._note)

    async def covers(self, said: Said) -> bool:
        """Return whether an answer would be refused; then it is logged, and the admins know.

        A person who writes in private has unblocked the bot.
        """
        refused_at, reason = self._refused.get(said.address.lane, (None, ""))
        if (
            said.is_private
            or refused_at is None
            or self.clock.monotonic() - refused_at >= REFUSED_SECONDS
        ):
            return False
        _log.warning("not_answered_in_refused_chat", lane=said.address.lane, reason=reason)
        await self.tell(said)
        return True

    async def tell(self, said: Said) -> None:
        """Tell who reads notes about a chat that it refuses answers, once in six hours."""
        _, reason = self._refused.get(said.address.lane, (0.0, ""))
        readers = await self.admin_notes.readers(said) if self.admin_notes is not None else None
        if self.admin_notes is None or readers is None or not reason:
            return
        if await self.notices.is_due(f"refused:{said.address.lane}", _SECONDS_BETWEEN_NOTES):
            await self.admin_notes.send(readers, said, self.explain(said))

    def explain(self, said: Said) -> Text:
        """Say why a message is not answered."""
        _, reason = self._refused.get(said.address.lane, (0.0, ""))
        return translatable(
            "⚠ This chat refuses my answers: “{reason}” I try again when somebody asks, at most"
            " every {seconds} s.",
            reason=reason or "…",
            seconds=round(REFUSED_SECONDS),
        )

    def _note(self, keys: Sequence[str]) -> None:
        for key in keys:
            lane, _, reason = key.partition(" ")
            self._refused[lane] = self.clock.monotonic(), reason
            self._refused.move_to_end(lane)
            if len(self._refused) > _MAX_CHATS:
                self._refused.popitem(last=False)


def publish_refusal(signals: Signals, lane: str, reason: str) -> None:
    """Tell all workers that the platform has refused a message in a lane."""
    signals.publish(_TOPIC, [f"{lane} {reason}"])


PAUSES_TOPIC = "pauses"
_LOOK_SECONDS = 2.0


@dataclass(eq=False)
class AnsweringPauses:
    """What this process knows of the pauses."""

    pauses: Pauses
    signals: Signals

    def __post_init__(self) -> None:
        self._current: Sequence[Pause] = ()
        self._changed = asyncio.Event()
        self.signals.subscribe(PAUSES_TOPIC, lambda _keys: self._changed.set())

    def covers(self, conversation: str) -> bool:
        """Return whether questions in a conversation, by its key, are not answered."""
        return any(one.covers(conversation) for one in self._current)

    async def refresh(self) -> None:
        """Read the rows; raises `StoreError`."""
        before, self._current = self._current, await self.pauses.current()
        scopes = [one.scope for one in self._current]
        if set(self._current) - set(before):
            _log.info("answering_paused", scopes=scopes)
        if set(before) - set(self._current):
            _log.info("answering_resumed", paused=scopes)

    async def run(self) -> None:
        """Poll the rows until cancelled."""
        while True:
            self._changed.clear()
            try:
                await self.refresh()
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()


@dataclass(eq=False)
class RestoredMessages:
    """Knows which messages are from before the restore."""

    read_restore: Callable[[], Awaitable[Restore | None]]

    def __post_init__(self) -> None:
        self._newest: Restore | None = None

    async def load(self) -> None:
        """Read whether the database was restored; raises `StoreError`."""
        newest = await self.read_restore()
        if newest is not None:  # histories of one channel share its messages
            forgotten = {(address_of(key).channel, name) for key, name in newest.forgotten}
            newest = replace(newest, forgotten=frozenset(forgotten))
        self._newest = newest

    def is_context(self, message: InboxMessage) -> bool:
        """Return whether a message has been answered before, as far as anybody knows."""
        newest = self._newest
        return newest is not None and message.incoming.at.timestamp() <= newest.answered_until

    def is_void(self, said: Said) -> bool:
        """Return whether a message was handled or forgotten before, so that it is ignored."""
        newest = self._newest
        if newest is None or (at := said.at.timestamp()) > newest.answered_until:
            return False
        if said.wake is not None and said.text.startswith("/"):
            return True  # its effect is in the backup or in the tombstones, or is nothing to repeat
        channel, key = said.address.channel, said.address.conversation
        until = max(newest.forgotten_until.get(one, 0.0) for one in (key, channel))
        return at <= until or self._is_forgotten(channel, said.message_id)

    def keep(self, event: Incoming) -> Incoming | None:
        """Return the event to store for one that a platform delivers; None: store nothing."""
        if self._newest is None or not isinstance(event, Said):
            return event
        if self.is_void(event):
            return None
        quote = event.quote
        if quote is not None and self._is_forgotten(event.address.channel, quote.message_id):
            quote = replace(quote, text="", attachments=())
        return replace(event, quote=quote)

    def _is_forgotten(self, channel: str, message_id: str | None) -> bool:
        newest = self._newest
        return newest is not None and (channel, message_id or "") in newest.forgotten


_CHECK_SECONDS = 1.0
"""The delay before arrivals are counted, so that a burst is counted once."""
BUSY = translatable(
    "⏳ I am busy: too many messages wait here. I have read the newest ones, but will not answer"
    " them. Please write again later."
)
_COUNTED_BEYOND = 100
"""How many messages beyond the limit one poll finds; the next finds the others."""


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
        """Refuse the newest questions over the limit while the block runs."""
        looks: list[asyncio.Task[None]] = []
        most = max(self.most, gathers_at_most)
        has_arrived, conversation = group.message.is_followed, group.claim.conversation

        async def look() -> None:
            nonlocal has_arrived
            while has_arrived:
                await self.clock.sleep(_CHECK_SECONDS)
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
