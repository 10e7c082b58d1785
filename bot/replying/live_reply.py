"""Show an answer while it is being written."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, replace
from types import TracebackType
from typing import Self

import structlog

from bot.chat.command import ButtonAction
from bot.chat.incoming import Address
from bot.chat.outgoing import Button, Face, Limits, Menu, MessageContent, OutboxRow, OutgoingPart
from bot.chat.prompt import RateLimitWait, Waiting
from bot.chat.session import Claim, InboxMessage, OpenPart
from bot.errors import AnswerRefused, PlatformError, RateLimited, StoreError
from bot.ports import Clock, Delivery, Surface
from bot.replying.answer_parts import PartDestinations, action_buttons
from bot.replying.cut_points import close_open_markdown
from bot.replying.split import split
from bot.runtime.http_client import send_only_if
from bot.storage.conversations import Conversations
from bot.texts.text import Text, supported_language, translatable, translate

_log = structlog.get_logger(__name__)
_MAX_FAILURES_IN_A_ROW = 3
_CHANNEL_DESTINATIONS = PartDestinations()
_SLOW_START_NOTICE = translatable("⏳ The model is still loading or thinking …")


@dataclass(eq=False)
class LiveReply:
    """Shows an answer as it grows; the end of the `async with` block waits for open requests."""

    surface: Surface
    address: Address
    enqueue_part: Callable[[OutgoingPart], Awaitable[OpenPart]]
    """Queues a part's message to be sent for the first time."""
    wait_until_sent: Callable[[int], Awaitable[str]]
    clock: Clock
    destinations: PartDestinations = _CHANNEL_DESTINATIONS
    on_first_text: Callable[[], None] | None = None
    language: str = "en"
    """The language of notices."""
    buttons: tuple[Button, ...] = ()
    """The buttons under the first part during generation."""
    previous_speaker_reply: "LiveReply | None" = None
    """The previous speaker's answer, which is shown completely before this one."""
    face: Face | None = None
    _: KW_ONLY
    is_claim_held: Callable[[], bool] = lambda: True
    """Returns whether this worker certainly still holds the claim."""

    def __post_init__(self) -> None:
        self.final_texts: Sequence[str] = ()
        """The texts of the complete answer's parts, set at the end of the block."""
        self._limits = self.surface.limits(self.address).without_name_line(self.face)
        self._buffer = StreamBuffer(self._limits)
        self._opened_parts: list[tuple[OpenPart, OutgoingPart]] = []
        self._message_ids, self._shown_texts = list[str](), list[str]()  # by part index
        self.shown_times: list[float] = []
        """The times of all live sends and edits, in Unix seconds."""
        self._shown_contents: dict[int, MessageContent] = {}  # certainly shown, by part index
        self._change_event = asyncio.Event()
        previous_reply = self.previous_speaker_reply
        self._request_lock: asyncio.Lock = (
            previous_reply._request_lock if previous_reply else asyncio.Lock()  # noqa: SLF001
        )
        self._update_task: asyncio.Task[None] | None = None
        self._updates_start_at = math.inf
        self._cancel_update_timer: Callable[[], None] | None = None

    @property
    def started_part_numbers(self) -> Sequence[int]:
        """The numbers of the parts whose messages were queued."""
        return [one.number for _, one in self._opened_parts]

    def feed(self, text: str) -> None:
        """Append text to the answer; a later update shows it."""
        if not text:
            return
        if self.on_first_text is not None:
            self.on_first_text()
            self.on_first_text = None
        self._buffer.feed(text, self.clock.monotonic())
        self._handle_text_change()

    def replace(self, text: str) -> None:
        self._buffer.clear()
        self.feed(text)

    async def show_complete_answer(self) -> None:
        """Show the complete answer now, because another answer follows below."""
        for index, text in enumerate(self.final_texts):
            await self._show_part(index, text)

    def shows(self, part: OutgoingPart) -> bool:
        """Return whether a part's message certainly shows exactly this content."""
        contents = {
            one.number: self._shown_contents.get(at)
            for at, (_, one) in enumerate(self._opened_parts)
        }
        return contents.get(part.number) == part.content

    def show_wait(self, waiting: Waiting) -> None:
        """Show a waiting notice, which stays until the first text of the answer arrives."""
        self._buffer.set_notice(translate(describe_wait(waiting), self.language))
        self._handle_text_change()

    def show_slow_start(self) -> None:
        """Show a notice that the model has not started, unless something is already shown."""
        if self._buffer.is_empty:
            self._buffer.set_notice(translate(_SLOW_START_NOTICE, self.language))
            self._handle_text_change()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._cancel_update_timer is not None:
            self._cancel_update_timer()
        update_task = self._update_task
        if update_task is None:
            return
        try:
            # Do not cancel a request in flight, which could take effect after the final text.
            async with self._request_lock:
                update_task.cancel()
        finally:
            update_task.cancel()
            await asyncio.wait([update_task])
        failure = None if update_task.cancelled() else update_task.exception()
        if error is None and failure is not None:
            raise failure

    def _handle_text_change(self) -> None:
        """Schedule the next update; if an error has ended the updates, raise it."""
        if self._update_task is not None:
            self._change_event.set()
            if self._update_task.done():
                self._update_task.result()
        elif self._buffer.due_at < self._updates_start_at:
            if self._cancel_update_timer is not None:
                self._cancel_update_timer()
            self._updates_start_at = self._buffer.due_at
            wait_seconds = self._buffer.seconds_until_due(self.clock.monotonic())
            self._cancel_update_timer = self.clock.call_later(wait_seconds, self._start_updates)

    def _start_updates(self) -> None:
        self._change_event.set()
        name = f"show {self.address.lane}"
        self._update_task = asyncio.create_task(self._update_until_cancelled(), name=name)

    async def _update_until_cancelled(self) -> None:
        failure_count = 0
        while failure_count < _MAX_FAILURES_IN_A_ROW:
            await self._change_event.wait()
            wait_seconds = self._buffer.seconds_until_due(self.clock.monotonic())
            if wait_seconds > 0:
                await self.clock.sleep(wait_seconds)
                continue
            try:
                await self._update_parts()
            except RateLimited as error:  # no failure: retry when the platform allows it
                self._slow_down(error.retry_after_seconds)
            except (PlatformError, StoreError) as error:
                if isinstance(error, AnswerRefused) and not self._message_ids:
                    raise  # no part of the answer can ever be shown
                failure_count += 1
                _log.warning("live_edit_failed", lane=self.address.lane, reason=str(error))
                self._slow_down()
            else:
                failure_count = 0
                self._buffer.end_slowdown()
        _log.warning("live_edits_stopped", lane=self.address.lane)

    def _slow_down(self, retry_after_seconds: float = 0.0) -> None:
        self._buffer.slow_down(self.clock.monotonic(), retry_after_seconds)
        self._change_event.set()

    async def _update_parts(self) -> None:
        self._change_event.clear()
        parts = self._buffer.take_parts(self.clock.monotonic())[: self.destinations.max_live_parts]
        if self._limits.has_drafts:
            await self._show_draft(parts)
            return
        for index, text in enumerate(parts):
            await self._show_part(index, text)

    async def _show_draft(self, parts: Sequence[str]) -> None:
        """Show the last part as a draft; the complete answer is sent later."""
        if self.previous_speaker_reply is not None:
            await self.previous_speaker_reply.show_complete_answer()
        if parts:
            async with self._request_lock:
                if not self.is_claim_held():
                    return
                content = MessageContent(parts[-1], self.face)
                with send_only_if(self.is_claim_held):
                    draft_id = self.destinations.first_part_number + 1
                    await self.surface.draft(self.address, draft_id, content)
                self.shown_times.append(self.clock.now())

    async def _show_part(self, index: int, text: str) -> None:
        if index == len(self._message_ids):
            await self._open_message(index, text)
        elif self._shown_texts[index] != text:
            self._shown_contents.pop(index, None)
            async with self._request_lock:
                if not self.is_claim_held():
                    return
                content, message_id = self._build_content(index, text), self._message_ids[index]
                with send_only_if(self.is_claim_held):
                    await self.surface.edit(self.address, message_id, content, interaction=None)
            self.shown_times.append(self.clock.now())
            self._buffer.restart_pause_if_over(self.clock.monotonic())
            self._shown_texts[index] = text
            self._shown_contents[index] = content

    def _build_content(self, index: int, text: str) -> MessageContent:
        return MessageContent(text, self.face, buttons=() if index else self.buttons)

    async def _open_message(self, index: int, text: str) -> None:
        if index == 0 and self.previous_speaker_reply is not None:
            await self.previous_speaker_reply.show_complete_answer()
        if index == len(self._opened_parts):
            async with self._request_lock:
                outgoing_part = self.destinations.to_part(index, self._build_content(index, text))
                self._opened_parts.append((await self.enqueue_part(outgoing_part), outgoing_part))
        opened_part, outgoing_part = self._opened_parts[index]
        self._message_ids.append(await self.wait_until_sent(opened_part.row_id))
        self.shown_times.append(self.clock.now())
        self._buffer.restart_pause(self.clock.monotonic())
        self._shown_texts.append(text)
        if opened_part.shows_content(outgoing_part.content):
            self._shown_contents[index] = outgoing_part.content


