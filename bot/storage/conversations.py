"""Histories, and who may process them: each step of a message is one unit of work."""

import contextlib
from collections.abc import Callable, Collection, Sequence

import structlog
from sqlalchemy import BindParameter, Connection, bindparam, delete, func, insert, select, update

from bot.chat.incoming import address_of
from bot.chat.outgoing import OutgoingPart
from bot.chat.session import (
    Attempt,
    Claim,
    ClaimedMessage,
    Exchange,
    FinishedTurn,
    HistoryChange,
    InboxMessage,
    OpenedPart,
    Session,
    StoredTurn,
    TurnResult,
)
from bot.errors import Fenced, StoreError, Undecodable
from bot.ports import Clock
from bot.storage import claims as units
from bot.storage import histories as history
from bot.storage import lanes
from bot.storage import receipts as receipt_rows
from bot.storage.database import Database
from bot.storage.forgetting import Tombstone
from bot.storage.rows import decode, decode_all, decode_event
from bot.storage.statements import Statement, Unit, served_text
from bot.storage.tables import (
    choice,
    conversation,
    forgotten,
    has_content,
    inbox,
    is_dead,
    is_ready,
    is_set_aside,
    outbox,
    receipt,
    sent_message,
    summary,
    turn,
)
from bot.storage.turn_rows import (
    TURN_COLUMNS,
    from_turn_row,
    to_change_rows,
    to_opening_row,
    to_part_changes,
    to_turn,
    to_turn_row,
)
from bot.storage.windows import SessionWindows, SharedWindows, window_of

_log = structlog.get_logger(__name__)
_OF: BindParameter[str] = bindparam("of")
_CURRENT = select(conversation.c.session).where(conversation.c.key == _OF)
_SESSION = Statement(_CURRENT)
_NEWEST = Statement(
    select(*TURN_COLUMNS, turn.c.session)
    .where(turn.c.conversation == _OF, turn.c.session == _CURRENT.scalar_subquery())
    .where(turn.c.active)
    .order_by(turn.c.id.desc())
    .limit(bindparam("most"))
)
_HELD = (
    select(conversation.c.epoch)
    .where(conversation.c.key == _OF, conversation.c.owner == bindparam("claimed_by"))
    .with_for_update()
)
_FORGET = delete(turn).where(turn.c.conversation == _OF)
_NOTE_FORGOTTEN = insert(forgotten).values(conversation=_OF, at=bindparam("moment"))
_FORGET_SENT = delete(sent_message).where(sent_message.c.conversation == _OF)
_FORGET_RECEIPTS = (
    update(receipt).where(receipt.c.conversation == _OF, has_content).values(content=b"")
)
_FORGET_SUMMARY = delete(summary).where(summary.c.conversation == _OF)
# What was sent has no text any more; what never could be sent would keep it for days.
_FORGET_UNSENT = (
    update(outbox)
    .where(outbox.c.lane == bindparam("of_lane"), is_dead)
    .where(func.coalesce(outbox.c.thread, "") == bindparam("of_thread"))
    .values(text="", file_text=None, error=None)
)
_FORGET_SET_ASIDE = (
    update(inbox)
    .where(inbox.c.conversation == _OF, is_set_aside)
    .values(state="done", payload=None)
)


def _record_nothing(_: Tombstone) -> None:
    return


