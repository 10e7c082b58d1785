"""The web platform: channels in Troupe's own database, for the console's playground."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from typing_extensions import override

from bot.chat.incoming import (
    Address,
    ButtonPress,
    Incoming,
    IncomingMessage,
    MessageDeletion,
    MessageEdit,
    Person,
    Quote,
    WakeReason,
)
from bot.chat.outgoing import Limits, MessageContent, MessageSearch, OutgoingMessage
from bot.chat.web_channel import WEB_PLATFORM, WebChannel, WebMessage, inbox_key
from bot.errors import MessageNotFound, PlatformFatal
from bot.platforms.local_platform import LocalPlatform
from bot.platforms.receiving import parse_cursors, parse_number
from bot.platforms.spec import PlatformContext, PlatformSpec, WebChannels
from bot.ports import Clock, Intake, SilenceExplainer, Surface

_BOT_MENTION_PATTERN = re.compile(r"@(?:bot|troupe)\b[,:]?\s*", re.IGNORECASE)
DEFAULT_LIMITS = Limits(
    max_units=100_000,
    unit="characters",
    seconds_between_edits=0.25,
    typing_seconds=0,
    has_buttons=True,
    shows_faces=True,
)
_POLL_SECONDS = 2.0  # another process's signal of a change may be lost
_MAX_CHANGES_PER_READ = 100
_CURSOR_PREFIX = f"{WEB_PLATFORM}:"
SPEC = PlatformSpec(
    kind=WEB_PLATFORM,
    factory="bot.platforms.web:WebPlatform",
    user_id_pattern=".+",
    is_companion=True,
)


def to_incoming(
    channel: WebChannel, message: WebMessage, replied_to: WebMessage | None, last_read_revision: int
) -> Incoming | None:
    """Convert a new or changed message to an event; return None if it needs no event.

    It is new if it was added after `last_read_revision`; otherwise, it was edited or deleted.
    """
    author, address, key = message.author, channel.address, inbox_key(channel.id, message)
    if author is None or message.is_note:
        return None
    if message.press is not None:
        return ButtonPress(
            address,
            key,
            message.reply_to,
            author,
            message.press,
            message.at,
            (address.lane,),
            message.values,
            author_is_admin=True,
            is_age_restricted=True,
            locale=channel.locale,
        )
    is_new = message.position > last_read_revision
    if is_new and (message.is_copied or message.is_deleted):
        return None
    if message.is_deleted:
        return MessageDeletion(
            address, f"{key}:deleted", (message.id,), message.at, (address.lane,)
        )
    incoming = to_incoming_message(channel, message, author, replied_to)
    if is_new:
        return incoming
    return MessageEdit(f"{key}:{message.revision}", incoming, message.edited_at or message.at)


def to_incoming_message(
    channel: WebChannel, message: WebMessage, author: Person, replied_to: WebMessage | None
) -> IncomingMessage:
    """Convert a web message to a received message.

    A channel with one person is a private chat. In a channel with several people, messages must
    address the bot as on Discord: by a mention, a reply, a name or a command.
    """
    text, mention_match = message.text, _BOT_MENTION_PATTERN.search(message.text)
    if mention_match is not None and mention_match.start() == 0 and mention_match.end() < len(text):
        text = text[mention_match.end() :]
    has_one_person = len(channel.people) == 1
    address = channel.address
    is_reply_to_bot = replied_to is not None and replied_to.author is None
    quote = None
    if replied_to is not None:
        quote = Quote(replied_to.author, replied_to.id, replied_to.text, is_ours=is_reply_to_bot)
    if text.startswith("/"):
        wake_reason: WakeReason | None = WakeReason.COMMAND
    elif has_one_person:
        wake_reason = WakeReason.DM
    elif mention_match is not None:
        wake_reason = WakeReason.MENTION
    else:
        wake_reason = WakeReason.REPLY if is_reply_to_bot else None
    return IncomingMessage(
        address=address,
        external_key=inbox_key(channel.id, message),
        message_id=message.id,
        author=author,
        text=text,
        at=message.at,
        wake=wake_reason,
        scopes=(address.lane,),
        author_is_admin=True,  # only the operator can use the console
        quote=quote,
        mentions=_list_mentions(text, channel.people, author),
        locale=channel.locale,
        is_private=has_one_person,
        is_age_restricted=True,  # only the operator reads it
        has_masked_token=message.has_masked_token,
    )


def _list_mentions(text: str, people: Sequence[Person], author: Person) -> tuple[str, ...]:
    lowercase_text = text.casefold()
    other_people = (one for one in people if one.id != author.id)
    return tuple(one.id for one in other_people if f"@{one.name.casefold()}" in lowercase_text)


class WebSurface(Surface):
    """Writes messages to the database; a message's id is its nonce, so that none appears twice."""

    def __init__(
        self, channels: WebChannels, clock: Clock, find_limits: Callable[[str], Limits | None]
    ) -> None:
        self._channels = channels
        self._clock = clock
        self._find_limits = find_limits
        self._limits: dict[str, Limits] = {}

    def set_imitated_platform(self, channel_id: str, platform: str) -> None:
        """Set the platform that a channel imitates; its limits determine how messages are split."""
        emulated_limits = self._find_limits(platform) if platform else None
        if emulated_limits is None:
            self._limits[channel_id] = DEFAULT_LIMITS
            return
        # Split messages as on that platform, but do not limit calls; repeated sends are harmless.
        self._limits[channel_id] = replace(
            emulated_limits,
            seconds_between_edits=DEFAULT_LIMITS.seconds_between_edits,
            typing_seconds=0,
            chat_call_windows=(),
            bot_call_windows=(),
            route_call_windows=(),
            deduplicates_sends=True,
            can_retry_with_face=True,
            has_buttons=True,
        )

    @override
    def limits(self, address: Address) -> Limits:
        return self._limits.get(address.chat, DEFAULT_LIMITS)

    @override
    async def send(self, message: OutgoingMessage) -> str:
        content = message.content
        web_message = WebMessage(
            message.nonce,
            None,
            content.text,
            self._clock.utc_now(),
            face=content.face,
            buttons=content.buttons,
            menus=content.menus,
            reply_to=message.reply_to,
            file=message.file,
        )
        await self._channels.add(message.address.chat, [web_message])
        return message.nonce

    @override
    async def edit(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> None:
        message = await self._channels.find(address.chat, message_id)
        if message is not None:
            new_message = replace(
                message,
                text=content.text,
                face=content.face,
                buttons=content.buttons,
                menus=content.menus,
            )
            if new_message == message or await self._channels.replace(address.chat, new_message):
                return
        raise MessageNotFound(f"no message {message_id}")

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        message = await self._channels.find(address.chat, message_id)
        if message is not None:
            await self._channels.replace(address.chat, message.to_tombstone())

    @override
    async def typing(self, address: Address) -> None:
        """Do nothing, because readers already see the answer grow."""

    @override
    async def find(self, message: OutgoingMessage, search: MessageSearch) -> str | None:
        web_message = await self._channels.find(message.address.chat, message.nonce)
        return None if web_message is None else web_message.id


class WebPlatform(LocalPlatform, SilenceExplainer):
    """Reads each channel's changes, and stores the last revision that it has read."""

    name = WEB_PLATFORM
    account = "the console's playground"

    def __init__(self, _settings: None, context: PlatformContext) -> None:
        if context.web_channels is None:
            raise PlatformFatal("the web platform needs a database with web channels")
        self._channels = context.web_channels
        self._context = context
        self.surface = WebSurface(self._channels, context.clock, context.find_limits)
        self._last_read_revisions: dict[str, int] = {}  # by channel
        self._change_event = asyncio.Event()

    @override
    async def run(self, intake: Intake) -> None:
        cursors = await intake.cursors(_CURSOR_PREFIX)
        channel_revisions = parse_cursors(
            cursors, lambda name, at: (name.removeprefix(_CURSOR_PREFIX), parse_number(at))
        )
        self._last_read_revisions = dict(channel_revisions)
        stop_watching = self._channels.on_change(lambda _ids: self._change_event.set())
        try:
            while True:
                self._change_event.clear()
                for channel in await self._channels.all():
                    self.surface.set_imitated_platform(channel.id, channel.look)
                    if channel.revision > self._last_read_revisions.get(channel.id, 0):
                        await self._read_changes(channel, intake)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS):
                        await self._change_event.wait()
        finally:
            stop_watching()

    @override
    async def explain_silence(self, message: IncomingMessage, explanation: str) -> None:
        note = self._create_note(message.message_id, explanation)
        await self._channels.add(message.address.chat, [replace(note, reply_to=message.message_id)])

    async def _read_changes(self, channel: WebChannel, intake: Intake) -> None:
        last_read_revision = self._last_read_revisions.get(channel.id, 0)
        changed_messages = await self._channels.list_changed_messages(
            channel.id, last_read_revision, _MAX_CHANGES_PER_READ
        )
        events: list[Incoming] = []
        for message in changed_messages:
            if message.author is None:
                continue
            replied_to = None
            if message.reply_to is not None and message.press is None:
                replied_to = await self._channels.find(channel.id, message.reply_to)
            event = to_incoming(channel, message, replied_to, last_read_revision)
            is_refused = isinstance(event, ButtonPress) and await self._refuse_press_if_forbidden(
                channel, message, event
            )
            if event is not None and not is_refused:
                events.append(event)
        newest_revision = changed_messages[-1].revision if changed_messages else channel.revision
        if events:
            await intake.receive(events, {f"{_CURSOR_PREFIX}{channel.id}": str(newest_revision)})
        self._last_read_revisions[channel.id] = newest_revision
        if newest_revision < channel.revision:
            self._change_event.set()

    async def _refuse_press_if_forbidden(
        self, channel: WebChannel, message: WebMessage, press: ButtonPress
    ) -> bool:
        refusal = await self._context.find_press_refusal(press)
        if refusal is not None:
            await self._channels.add(channel.id, [self._create_note(message.id, refusal)])
        return refusal is not None

    def _create_note(self, message_id: str | None, text: str) -> WebMessage:
        now = self._context.clock.utc_now()
        return WebMessage(f"{message_id}:note", None, text, now, is_note=True)