def describe_wait(waiting: Waiting) -> Text:
    """Return a notice about a wait: its reason, queue position and remaining time."""
    if isinstance(waiting, RateLimitWait):
        seconds = max(1, math.ceil(waiting.seconds))
        return translatable(
            "⏳ The model is busy. I'll ask it again in {seconds} s …", seconds=seconds
        )
    place = translatable("You're next")
    if waiting.position > 1:
        place = translatable("You're number {position} in the queue", position=waiting.position)
    if waiting.seconds is None:
        return translatable("⏳ {place} …", place=place)
    seconds = max(1, math.ceil(waiting.seconds))
    return translatable("⏳ {place}, about {seconds} s …", place=place, seconds=seconds)


_SECONDS_BEFORE_FIRST_MESSAGE = 0.8  # a faster answer is sent when it is complete
_FIRST_MESSAGE_CHARS = 30  # a shorter text waits longer for its first message
_SECONDS_BEFORE_SHORT_MESSAGE = 1.0
_MAX_PAUSE_SECONDS = 10.0


class StreamBuffer:
    """Buffers an answer's text and decides when to update messages; `now` is monotonic time."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._chunks: list[str] = []
        self._char_count = 0
        self._notice = ""
        self._first_text_at: float | None = None  # -inf: a notice, which is due immediately
        self._is_shown = False
        self._has_changed = False
        self._pause_seconds = limits.seconds_between_edits
        self._next_update_at = -math.inf

    def feed(self, text: str, now: float) -> None:
        self._chunks.append(text)
        self._char_count += len(text)
        self._has_changed = True
        if self._first_text_at is None or self._first_text_at == -math.inf:
            self._first_text_at = now

    def clear(self) -> None:
        self._chunks, self._char_count = [], 0
        self._has_changed = True

    def set_notice(self, notice: str) -> None:
        """Set the notice that is shown until the answer has text."""
        if self._char_count == 0 and notice != self._notice:
            self._notice = notice
            self._has_changed = True
            self._first_text_at = -math.inf

    @property
    def is_empty(self) -> bool:
        """Whether there is neither text nor a notice."""
        return self._char_count == 0 and not self._notice

    @property
    def due_at(self) -> float:
        """The time of the next update, or infinity if nothing has changed."""
        if not self._has_changed or self._first_text_at is None:
            return math.inf
        if self._is_shown:
            return self._next_update_at
        is_short_text = self._char_count < _FIRST_MESSAGE_CHARS
        delay_seconds = (
            _SECONDS_BEFORE_SHORT_MESSAGE if is_short_text else _SECONDS_BEFORE_FIRST_MESSAGE
        )
        delay_seconds = min(delay_seconds, self._limits.seconds_between_edits)
        return max(self._next_update_at, self._first_text_at + delay_seconds)

    def seconds_until_due(self, now: float) -> float:
        """Return the seconds until the next update, or infinity if nothing has changed."""
        return max(0.0, self.due_at - now)

    def take_parts(self, now: float) -> list[str]:
        """Return all text split into messages, and start the pause until the next update."""
        text = "".join(self._chunks)
        self._chunks = [text]
        text = text or self._notice
        self._has_changed = False
        self._is_shown = True
        self._next_update_at = now + self._pause_seconds
        parts = split(text, self._limits)
        if parts and self._limits.to_visible_text is not None:
            parts[-1] = self._close_open_marks(parts[-1])
        return parts

    def _close_open_marks(self, text: str) -> str:
        closed_text = close_open_markdown(text)
        is_single_part = split(closed_text, self._limits) == [closed_text]
        return closed_text if is_single_part else text

    def restart_pause(self, now: float) -> None:
        """Restart the pause after a message was sent, which may have waited in the queue."""
        self._next_update_at = now + self._pause_seconds

    def restart_pause_if_over(self, now: float) -> None:
        """Restart the pause if the update took longer than the pause, as after a rate limit."""
        if now >= self._next_update_at:
            self.restart_pause(now)

    def slow_down(self, now: float, retry_after_seconds: float = 0.0) -> None:
        """Double the pause after a failed update, and wait at least `retry_after_seconds`."""
        self._pause_seconds = min(
            self._pause_seconds * 2, max(_MAX_PAUSE_SECONDS, self._pause_seconds)
        )
        self._next_update_at = now + max(self._pause_seconds, retry_after_seconds)
        self._has_changed = True  # the refused text still has to be shown

    def end_slowdown(self) -> None:
        """Reset the pause to the platform's value after a successful update."""
        self._pause_seconds = self._limits.seconds_between_edits


