"""Send the rows of the outbox: in order within a chat, and each exactly once.

The rows of one chat are a lane. A row is marked `sending` before its request goes out. If the
response is lost, the outcome is unknown: the sender searches the chat for the message, and sends it
again only if it is missing (docs/delivery.md#unknown-outcomes).
"""

import asyncio
import base64
import hashlib
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TypeVar

import structlog
from typing_extensions import override

from bot.chat.incoming import parse_address, parse_source
from bot.chat.outgoing import (
    FIRST_NOTICE_PART,
    Limits,
    MessageContent,
    MessageSearch,
    MessageThread,
    OutboxOperation,
    OutboxRow,
    OutboxState,
    OutgoingMessage,
    PrivateDelivery,
)
from bot.delivery.late_duplicates import LateDuplicateRemover
from bot.delivery.pacing import CallQueue
from bot.errors import (
    AnswerRefused,
    ContentRefused,
    Fenced,
    MessageNotFound,
    OutcomeUnknown,
    PlatformError,
    PlatformFatal,
    RateLimited,
    Refused,
    Unreachable,
    WordsRefused,
)
from bot.ports import Clock, Delivery, PrivateChats, Signals, Surface
from bot.runtime.http_client import send_only_if
from bot.runtime.in_process import BoundedDict
from bot.storage.outbox import SqlOutbox
from bot.telemetry.logs import TurnLogContext
from bot.telemetry.metrics import FENCED_WORK, OUTBOX_RECONCILIATIONS, OUTBOX_SENDS, record_span
from bot.texts.text import supported_language, translatable, translate, translate_to_all_languages

_log = structlog.get_logger(__name__)
_MAX_LANE_WAIT_SECONDS = 5.0
"""The longest time that `deliver_lane` waits for a lane's next row before it returns."""
_SECONDS_BETWEEN_NOTICES = 60.0
_MAX_BACKOFF_SECONDS = 60.0
_EXTRA_SEARCH_SECONDS = 5.0
"""The extra time limit for a search, which needs more requests than sending a message."""
_FATAL_RETRY_SECONDS = 30.0
_MAX_UNKNOWN_OUTCOMES = 5
"""After so many attempts with an unknown outcome, give up on a row if other chats' rows succeed."""
_MAX_ATTEMPTS = 200
_RECENT_SUCCESS_SECONDS = 120.0
_MAX_REMEMBERED_SUCCESSES = 100
_MAX_ROWS_OF_UNKNOWN_OUTCOME = 1000
_UNDELIVERED_NOTICE = translatable(
    "⚠ Part of my answer could not be delivered. The log contains the reason."
)
_FILES_FORBIDDEN_NOTICE = translatable(
    "⚠ I can't send files here because I don't have permission to attach files in this chat."
)
_NONCE_BYTES = 15  # 24 characters; Discord accepts 25
_PART_HIDDEN_NOTICE = translatable(
    "⚠ I can't show part of my answer because this chat doesn't allow that kind of content."
)
_MODERATION_NOTICE = translatable(
    "⚠ A moderation rule of this server (AutoMod) blocked part of my answer. Please rephrase"
    " your question, or ask the server's admins about the rule."
)
_PRIVATE_PLACEHOLDER = translatable("🔒 Only you can read this.")
SENT_ROWS_TOPIC = "sent_rows"
_POLL_SECONDS = 1.0  # a signal may be lost


