"""Claim conversations, read their messages and histories, and store the results of messages."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import structlog

from bot.chat.incoming import parse_address
from bot.chat.outgoing import OutgoingPart
from bot.chat.session import (
    AttemptState,
    Claim,
    ClaimedMessage,
    InboxMessage,
    OpenPart,
    RemainingWork,
    Session,
    Turn,
    TurnResult,
)
from bot.errors import Fenced, StoreError, Undecodable
from bot.ports import Clock
from bot.storage import finishing
from bot.storage import receipts as receipt_rows
from bot.storage.data_kinds import CONVERSATION_DELETIONS
from bot.storage.database import Database, read_clock, transaction
from bot.storage.finishing import NextMessage
from bot.storage.forgetting import Tombstone
from bot.storage.functions import SQL_FUNCTIONS
from bot.storage.histories import StoredTurns
from bot.storage.outbox import SenderIdentity
from bot.storage.rows import TURN_COLUMNS, decode, decode_all, decode_event, to_turn, to_turn_row
from bot.storage.session_windows import SessionWindows, SharedSessionWindows, create_window
from bot.storage.statements import SQL, Unit, encode_sources, to_dict

_log = structlog.get_logger(__name__)


class Conversations(StoredTurns):
    """Conversations in SQL, with a cache of the recent turns of claimed conversations.

    With a `sender`, the unit of work that queues outbox rows also reserves them for sending.
    `record_tombstone` records deletions in a file outside the database.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        sender: SenderIdentity | None = None,
        record_tombstone: Callable[[Tombstone], None] = lambda _: None,
        shared_windows: SharedSessionWindows | None = None,
    ) -> None:
        super().__init__(database, clock)
        self._sender = sender
        self.session_windows = SessionWindows()
        """The cached histories."""
        self._record_tombstone = record_tombstone
        self._shared_windows = shared_windows

    @transaction
    def list_ready_conversations(self, limit: int, sources: Collection[str]) -> Unit[Sequence[str]]:
        """Return unclaimed conversations with unanswered messages, longest waiting first."""
        values = {"served": encode_sources(sources), "most": limit, "now": self._clock.now()}
        rows = yield SQL["ready_conversations"].query_alone(values)
        return [row[0] for row in rows]

    async def claim_next(
        self, keys: Sequence[str], owner: str, lease_seconds: float
    ) -> Sequence[ClaimedMessage]:
        """Claim the ready conversations among `keys`; return each with its next message.

        A claim invalidates all earlier claims of the conversation. If an earlier attempt at the
        message was not finished, its process has crashed, and the recorded `AttemptState` tells
        whether the message may be the cause.
        """
        claimed_rows = await self._claim_rows(keys, owner, lease_seconds)
        claimed_messages = []
        for claim, next_row in claimed_rows:
            message = await self._find_first_message(claim, next_row)
            if message is not None:
                claimed_messages.append(ClaimedMessage(claim, message))
                self.session_windows.move_window_to(claim)
        return claimed_messages

    @transaction
    def _claim_rows(
        self, keys: Sequence[str], owner: str, lease_seconds: float
    ) -> Unit[list[tuple[Claim, NextMessage]]]:
        """Claim conversations like `claim_next`, but return undecoded messages."""
        values = {"claimed_by": owner, "seconds": lease_seconds}
        ordered_keys = sorted(keys)  # in a fixed order to avoid deadlocks
        if not self._database.is_sqlite:
            rows = yield SQL_FUNCTIONS["begin"].call.query_alone({"keys": ordered_keys, **values})
            return [(Claim(row[0], row[1], owner), NextMessage(*row[2:])) for row in rows]
        claimed_messages = []
        for key in ordered_keys:
            epoch_rows = yield SQL["claim"].query({"of": key, **values, "now": self._clock.now()})
            if epoch_rows:
                claim = Claim(key, epoch_rows[0][0], owner)
                message = yield from finishing.begin_next_message(claim)
                if message is not None:
                    claimed_messages.append((claim, message))
        return claimed_messages

    async def _find_first_message(
        self, claim: Claim, row: NextMessage | None
    ) -> InboxMessage | None:
        """Return the first readable message from `row` on; make unreadable ones dead letters."""
        while row is not None:
            try:
                return _to_message(row)
            except Undecodable as error:
                number = row.id
                _log.error(
                    "message_set_aside",
                    conversation=claim.conversation,
                    dead_letter=f"in-{number}",
                    reason=str(error),
                )
            try:
                row = await self._set_message_aside(claim, number)
            except (Fenced, StoreError) as error:  # the next claim tries again
                _log.warning("claim_failed", queue="conversations", reason=str(error))
                return None
        return None

    @transaction
    def _set_message_aside(self, claim: Claim, message_number: int) -> Unit[NextMessage | None]:
        """Make an unreadable message a dead letter, and begin the next message."""
        yield from finishing.lock_claim(claim)
        yield SQL["set_message_aside"].query(message=message_number)
        return (yield from finishing.begin_next_message(claim))

    @transaction
    def renew(self, claims: Collection[Claim], lease_seconds: float) -> Unit[Sequence[Claim]]:
        """Extend the leases of one owner's claims, and return the claims that were lost."""
        keys = json.dumps([claim.conversation for claim in claims])
        values = {"keys": keys, "held_by": next(iter(claims)).owner}
        yield SQL["renew_claims"].query(
            {**values, "seconds": lease_seconds, "now": self._clock.now()}
        )
        epochs_by_key = to_dict((yield SQL["epochs"].query(values)))
        return [claim for claim in claims if epochs_by_key.get(claim.conversation) != claim.epoch]

    async def release(self, claim: Claim) -> None:
        """Release a claim, so that the conversation can be claimed again immediately."""
        window = self.session_windows.take(claim)
        await self._database.run(lambda: finishing.release(claim))
        if window is not None:
            self.session_windows.put(claim, window)

    @transaction
    def release_all(self, owner: str) -> Unit[None]:
        """Release all claims left by a previous run of this owner."""
        yield SQL["release_claims"].query(held_by=owner)

    @transaction
    def record_attempt(
        self, claim: Claim, message: InboxMessage, attempt: AttemptState
    ) -> Unit[None]:
        """Record how a message is being processed, to trace crashes; NONE deletes the record."""
        yield from finishing.lock_claim(claim)
        rows = [{"message": one, "attempted": int(attempt)} for one in _list_message_ids(message)]
        yield SQL["record_attempt"].query_many(rows)

    @transaction
    def load_waiting_messages(self, claim: Claim, limit: int) -> Unit[Sequence[InboxMessage]]:
        """Return up to `limit` unanswered messages, oldest first, including the current one."""
        values = {"of": claim.conversation, "newer_than": 0, "most": limit}
        rows = yield SQL["following_messages"].query(values)
        return decode_all("inbox", [NextMessage(*row[:-1]) for row in rows], _to_message)

    @transaction
    def load_waiting_after(
        self, claim: Claim, message: InboxMessage, limit: int
    ) -> Unit[Sequence[InboxMessage]]:
        """Return the messages waiting after `message`, up to an event that is processed alone."""
        values = {"of": claim.conversation, "newer_than": message.newest_message.id, "most": limit}
        messages: list[InboxMessage] = []
        for *columns, attempt in (yield SQL["following_messages"].query(values)):
            next_row = NextMessage(*columns)
            if next_row.kind != "said" or next_row.crash_count or attempt != AttemptState.NONE:
                break
            try:
                messages.append(_to_message(next_row))
            except Undecodable:  # an unreadable message becomes a dead letter later
                break
        return messages

    async def load_session(self, claim: Claim, max_turns: int) -> Session:
        """Return the current session's newest turns, even if the claim is outdated."""
        window = self.session_windows.get(claim)
        if window is None and self._shared_windows is not None:
            window = await self._shared_windows.find(claim)
            if window is not None:
                self.session_windows.put(claim, window)
        cached_session = window.newest_session(max_turns) if window else None
        if cached_session is not None:
            return cached_session
        session = await self._read_session(claim.conversation, max_turns)
        self.session_windows.put(claim, create_window(session, max_turns))
        return session

    @transaction
    def _read_session(self, conversation_key: str, max_turns: int) -> Unit[Session]:
        rows = yield SQL["newest_turns"].query_alone(of=conversation_key, most=max_turns)
        if rows:
            return Session(rows[0][-1], tuple(decode_all("turn", reversed(rows), to_turn)))
        session_rows = yield SQL["session"].query_alone(of=conversation_key)
        return Session(session_rows[0][0] if session_rows else 1, ())

    async def forget(self, claim: Claim) -> int:
        """Permanently delete a conversation's data; return the number of deleted turns."""
        self.session_windows.take(claim)
        now = self._clock.now()
        self._record_tombstone(Tombstone(now, claim.conversation))
        turn_count = await self._delete_conversation(claim, now)
        if self._shared_windows is not None:
            await self._shared_windows.drop(claim)
        await self._database.truncate_log()
        return turn_count

    @transaction
    def _delete_conversation(self, claim: Claim, now: float) -> Unit[int]:
        yield from finishing.lock_claim(claim)
        address = parse_address(claim.conversation)
        channel_values = {"of_lane": address.lane, "of_thread": address.thread or ""}
        values = {"of": claim.conversation, **channel_values, "content": b"", "moment": now}
        values["until"] = math.inf
        for name in CONVERSATION_DELETIONS:
            yield SQL[name].query(values)
        return len((yield SQL["forget_turns"].query(values)))

    async def open_part(self, claim: Claim, message: InboxMessage, part: OutgoingPart) -> OpenPart:
        """Queue one part of an unfinished answer for sending, at most once per part."""
        outbox_row, at = finishing.to_opening_row(message, part), read_clock(self._clock)
        row_number, reserved_row = await self._database.run(
            lambda: finishing.queue_unfinished_part(
                claim, outbox_row, self._sender, at, self._database.dialect
            )
        )
        return OpenPart(row_number, reserved_row)

    async def finish(
        self, claim: Claim, message: InboxMessage, result: TurnResult, *, begins_next: bool = True
    ) -> RemainingWork:
        """Mark a message and the messages gathered with it as answered, and store the result.

        Only this method sends answers. If a part's message was already queued, it is edited to its
        final text, or deleted if the result lacks the part. Then the next message begins; if there
        is none or `begins_next` is false, the conversation is released.
        """
        at = read_clock(self._clock)
        rows = finishing.FinishRows(
            message_ids=[
                *_list_message_ids(message),
                *(one.id for one in message.refused_messages),
            ],
            turns=[
                *(to_turn_row(one) for one in result.turns),
                *(to_turn_row(one, is_active=False) for one in result.unanswered_questions),
            ],
            receipts=[
                receipt_rows.to_receipt_row(claim.conversation, message.turn_name, one, at.now)
                for one in result.receipts
            ],
            answer=finishing.to_part_changes(message, result),
            result=result,
            begins_next=begins_next,
        )
        deleted_ids = result.change.deleted_ids if result.change else ()
        if deleted_ids:
            await self._record_deleted_turns(claim, deleted_ids, at.now)
        # Cached turns are kept only if the unit was certainly committed.
        window = self.session_windows.take(claim)
        next_message, reserved_row = await self._database.run(
            lambda: finishing.finish(claim, rows, self._sender, at, self._database.dialect)
        )
        if deleted_ids or result.is_question_deleted:
            if self._shared_windows is not None:
                await self._shared_windows.drop(claim)
            await self._database.truncate_log()
        if window is not None and not result.starts_session and result.change is None:
            removed_range = result.removed_range or result.replaced_range
            if removed_range is not None:
                window = window.without_turns(removed_range)
            window = window.with_turns([_row_to_turn(row) for row in rows.turns if row["active"]])
            self.session_windows.put(claim, window)
            if self._shared_windows is not None and next_message is None:
                self._shared_windows.share(claim, window)
        return RemainingWork(await self._find_first_message(claim, next_message), reserved_row)

    async def _record_deleted_turns(self, claim: Claim, ids: Collection[int], now: float) -> None:
        """Record in the tombstone file which turns are about to be deleted."""
        message_ids = await self._database.run_readonly(lambda: _load_message_ids_of_turns(ids))
        self._record_tombstone(
            Tombstone(now, claim.conversation, tuple(sorted(ids)), tuple(sorted(message_ids)))
        )


def _load_message_ids_of_turns(turn_ids: Collection[int]) -> Unit[set[str]]:
    rows = yield SQL["messages_of_listed"].query_alone(rows=json.dumps(list(turn_ids)))
    return {row[0] for row in rows}


def _to_message(row: NextMessage) -> InboxMessage:
    incoming = decode_event(row.kind, row.encoded_event)
    return InboxMessage(
        row.id,
        incoming,
        row.crash_count,
        decode(int, row.own_crash_count),
        decode(float, row.received_at),
        bool(row.has_messages_waiting),
    )


def _row_to_turn(row: Mapping[str, object]) -> Turn:
    return to_turn([row[name] for name in TURN_COLUMNS])


def _list_message_ids(message: InboxMessage) -> list[int]:
    return [message.id, *(one.id for one in message.gathered_messages)]