_SECONDS_BEFORE_TYPING = 0.5  # a faster answer needs no indicator
_TYPING_SHARE = 0.8  # of `typing_seconds`; then the indicator is sent again


@dataclass(eq=False)
class LiveReplies:
    """Creates live replies and outgoing parts for all platforms, and starts deliveries."""

    conversations: Conversations
    surfaces: Mapping[str, Surface]
    """Surfaces for live edits, by `Address.source`; their calls never delay deliveries."""
    delivery: Delivery
    clock: Clock
    is_claim_held: Callable[[Claim], bool]
    """Returns whether a claim is certainly still held, so that its answer may be shown."""

    def limits(self, address: Address) -> Limits:
        return self.surfaces[address.source].limits(address)

    def final_parts(
        self, address: Address, text: str, first_part_number: int = 0, face: Face | None = None
    ) -> tuple[OutgoingPart, ...]:
        """Split an answer's final text into numbered parts; return none if no text is visible."""
        return final_parts(text, self.limits(address), first_part_number, face)

    def notice_parts(
        self, address: Address, text: str, locale: str | None, first_part_number: int = 0
    ) -> tuple[OutgoingPart, ...]:
        """Return a notice as parts, translated into the language of a locale."""
        translated_text = translate(text, supported_language(locale))
        return self.final_parts(address, translated_text, first_part_number)

    async def open_notice(self, claim: Claim, message: InboxMessage, text: Text) -> None:
        """Send a notice in reply to a waiting message; raises `Fenced` or `StoreError`."""
        address = message.incoming.address
        for part in self.notice_parts(address, text, message.incoming.locale):
            opened_part = await self.conversations.open_part(claim, message, part)
            self.deliver(address, opened_part.row)

    def with_buttons(
        self,
        address: Address,
        parts: Sequence[OutgoingPart],
        buttons: tuple[Button, ...],
        menus: tuple[Menu, ...] = (),
    ) -> tuple[OutgoingPart, ...]:
        """Return the parts with buttons and menus under the last one, if supported.

        Parts in a thread get none, because presses must come from the channel.
        """
        if not parts or not self.limits(address).has_buttons:
            return tuple(parts)
        last = max(at for at, one in enumerate(parts) if one.thread is None)
        content = replace(parts[last].content, buttons=buttons, menus=menus)
        return (*parts[:last], replace(parts[last], content=content), *parts[last + 1 :])

    def deliver(
        self, address: Address, row: OutboxRow | None, *, is_response: bool = False
    ) -> None:
        """Start sending a channel's queue; `row` is its first row, if reserved by this process."""
        is_urgent = is_response and not self.limits(address).responses_count_as_calls
        self.delivery.deliver(address.lane, row, is_urgent=is_urgent)

    @asynccontextmanager
    async def open_live_reply(
        self,
        claim: Claim,
        message: InboxMessage,
        destinations: PartDestinations,
        previous_speaker_reply: LiveReply | None = None,
        face: Face | None = None,
        *,
        is_stoppable: bool = False,
    ) -> AsyncIterator[LiveReply]:
        """Show an answer live until the block ends; complete an earlier answer first."""
        address, locale = message.incoming.address, message.incoming.locale
        surface = self.surfaces[address.source]
        part_name = message.part_name(destinations.first_part_number)
        actions = [ButtonAction.STOP] if is_stoppable and self.limits(address).has_buttons else []
        buttons = action_buttons(part_name, locale, *actions)
        typing_indicator = TypingIndicator(surface, address, self.clock)

        async def enqueue_part(outgoing_part: OutgoingPart) -> OpenPart:
            opened_part = await self.conversations.open_part(claim, message, outgoing_part)
            self.deliver(address, opened_part.row)
            return opened_part

        async def wait_until_sent(row_id: int) -> str:
            message_id = await self.delivery.wait_until_sent(row_id)
            typing_indicator.stop_typing()
            return message_id

        async with (
            typing_indicator,
            LiveReply(
                surface,
                address,
                enqueue_part,
                wait_until_sent,
                self.clock,
                destinations,
                typing_indicator.stop_typing,
                supported_language(locale),
                buttons,
                previous_speaker_reply,
                face,
                is_claim_held=lambda: self.is_claim_held(claim),
            ) as live_reply,
        ):
            yield live_reply