@dataclass(eq=False)
class SentRowTracker:
    """Lets callers wait until any process has sent a row; polls in case announcements are lost."""

    outbox: SqlOutbox
    poll_seconds: float = _POLL_SECONDS

    def __post_init__(self) -> None:
        self._row_futures: dict[int, asyncio.Future[str | None]] = {}
        self._next_poll_at = -math.inf

    async def wait_until_sent(self, row_id: int) -> str:
        """Wait for any process to send a row; return its message id, or raise `AnswerRefused`."""
        loop = asyncio.get_running_loop()
        future = self._row_futures.setdefault(row_id, loop.create_future())
        try:
            while not future.done():
                await asyncio.wait([future], timeout=self.poll_seconds)
                if not future.done() and loop.time() >= self._next_poll_at:
                    self._next_poll_at = loop.time() + self.poll_seconds
                    await self._poll_sent_rows()
            external_id = future.result()
        finally:
            self._row_futures.pop(row_id, None)
        if external_id is None:
            raise AnswerRefused("the first message of the answer was refused")
        return external_id

    async def _poll_sent_rows(self) -> None:
        for row_id, external_id in (await self.outbox.find_sent_ids([*self._row_futures])).items():
            self.record_sent(row_id, external_id)

    def record_sent(self, row_id: int, external_id: str | None) -> None:
        """Record the message id of a sent row, or None if the row will never be sent."""
        future = self._row_futures.get(row_id)
        if future is not None and not future.done():
            future.set_result(external_id)

    def record_announced_rows(self, row_keys: Sequence[str]) -> None:
        """Record the rows that other processes have announced as sent."""
        for key in row_keys:
            row_id, _, external_id = key.partition(":")
            self.record_sent(int(row_id), external_id or None)


def publish_sent_row(signals: Signals, row_id: int, external_id: str | None) -> None:
    """Tell other processes a row's message id, or None if the row will never be sent."""
    signals.publish(SENT_ROWS_TOPIC, [f"{row_id}:{external_id or ''}"])


Response = TypeVar("Response")