class SqlConversations:
    """Conversations in SQL; the newest turns of those that were claimed here stay in memory.

    Args:
        sender: takes rows for sending in the same unit that queues them; None: others send.
        shared: the windows of other processes; None: each reads the history itself.
        record_tombstone: keeps outside of the database what is forgotten, before it is.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        sender: lanes.SenderIdentity | None = None,
        shared: SharedWindows | None = None,
        record_tombstone: Callable[[Tombstone], None] = _record_nothing,
    ) -> None:
        self._database = database
        self._clock = clock
        self._sender = sender
        self.windows = SessionWindows()
        """The histories in memory."""
        self._shared = shared
        self._record_tombstone = record_tombstone

    async def ready(self, limit: int, sources: Collection[str]) -> Sequence[str]:
        """Return conversations with something unanswered that nobody holds, oldest first."""
        served, now = served_text(sources), self._clock.now()
        return await self._database.run(lambda: units.ready(served, limit, now))

    async def begin(
        self, keys: Sequence[str], owner: str, lease_seconds: float
    ) -> Sequence[ClaimedMessage]:
        """Claim those of these conversations that are ready, each with its oldest message.

        A claim fences all earlier ones. An attempt at the message that did not end counts as a
        death of its process: by what was recorded of it, as one of the message's own, as one of
        many messages', or as one that clears it.
        """
        now, dialect = self._clock.now(), self._database.dialect
        found = await self._database.run(
            lambda: units.begin(keys, owner, lease_seconds, now, dialect)
        )
        begun = []
        for claim, stored in found:
            message = await self._first_readable(claim, stored)
            if message is not None:
                begun.append(ClaimedMessage(claim, message))
                self.windows.begin(claim)
        return begun

    async def _first_readable(
        self, claim: Claim, stored: units.NextMessage | None
    ) -> InboxMessage | None:
        """Return the message that was begun, or the next; what cannot be read is set aside."""
        while stored is not None:
            try:
                return _to_message(stored)
            except Undecodable as error:
                number = stored.id
                _log.error(
                    "message_set_aside",
                    conversation=claim.conversation,
                    dead_letter=f"in-{number}",
                    reason=str(error),
                )
            try:
                stored = await self._database.run(lambda: units.set_aside(claim, number))  # noqa: B023 # runs at once
            except (Fenced, StoreError) as error:  # whoever claims it next finds it again
                _log.warning("claim_failed", queue="conversations", reason=str(error))
                return None
        return None

    async def renew(self, claims: Collection[Claim], lease_seconds: float) -> Sequence[Claim]:
        """Hold them for so long from now on, all of one owner; return those that were lost."""
        now = self._clock.now()
        return await self._database.run(lambda: units.renew(claims, lease_seconds, now))

    async def release(self, claim: Claim) -> None:
        """Give it back as it is; what is unanswered can be claimed at once."""
        window = self.windows.take(claim)
        await self._database.run(lambda: units.release(claim))
        if window is not None:
            self.windows.put(claim, window)

    async def release_all(self, owner: str) -> None:
        """Release all claims left by a previous run of this owner."""
        held = update(conversation).where(
            is_ready, conversation.c.owner == owner, conversation.c.lease_until > 0
        )
        await self._database.write(lambda c: c.execute(held.values(lease_until=0.0)).rowcount)

    async def undo_attempt(self, claim: Claim, message: InboxMessage) -> None:
        """Take back what `begin` or `finish` recorded: the attempt was ended on purpose."""
        await self.record_attempt(claim, message, Attempt.NONE)

    async def record_attempt(self, claim: Claim, message: InboxMessage, attempt: Attempt) -> None:
        """Store what is being done with a message, for the case that the process dies of it."""
        ids = _ids(message)
        await self._database.run(lambda: units.record_attempt(claim, ids, attempt))

    async def waiting(self, claim: Claim, limit: int) -> Sequence[InboxMessage]:
        """Return the unanswered messages of a conversation, oldest first, the current one too."""
        found = await self._database.run(lambda: units.waiting(claim, limit))
        return decode_all("inbox", found, _to_message)

    async def following(
        self, claim: Claim, message: InboxMessage, limit: int
    ) -> Sequence[InboxMessage]:
        """Return what came after a message and those gathered with it, in order.

        It ends before the first event that is no message, and before one that was in flight when a
        process died: those are processed alone.
        """
        after = message.newest.id
        found = await self._database.run(lambda: units.following(claim, after, limit))
        messages: list[InboxMessage] = []
        with contextlib.suppress(Undecodable):  # it ends the group, and is set aside in its turn
            messages.extend(_to_message(one) for one in found)
        return messages

    async def load_session(self, claim: Claim, max_turns: int) -> Session:
        """Return the newest turns of the current session.

        The epoch is not checked: it may be what a claim that is fenced by now has known.
        """
        window = self.windows.get(claim)
        if window is None and self._shared is not None:
            window = await self._shared.find(claim)
            if window is not None:
                self.windows.put(claim, window)
        known = window.newest(max_turns) if window else None
        if known is not None:
            return known
        session = await self._read_session(claim.conversation, max_turns)
        self.windows.put(claim, window_of(session, max_turns))
        return session

    async def _read_session(self, conversation_key: str, max_turns: int) -> Session:
        asked = {"of": conversation_key, "most": max_turns}

        def unit() -> Unit[Session]:
            rows = yield _NEWEST.query_alone(asked)
            if rows:
                return Session(rows[0][-1], tuple(decode_all("turn", reversed(rows), to_turn)))
            found = yield _SESSION.query_alone({"of": conversation_key})
            return Session(found[0][0] if found else 1, ())

        return await self._database.run(unit)

    async def find_turns(self, claim: Claim, message_ids: Collection[str]) -> Sequence[StoredTurn]:
        """Return the turns of these messages of the platform, oldest first, in all sessions.

        A person's message is one turn; an answer is found by any message that it was sent as. The
        versions that are not active any more are found as well.
        """
        return await self._database.run(lambda: history.find(claim.conversation, message_ids))

    async def load_exchange(self, claim: Claim, message_id: str, max_turns: int) -> Exchange | None:
        """Return a person's message, its answers and so many turns before it; None: unknown."""
        return await self._database.run(
            lambda: history.load_exchange(claim.conversation, message_id, max_turns)
        )

    async def load_answered(
        self, conversation_key: str, part: str, max_turns: int
    ) -> Exchange | None:
        """Return the exchange whose answer was sent as this part.

        An exchange without answers: the part says that the answer failed, and the question is not
        in the history; before it is what was gathered with it. None: unknown, or answered since.
        """
        return await self._database.run(
            lambda: history.load_answered(conversation_key, part, max_turns)
        )

    async def load_failed(self, claim: Claim) -> Sequence[StoredTurn]:
        """Return the questions whose answers failed since the newest answer, newest first.

        What was gathered with one has the same parts. Commands whose menus were sent are among
        them.
        """
        return await self._database.run(lambda: history.load_failed(claim.conversation))

    async def find_said_by(self, claim: Claim, person_id: str) -> Sequence[int]:
        """Return the ids of what a person said in a conversation, and of the answers to that.

        Where nobody else has said anything, these are all turns.
        """
        return await self._database.run(lambda: history.find_said_by(claim.conversation, person_id))

    async def forget(self, claim: Claim) -> int:
        """Delete the history of a conversation, all its sessions, for good; return its turns.

        What people said of themselves there goes with it.
        """
        self.windows.take(claim)
        told_here = delete(choice).where(choice.c.conversation == claim.conversation)
        of, now = {"of": claim.conversation}, self._clock.now()
        address = address_of(claim.conversation)
        self._record_tombstone(Tombstone(now, claim.conversation))

        def unit(connection: Connection) -> int:
            held = connection.execute(_HELD, {**of, "claimed_by": claim.owner})
            if held.scalar() != claim.epoch:
                raise units.outdated(claim)
            connection.execute(_FORGET_SENT, of)
            connection.execute(_FORGET_RECEIPTS, of)
            connection.execute(_FORGET_SUMMARY, of)
            channel = {"of_lane": address.lane, "of_thread": address.thread or ""}
            connection.execute(_FORGET_UNSENT, channel)
            connection.execute(_FORGET_SET_ASIDE, of)
            connection.execute(told_here)
            connection.execute(_NOTE_FORGOTTEN, {**of, "moment": now})
            return connection.execute(_FORGET, of).rowcount

        turns = await self._database.write(unit)
        if self._shared is not None:
            await self._shared.drop(claim)
        await self._database.truncate_log()
        return turns

    async def open(self, claim: Claim, message: InboxMessage, opening: OutgoingPart) -> OpenedPart:
        """Queue the first message of an answer that is still being written.

        The same part of the same turn is queued once, whatever process asks and how often.
        """
        row, at = to_opening_row(message, opening), self._moment()
        number, taken = await self._database.run(
            lambda: units.open_part(claim, row, self._sender, at, self._database.dialect)
        )
        return OpenedPart(number, taken)

    async def opened_parts(self, message: InboxMessage) -> Sequence[int]:
        """Return the numbers of a message's parts that were opened, in earlier attempts too."""
        return await self._database.run(lambda: history.opened_parts(message.turn))

    async def finish(
        self, claim: Claim, message: InboxMessage, result: TurnResult, *, go_on: bool = True
    ) -> FinishedTurn:
        """Mark a message and those gathered with it as answered; store the turns and the answer.

        The only way in which an answer reaches anybody; it is named after the message, and replies
        to the newest of those gathered with it. A part that was opened early is edited to its final
        text; one that was opened but is not in the result is deleted. Then the next message is
        begun, or the conversation released if there is none or `go_on` is false.
        """
        at = self._moment()
        rows = units.FinishedRows(
            messages=[*_ids(message), *(one.id for one in message.refused)],
            turns=[
                *(to_turn_row(one) for one in result.turns),
                *(to_turn_row(one, is_active=False) for one in result.unanswered),
            ],
            receipts=[receipt_rows.to_row(claim, message, one, at.now) for one in result.receipts],
            answer=to_part_changes(message, result),
            new_session=result.new_session,
            go_on=go_on,
            removes=result.removes,
            supersedes=result.supersedes,
            change=to_change_rows(result.change) if result.change is not None else None,
            in_place_of=result.in_place_of,
        )
        if result.change is not None and result.change.deleted:
            await self._note_deleted(claim, result.change.deleted, at.now)
        # Whatever happens to the unit, a window is kept only of what is known to be committed.
        window = self.windows.take(claim)
        following, taken = await self._database.run(
            lambda: units.finish(claim, rows, self._sender, at, self._database.dialect)
        )
        if result.change is not None:
            await self._forget_changed(claim, result.change)
        if result.is_withdrawn:
            await self._database.truncate_log()
        if window is not None and not result.new_session and result.change is None:
            gone = result.removes or result.supersedes
            if gone is not None:
                window = window.without(gone)
            window = window.extended([from_turn_row(row) for row in rows.turns if row["active"]])
            self.windows.put(claim, window)
            if self._shared is not None and following is None:
                self._shared.keep(claim, window)
        return FinishedTurn(await self._first_readable(claim, following), taken)

    async def _note_deleted(self, claim: Claim, ids: Collection[int], now: float) -> None:
        """Keep outside of the database which turns are about to be deleted."""
        named = select(turn.c.message_id).where(turn.c.id.in_(ids), turn.c.message_id.is_not(None))
        messages = await self._database.read(lambda c: c.execute(named).scalars().all())
        self._record_tombstone(
            Tombstone(now, claim.conversation, tuple(sorted(ids)), tuple(sorted(set(messages))))
        )

    async def _forget_changed(self, claim: Claim, change: HistoryChange) -> None:
        """Drop what processes and files keep of turns that were changed."""
        if self._shared is not None:
            await self._shared.drop(claim)
        if change.deleted:
            await self._database.truncate_log()

    def _moment(self) -> lanes.Moment:
        return lanes.Moment(self._clock.now(), self._clock.monotonic())


def _to_message(stored: units.NextMessage) -> InboxMessage:
    incoming = decode_event(stored.kind, stored.payload)
    return InboxMessage(
        stored.id,
        incoming,
        stored.crashes,
        decode(int, stored.own_crashes),
        decode(float, stored.received_at),
        bool(stored.is_followed),
    )


def _ids(message: InboxMessage) -> list[int]:
    return [message.id, *(one.id for one in message.gathered)]