@dataclass(eq=False)
class TypingIndicator:
    """Shows the typing indicator in a channel until `stop_typing` is called or the block ends."""

    surface: Surface
    address: Address
    clock: Clock

    def __post_init__(self) -> None:
        self._repeat_seconds = self.surface.limits(self.address).typing_seconds * _TYPING_SHARE
        self._cancel_start_timer: Callable[[], None] | None = None
        self._typing_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._repeat_seconds > 0:
            self._cancel_start_timer = self.clock.call_later(
                _SECONDS_BEFORE_TYPING, self._start_typing
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop_typing()
        if self._typing_task is not None:
            await asyncio.wait([self._typing_task])

    def stop_typing(self) -> None:
        if self._cancel_start_timer is not None:
            self._cancel_start_timer()
        if self._typing_task is not None:
            self._typing_task.cancel()

    def _start_typing(self) -> None:
        self._typing_task = asyncio.create_task(
            self._repeat_typing(), name=f"type {self.address.lane}"
        )

    async def _repeat_typing(self) -> None:
        """Send the indicator repeatedly until cancelled, even if the platform rejects it."""
        while True:
            pause_seconds = self._repeat_seconds
            try:
                await self.surface.typing(self.address)
            except RateLimited as error:
                pause_seconds = max(pause_seconds, error.retry_after_seconds)
            except PlatformError as error:
                _log.debug("typing_not_shown", lane=self.address.lane, reason=str(error))
            await self.clock.sleep(pause_seconds)


def final_parts(
    text: str, limits: Limits, first_part_number: int = 0, face: Face | None = None
) -> tuple[OutgoingPart, ...]:
    """Split an answer's final text into numbered parts; return none if no text is visible."""
    texts = enumerate(split(text, limits.without_name_line(face)), first_part_number)
    return tuple(OutgoingPart(part_number, MessageContent(one, face)) for part_number, one in texts)