@dataclass(eq=False)
class Sender:
    """Delivers the rows of chats, in order within a chat, and to several chats at the same time.

    `settle_seconds` is how long a platform may take to accept a request whose response was lost.
    `announce_done_row` is called when a row is done, with the row's id and its message id, or None
    if the row will never be sent.
    """

    outbox: SqlOutbox
    surfaces: Mapping[str, Surface]
    clock: Clock
    _: KW_ONLY
    settle_seconds: float
    announce_done_row: Callable[[int, str | None], None] = lambda _row_id, _external_id: None
    call_queue: CallQueue | None = None
    private_chats: Mapping[str, PrivateChats] = field(default_factory=dict)
    """The private chats of each bot, by `Address.source`."""
    wake: Callable[[Sequence[str]], None] = lambda _lanes: None

    def __post_init__(self) -> None:
        self._last_notice_times: dict[str, float] = {}
        self._queue = self.call_queue or CallQueue(self.clock)
        self.sent_row_tracker = SentRowTracker(self.outbox)
        self.late_duplicate_remover = LateDuplicateRemover(
            self.outbox, self.surfaces, self.clock, self._search_message
        )
        self._success_times = BoundedDict[str, float](_MAX_REMEMBERED_SUCCESSES)
        self._unknown_outcome_counts = BoundedDict[int, int](_MAX_ROWS_OF_UNKNOWN_OUTCOME)  # by row

    def seconds_on_hold(self, lane: str) -> float:
        """Return how many seconds the bot's rate limit delays the delivery to a chat."""
        return self._queue.seconds_until_admitted(parse_source(lane), lane)

    async def claim(self, lane_keys: Sequence[str]) -> Mapping[str, OutboxRow]:
        """Claim and return the first due row of each lane whose bot runs here."""
        served_lanes = [key for key in lane_keys if parse_source(key) in self.surfaces]
        rows = await self.outbox.reserve_due_rows(served_lanes) if served_lanes else ()
        return {row.address.lane: row for row in rows}

    async def deliver_lane(self, row: OutboxRow) -> None:
        """Deliver a row, and then the next rows of the chat until none is due soon."""
        next_row: OutboxRow | None = row
        try:
            while next_row is not None:
                with TurnLogContext(next_row.turn_name):
                    if (problem := next_row.decode_error) is not None:
                        next_row = await self._set_aside(next_row, problem)
                    else:
                        next_row = await self._deliver_row(next_row)
        except Fenced as error:  # this sender was too slow; another has claimed the lane
            FENCED_WORK.labels("lanes").inc()
            _log.warning("sender_lost_lane", lane=row.address.lane, reason=str(error))

    async def _deliver_row(self, row: OutboxRow) -> OutboxRow | None:
        if self.clock.monotonic() > row.send_deadline:  # the process was suspended
            _log.warning("send_deadline_passed", row=row.id, lane=row.address.lane)
            return None
        start, request_sent_at = self.clock.now(), self.clock.monotonic()
        was_outcome_unknown = row.state is OutboxState.UNKNOWN
        write_deadline = row.send_deadline + (_EXTRA_SEARCH_SECONDS if was_outcome_unknown else 0.0)
        outcome = "sent"
        next_row: OutboxRow | None = None
        backoff: float | None = None  # seconds until the row is tried again; None: the row is done
        try:
            with send_only_if(lambda: self.clock.monotonic() <= write_deadline):
                next_row = await self._attempt_delivery(row)
        except RateLimited as error:
            outcome = "rate_limited"
            backoff = error.retry_after_seconds + random.uniform(0, 0.5)  # noqa: S311
        except Unreachable:
            outcome = "unreachable"
            if self.clock.monotonic() > write_deadline:  # the process was suspended meanwhile
                _log.warning("send_deadline_passed", row=row.id, lane=row.address.lane)
            backoff = min(2.0 ** min(row.attempt_count - 1, 6), _MAX_BACKOFF_SECONDS)
        except PlatformFatal:
            outcome, backoff = "fatal", _FATAL_RETRY_SECONDS
        except OutcomeUnknown as error:
            _log.info("outcome_unknown", row=row.id, op=row.operation, reason=str(error))
            self._unknown_outcome_counts[row.id] = self._unknown_outcome_counts.get(row.id, 0) + 1
            if self._should_give_up(row):
                outcome = "set_aside"
                next_row = await self._set_aside(row, str(error))
            else:
                outcome = "unknown"
                elapsed_seconds = self.clock.monotonic() - request_sent_at
                search_delay = self._message_search_delay(row, request_ended=error.request_ended)
                backoff = max(0.0, search_delay - elapsed_seconds)
        except Refused as error:
            outcome = "refused"
            _log.warning(
                "send_refused",
                row=row.id,
                op=row.operation,
                lane=row.address.lane,
                reason=str(error),
            )
            next_row = await self._drop_refused_row(row, error)
            self._notify_waiters(row, None)
        if backoff is not None:  # an unknown outcome stays unknown until a search is complete
            is_unknown = was_outcome_unknown or outcome == "unknown"
            await (self.outbox.mark_unknown if is_unknown else self.outbox.reschedule)(row, backoff)
        OUTBOX_SENDS.labels(row.address.platform, outcome).inc()
        platform, end = row.address.platform, self.clock.now()
        attributes = {"troupe.platform": platform, "troupe.outcome": outcome}
        failure = None if outcome == "sent" else outcome
        record_span("deliver", row.turn_name, start, end, attributes=attributes, error=failure)
        return next_row if backoff is None else await self._claim_row(row.address.lane, backoff)

    async def _attempt_delivery(self, row: OutboxRow) -> OutboxRow | None:
        delivery, reason = row.private_delivery, ""
        try:
            if row.state is OutboxState.UNKNOWN:
                return await self._resolve_unknown_outcome(row)
            if delivery is None or delivery.group or row.interaction is not None:
                if delivery is not None and await self._needs_placeholder(row):
                    text = translate(_PRIVATE_PLACEHOLDER, supported_language(delivery.locale))
                    message = replace(_to_message(row, MessageContent(text), None), file=None)
                    placeholder_id = await self.surfaces[row.address.source].send(message)
                    return await self.outbox.turn_into_edit(row, placeholder_id)
                return await self._mark_sent(row, await self._perform_operation(row))
        except Refused as error:
            if delivery is None:
                raise
            reason = str(error)
            _log.warning("private_row_refused", row=row.id, lane=row.address.lane, reason=reason)
        return await self._deliver_privately(row, delivery, reason)

    async def _deliver_privately(
        self, row: OutboxRow, delivery: PrivateDelivery, reason: str
    ) -> OutboxRow | None:
        """Move a row to its reader's private chat, or say how to open it; return the next row."""
        private_chats = self.private_chats[row.address.source]
        if not delivery.group:
            try:
                address = await private_chats.find_private_chat(delivery.person)
            except Refused as error:
                reason = str(error)
            else:
                updated_delivery = replace(delivery, group=row.address.channel)
                next_row = await self.outbox.move_to_private_chat(row, updated_delivery, address)
                self.wake([address.lane])
                return next_row
        notice = ""
        if not delivery.is_quiet:
            try:
                instructions = await private_chats.private_chat_instructions(delivery.person)
            except Refused as error:  # a refused edit would be sent again, to the group
                raise Unreachable(str(error)) from error
            notice = translate(instructions, supported_language(delivery.locale))
        next_row = await self.outbox.give_up(row, reason, notice)
        if delivery.group:
            self.wake([parse_address(delivery.group).lane])
        self._notify_waiters(row, None)
        return next_row

    async def _drop_refused_row(self, row: OutboxRow, error: Refused) -> OutboxRow | None:
        """Drop a refused row, and return the next row of the chat.

        If a message could not be edited, send its new text as a new message, unless a person
        deleted it. If a reaction is the whole answer, send its emoji as a message.
        """
        is_gone = isinstance(error, MessageNotFound)
        is_deleted = is_gone and self._limits(row).reports_deletions
        if row.operation is OutboxOperation.EDIT and row.external_id is not None and not is_deleted:
            return await self.outbox.queue_as_new_message(row, str(error), is_message_gone=is_gone)
        is_reaction = row.operation is OutboxOperation.REACT
        if is_reaction and not is_gone and not await self.outbox.has_message(row.turn_name):
            return await self.outbox.give_up(row, str(error), row.content.text)
        return await self.outbox.give_up(row, str(error))

    async def _delete_replaced_message(self, row: OutboxRow) -> None:
        if row.external_id is None:
            return
        try:
            with send_only_if(lambda: True):  # a deletion is never too late
                await self.surfaces[row.address.source].delete(row.address, row.external_id)
        except PlatformError as error:  # continue; otherwise the new message would be sent again
            _log.warning("replaced_message_not_deleted", row=row.id, reason=str(error))

    def _limits(self, row: OutboxRow) -> Limits:
        return self.surfaces[row.address.source].limits(row.address)

    async def _claim_row(self, lane: str, wait_seconds: float) -> OutboxRow | None:
        if wait_seconds > _MAX_LANE_WAIT_SECONDS:
            return None  # polling finds the row when it is due
        if wait_seconds > 0:
            await self.clock.sleep(wait_seconds)
            if self.seconds_on_hold(lane) > 0:
                return None
        rows = await self.outbox.reserve_due_rows([lane])
        return rows[0] if rows else None

    async def _resolve_unknown_outcome(self, row: OutboxRow) -> OutboxRow | None:
        found_id = None
        # Edits, deletions, reactions, placeholders and interaction responses are safe to repeat.
        can_repeat_request = row.interaction is not None or _is_private_in_group(row)
        if row.operation is OutboxOperation.SEND and not (
            can_repeat_request or await self._needs_placeholder(row)
        ):
            found_id = await self._search_message(row)
            if not self._is_deduplicated(row):
                self.late_duplicate_remover.record_search(row, found_id)
        OUTBOX_RECONCILIATIONS.labels(row.address.platform, str(found_id is not None).lower()).inc()
        _log.info("outcome_reconciled", row=row.id, op=row.operation, arrived=found_id is not None)
        if found_id is not None:
            await self._delete_replaced_message(row)
            return await self._mark_sent(row, found_id)
        await self.outbox.reschedule(row, 0)
        return await self._claim_row(row.address.lane, 0)

    async def _search_message(self, row: OutboxRow, known_copy_id: str | None = None) -> str | None:
        surface = self.surfaces[row.address.source]
        known_ids = {*await self.outbox.list_message_ids(row.address)}
        if known_copy_id is not None:
            known_ids.add(known_copy_id)
        search = MessageSearch(row.reply_to, known_ids, known_copy_id)
        thread = await self._find_thread(row)
        try:
            return await request_with_fallbacks(
                row, lambda content: surface.find(_to_message(row, content, thread), search)
            )
        except Refused:  # the bot may not read the chat's history
            if self._is_deduplicated(row):
                return None  # the nonce prevents a duplicate
            raise

    async def _perform_operation(self, row: OutboxRow) -> str | None:
        surface = self.surfaces[row.address.source]
        match row.operation:
            case OutboxOperation.SEND:
                if row.part_number >= FIRST_NOTICE_PART and (
                    await self.outbox.has_later_rows(row)
                    or not self._is_notice_due(row.address.lane)
                ):
                    return None  # skip the notice, so that it does not delay an answer
                thread = await self._find_thread(row)
                message_id = await self._send(surface, row, thread)
                await self._delete_replaced_message(row)
                return message_id
            case OutboxOperation.EDIT:
                message_id = _require_message_id(row)
                edit = partial(surface.edit, row.address, message_id, interaction=row.interaction)
                await request_with_fallbacks(row, edit)
            case OutboxOperation.DELETE:
                await surface.delete(row.address, _require_message_id(row))
            case OutboxOperation.REACT:
                await surface.react(row.address, row.reply_to or "", row.content.text)
        return None

    async def _needs_placeholder(self, row: OutboxRow) -> bool:
        """Return whether to send a placeholder first, and then edit it to show the content."""
        if row.private_delivery is None or row.operation is not OutboxOperation.SEND:
            return False
        limits = self._limits(row)
        if _is_private_in_group(row):  # an edit cannot add a file
            is_text_response = row.interaction is not None and row.file is None
            return is_text_response and limits.fills_private_replies_by_edit
        # In a chat without earlier messages of the bot, a search could not find the message.
        return not (limits.deduplicates_sends or await self.outbox.list_message_ids(row.address))

    def _is_notice_due(self, lane: str) -> bool:
        now = self.clock.monotonic()
        self._last_notice_times = {
            key: at
            for key, at in self._last_notice_times.items()
            if now - at < _SECONDS_BETWEEN_NOTICES
        }
        return self._last_notice_times.setdefault(lane, now) == now

    async def _send(self, surface: Surface, row: OutboxRow, thread: MessageThread | None) -> str:
        """Send a row, or a notice if its file is refused, and return the message id."""
        try:
            return await request_with_fallbacks(
                row, lambda content: surface.send(_to_message(row, content, thread))
            )
        except Refused as error:
            if row.file is None or _is_private_in_group(row):
                raise
            _log.warning("file_refused", row=row.id, reason=str(error))
            content = replace(row.content, text=translate_to_all_languages(_FILES_FORBIDDEN_NOTICE))
            return await surface.send(replace(_to_message(row, content, thread), file=None))

    async def _find_thread(self, row: OutboxRow) -> MessageThread | None:
        if row.thread is None:
            return None
        message_id = await self.outbox.find_message_id(row.thread.first_part)
        return None if message_id is None else MessageThread(message_id, row.thread.title)

    def _should_give_up(self, row: OutboxRow) -> bool:
        """Return whether to give up on a row: it alone keeps failing, or was tried too often."""
        if row.attempt_count >= _MAX_ATTEMPTS:
            return True
        now, lane = self.clock.monotonic(), row.address.lane
        other_lanes_succeed = any(
            key != lane
            and parse_source(key) == row.address.source
            and now - at < _RECENT_SUCCESS_SECONDS
            for key, at in self._success_times.items()
        )
        return other_lanes_succeed and self._unknown_outcome_counts[row.id] >= _MAX_UNKNOWN_OUTCOMES

    async def _set_aside(self, row: OutboxRow, reason: str) -> OutboxRow | None:
        lane, delivery = row.address.lane, row.private_delivery
        _log.error("row_set_aside", row=row.id, op=row.operation, lane=lane, reason=reason)
        is_quiet = delivery is not None and delivery.is_quiet
        notice = "" if is_quiet else translate_to_all_languages(_UNDELIVERED_NOTICE)
        next_row = await self.outbox.give_up(row, reason, notice)
        self._notify_waiters(row, None)
        return next_row

    async def _mark_sent(self, row: OutboxRow, external_id: str | None) -> OutboxRow | None:
        next_row = await self.outbox.mark_sent(row, external_id)
        self._success_times[row.address.lane] = self.clock.monotonic()
        self._notify_waiters(row, external_id)
        return next_row

    def _notify_waiters(self, row: OutboxRow, external_id: str | None) -> None:
        self._unknown_outcome_counts.pop(row.id, None)
        self.sent_row_tracker.record_sent(row.id, external_id)
        self.announce_done_row(row.id, external_id)

    def _message_search_delay(self, row: OutboxRow, *, request_ended: bool) -> float:
        delay_seconds = self.settle_seconds
        backoff_factor = 2.0 ** max(0, row.attempt_count // 2 - 3)
        if request_ended or row.operation is not OutboxOperation.SEND or self._is_deduplicated(row):
            delay_seconds = min(1.0, delay_seconds)
        return min(delay_seconds * backoff_factor, _MAX_BACKOFF_SECONDS)

    def _is_deduplicated(self, row: OutboxRow) -> bool:
        """Return whether the platform shows a row once even if it is sent twice."""
        limits = self._limits(row)
        can_resend = row.content.face is None or limits.can_retry_with_face
        return limits.deduplicates_sends and can_resend


def derive_nonce(turn_name: str, part_number: int) -> str:
    """Derive a message's nonce from its turn and part; all processes derive the same one."""
    digest = hashlib.sha256(f"{turn_name}/{part_number}".encode()).digest()
    return base64.b32encode(digest[:_NONCE_BYTES]).decode()


def _to_message(
    row: OutboxRow, content: MessageContent, thread: MessageThread | None
) -> OutgoingMessage:
    return OutgoingMessage(
        row.address,
        content,
        derive_nonce(
            row.turn_name if row.external_id is None else f"{row.turn_name} instead",
            row.part_number,
        ),
        reply_to=row.reply_to,
        interaction=row.interaction,
        file=row.file,
        thread=thread,
        private_to=row.private_delivery.person
        if row.private_delivery and _is_private_in_group(row)
        else None,
    )


def _is_private_in_group(row: OutboxRow) -> bool:
    """Return whether a private row is still in the group, not yet in its reader's private chat."""
    return row.private_delivery is not None and not row.private_delivery.group


def _require_message_id(row: OutboxRow) -> str:
    if row.external_id is None:
        raise Refused("the message to edit or delete was never sent")
    return row.external_id


async def request_with_fallbacks(
    row: OutboxRow, request: Callable[[MessageContent], Awaitable[Response]]
) -> Response:
    """Send the content, then plain text, then a notice, until the platform accepts one."""
    face, notice = row.content.face, _PART_HIDDEN_NOTICE
    for content in (row.content, MessageContent(row.content.text, face, is_plain=True)):
        try:
            return await request(content)
        except ContentRefused as error:
            _log.warning("content_refused", row=row.id, plain=content.is_plain, reason=str(error))
            if isinstance(error, WordsRefused):
                notice = _MODERATION_NOTICE
                break
    # The notice omits the character's name and picture, which may have been refused.
    return await request(MessageContent(translate_to_all_languages(notice)))


@dataclass(eq=False)
class RowDispatcher(Delivery):
    """Delivers rows with the senders of this process or, if it has none, alerts other processes."""

    sent_row_tracker: SentRowTracker
    wake: Callable[..., None]
    start: Callable[[str, OutboxRow], None] | None = None

    @override
    def deliver(self, lane: str, row: OutboxRow | None, *, is_urgent: bool = False) -> None:
        if row is None or self.start is None:  # without senders, no row was claimed here
            self.wake([lane], is_urgent=is_urgent)
        else:
            self.start(lane, row)

    @override
    async def wait_until_sent(self, row_id: int) -> str:
        return await self.sent_row_tracker.wait_until_sent(row_id)
