"""The gateway connection: one queue of events in the order in which Discord sent them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp
import discord
import msgspec
import structlog
from discord.http import Route
from discord.state import ConnectionState
from discord.utils import MISSING, utcnow
from typing_extensions import override

from bot.chat.button import ButtonAction
from bot.chat.command import CommandSpec, MessageCommandSpec
from bot.platforms.discord.client import Payload, noting_arrivals, skip_unreadable
from bot.platforms.discord.commands import (
    MAX_FORM_CHARS,
    CompletePreset,
    custom_id,
    form_payload,
    form_target_id,
    has_public_response,
    is_form_of_menu,
    message_command,
    send_suggestions,
)
from bot.platforms.discord.requests import REQUEST_ERRORS
from bot.platforms.discord.settings import DiscordSettings
from bot.platforms.discord.shards.connection import ShardClient
from bot.platforms.discord.shards.gateway_events import (
    BotMessageSeen,
    CommandReceived,
    ComponentUsed,
    EventQueue,
    GatewayEvent,
    MessageEdited,
    MessagesDeleted,
    SessionResumed,
    SessionStarted,
)
from bot.platforms.discord.shards.identify_limits import IdentifyLimits
from bot.platforms.discord.shards.shard import Shard
from bot.platforms.spec import EditableText
from bot.ports import Clock

_log = structlog.get_logger(__name__)
_COMMANDS = frozenset(
    {discord.InteractionType.application_command, discord.InteractionType.modal_submit}
)
"""What is answered to its author alone; a form that was sent in is a command with its argument."""
_ONLY = Shard()
_REFUSAL_SECONDS = 1.5
_SETTLED_SECONDS = 10.0  # an interaction that could not be read is settled as well
_ACKNOWLEDGED_BEFORE = 40060  # Discord's error code
_DEFER_SECONDS = 3.0  # Discord drops a command that is not acknowledged by then


async def _edit_nothing(_interaction: discord.Interaction) -> EditableText:
    return EditableText()


async def _open_no_form(_interaction: discord.Interaction) -> EditableText | None:
    return None


class _WhoWrote(msgspec.Struct):
    bot: bool = False


class _MessageHead(msgspec.Struct):
    """What is looked at of the message of a bot."""

    id: str
    channel_id: str
    author: _WhoWrote
    guild_id: str | None = None


_decode_bot_message = msgspec.json.Decoder(_MessageHead).decode


class Gateway(ShardClient):
    """The connection of one shard; its events in one queue."""

    def __init__(
        self,
        settings: DiscordSettings,
        complete: CompletePreset,
        press_refusal: Callable[[discord.Interaction], Awaitable[str | None]],
        commands: Sequence[CommandSpec] = (),
        message_commands: Sequence[MessageCommandSpec] = (),
        text_to_edit: Callable[[discord.Interaction], Awaitable[EditableText]] = _edit_nothing,
        press_form: Callable[[discord.Interaction], Awaitable[EditableText | None]] = _open_no_form,
        *,
        shard: Shard = _ONLY,
        identify_limits: IdentifyLimits,
        clock: Clock,
    ) -> None:
        intents = discord.Intents(guilds=True, messages=True, message_content=True)
        super().__init__(settings, intents, shard, identify_limits, clock)
        self._complete = complete
        self._press_refusal = press_refusal
        self._text_to_edit = text_to_edit
        self._press_form = press_form
        self.commands = commands
        self.message_commands = message_commands
        self._events = EventQueue(lambda: self.progress)
        self._current_session: SessionStarted | None = None
        self._connected = False

    @property
    def connection_error(self) -> str | None:
        """Why no events arrive just now; None while connected."""
        if self.is_closed():
            return "the Discord client has ended"
        if not self._connected:
            return "connecting to the Discord gateway"
        return None if self.ws.open else "the Discord gateway closed the connection"

    async def events(self) -> list[GatewayEvent]:
        """Wait for events and take all there are, up to and including the start of a session."""
        return await self._events.take()

    @override
    def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        """Call what takes an event now; the library makes a task for each, and needs one for few.

        So events are queued in the order in which they were parsed.
        """
        if event == "interaction":  # is answered over the network
            deferred = self._queue_command(*args)
            replayed = self.is_replaying
            super().dispatch(event, *args, is_replayed=replayed, deferred=deferred, **kwargs)
        elif (take := getattr(self, f"on_{event}", None)) is not None:
            take(*args, **kwargs)

    def on_connect(self) -> None:
        """Queue the start of a session by IDENTIFY; a resumed one replays what was missed."""
        self._set_guilds_known()
        self._held.clear()  # what was held is fetched from the channels
        self._current_session = SessionStarted(utcnow())
        _log.info("discord_session_began")
        self._events.put(self._current_session)

    def on_ready(self) -> None:
        self._connected = True
        self._set_guilds_known()

    def on_resumed(self) -> None:
        self._connected = True
        self.is_replaying = False
        self._events.put(SessionResumed())

    @override
    def on_progress(self) -> None:
        self._events.note_progress()

    @override
    def skip_message(self, event: str, payload: msgspec.Raw) -> bool:
        message = _decode_bot_message(payload)
        guild = int(message.guild_id or 0)
        if not message.author.bot or not self._held.lets_pass(guild):
            return False
        if event == "MESSAGE_CREATE":
            seen = BotMessageSeen(int(message.channel_id), int(message.id), guild)
            self._events.put_quietly(seen)
        return True

    def on_disconnect(self) -> None:
        self._connected = False

    def on_message(self, message: discord.Message) -> None:
        self._events.put(message)

    def on_raw_message_edit(self, change: discord.RawMessageUpdateEvent) -> None:
        message = change.message
        self._events.put(MessageEdited(message))
        thread = message.guild.get_thread(message.id) if message.guild else None
        if thread is not None and thread != message.channel:
            self._events.put(MessageEdited(message, thread))

    def on_raw_message_delete(self, deletion: discord.RawMessageDeleteEvent) -> None:
        ids = frozenset({deletion.message_id})
        self._put_deletion(deletion.channel_id, deletion.guild_id, ids)

    def on_raw_bulk_message_delete(self, deletion: discord.RawBulkMessageDeleteEvent) -> None:
        ids = frozenset(deletion.message_ids)
        if ids:
            self._put_deletion(deletion.channel_id, deletion.guild_id, ids)

    def _put_deletion(self, channel_id: int, guild_id: int | None, ids: frozenset[int]) -> None:
        """Queue a deletion, also for threads that were opened from these messages and know them."""
        self._events.put(MessagesDeleted(channel_id, guild_id, ids))
        guild = self.get_guild(guild_id) if guild_id else None
        for thread in guild.threads if guild else ():
            if thread.id in ids and thread.id != channel_id:
                start = frozenset({thread.id})
                self._events.put(MessagesDeleted(thread.id, guild_id, start))

    def on_guild_join(self, guild: discord.Guild) -> None:
        self._events.put(guild)

    def _queue_command(self, interaction: discord.Interaction) -> asyncio.Future[bool] | None:
        """Queue a command before what follows it; return what is to say whether it is acknowledged.

        None: it is no command, or one that is answered by a form.
        """
        spec = message_command(interaction, self.message_commands)
        if (
            not _is_answerable(interaction)
            or interaction.type not in _COMMANDS
            or (spec is not None and spec.has_form)
            or is_form_of_menu(interaction, self.message_commands)
        ):
            return None
        deferred = asyncio.get_running_loop().create_future()
        self._events.put(CommandReceived(interaction, deferred))
        return deferred

    async def on_interaction(
        self,
        interaction: discord.Interaction,
        *,
        is_replayed: bool = False,
        deferred: asyncio.Future[bool] | None = None,
    ) -> None:
        is_late = is_replayed and _is_too_late(interaction)
        try:
            if deferred is not None:
                is_public = has_public_response(interaction, self.commands)
                deferred.set_result(
                    not is_late and await _defer(interaction, is_command=True, is_public=is_public)
                )
            elif _is_answerable(interaction):
                await self._take_interaction(interaction, is_late=is_late)
        finally:
            if self._unsettled.pop(interaction.id, None) is not None:
                self.on_progress()

    async def _take_interaction(self, interaction: discord.Interaction, *, is_late: bool) -> None:
        if is_late:
            await self._take_late(interaction)
        elif interaction.type is discord.InteractionType.autocomplete:
            await send_suggestions(interaction, self._complete)
        elif (spec := message_command(interaction, self.message_commands)) and spec.has_form:
            form = await self._text_to_edit(interaction)
            await self._open_form(interaction, form_target_id(spec, interaction), form)
        elif is_form_of_menu(interaction, self.message_commands):
            await self._take_press(interaction)
        elif interaction.type is discord.InteractionType.component:
            opened = await self._press_form(interaction)
            if opened is None:
                await self._take_press(interaction)
            else:
                await self._open_form(interaction, custom_id(interaction), opened)

    async def _take_late(self, interaction: discord.Interaction) -> None:
        """Do what was asked, without a response; forms and suggestions are nothing but one."""
        is_press = interaction.type is discord.InteractionType.component
        if is_form_of_menu(interaction, self.message_commands) or (
            is_press and await self._press_form(interaction) is None
        ):
            await self._take_press(interaction, is_late=True)

    async def _open_form(
        self, interaction: discord.Interaction, form_id: str, form: EditableText
    ) -> None:
        """Show a form, or tell the person alone why not.

        There is no timeout of its own: Discord drops a response that comes after 3 s.
        """
        refusal = form.too_long if len(form.text) > MAX_FORM_CHARS else form.refusal
        if refusal:
            await _respond_alone(interaction, refusal)
            return
        path = "/interactions/{webhook_id}/{webhook_token}/callback"
        try:
            async with asyncio.timeout(_DEFER_SECONDS):
                route = Route(
                    "POST", path, webhook_id=interaction.id, webhook_token=interaction.token
                )
                await self.http.request(route, json=form_payload(form_id, form))
        except REQUEST_ERRORS as error:
            _log.warning("discord_form_not_shown", reason=type(error).__name__)

    async def _take_press(self, interaction: discord.Interaction, *, is_late: bool = False) -> None:
        """Acknowledge a press unless it is late: with words for the person alone if refused."""
        refusal = None
        try:
            async with asyncio.timeout(_REFUSAL_SECONDS):
                refusal = await self._press_refusal(interaction)
        except TimeoutError:  # whether it is allowed is checked again before anything is done
            _log.warning("discord_press_not_checked")
        if refusal is not None:
            if not is_late:
                await _respond_alone(interaction, refusal)
            return
        is_urgent = custom_id(interaction).startswith(f"{ButtonAction.STOP}:")
        # The message of any other button is edited, which Discord refuses before this.
        if not is_late and not is_urgent:
            await _defer(interaction, is_command=False)
        self._events.put(ComponentUsed(interaction))
        if not is_late and is_urgent:
            await _defer(interaction, is_command=False)

    @override
    def _get_state(self, **options: Any) -> ConnectionState[Any]:
        """Note what the library does not tell, and hold what it cannot understand yet."""
        state = super()._get_state(**options)
        parse, take = state.parsers["GUILD_CREATE"], self._take_arrival
        state.parsers["GUILD_CREATE"] = noting_arrivals(parse, self.get_guild, take)
        state.parsers["INTERACTION_CREATE"] = self._noting(state.parsers["INTERACTION_CREATE"])
        state.parsers = self._held.hold_unknown(state.parsers)
        return state

    def _take_arrival(self, guild: discord.Guild) -> None:
        if self._connected:  # before, Discord describes the servers of the session
            self._events.put(guild)

    def _noting(self, parse: Callable[[Payload], None]) -> Callable[[Payload], None]:
        """Keep an interaction from counting as received until it is queued or refused."""

        def note_and_parse(data: Payload) -> None:
            number = skip_unreadable("INTERACTION_CREATE", lambda: int(data["id"]))
            if number is not None and self.ws.sequence is not None:
                self._unsettled[number] = self.ws.sequence
                self.loop.call_later(_SETTLED_SECONDS, self._unsettled.pop, number, None)
            parse(data)

        return note_and_parse

    def _set_guilds_known(self) -> None:
        if self._current_session is not None:
            self._current_session.guilds_known.set()


def _is_answerable(interaction: discord.Interaction) -> bool:
    """Return whether there is a channel and a user to answer."""
    return interaction.channel_id is not None and interaction.user is not MISSING


def _is_too_late(interaction: discord.Interaction) -> bool:
    """Return whether Discord replays what it will not let be acknowledged now."""
    return (utcnow() - interaction.created_at).total_seconds() > _DEFER_SECONDS


async def _respond_alone(interaction: discord.Interaction, text: str) -> None:
    try:
        async with asyncio.timeout(_DEFER_SECONDS):
            await interaction.response.send_message(text, ephemeral=True)
    except REQUEST_ERRORS as error:
        _log.warning("discord_press_not_acknowledged", reason=type(error).__name__)


async def _defer(
    interaction: discord.Interaction, *, is_command: bool, is_public: bool = False
) -> bool:
    """Acknowledge an interaction; return whether it is, by us or by a process that was killed.

    Where the response is lost it is tried once more: that tells whether the first one arrived.
    """
    defer, is_alone = interaction.response.defer, is_command and not is_public
    try:
        async with asyncio.timeout(_DEFER_SECONDS):
            try:
                await defer(ephemeral=is_alone, thinking=is_command)
            except (aiohttp.ClientError, OSError):
                await defer(ephemeral=is_alone, thinking=is_command)
    except REQUEST_ERRORS as error:
        if isinstance(error, discord.HTTPException) and error.code == _ACKNOWLEDGED_BEFORE:
            return True
        _log.warning("discord_command_not_acknowledged", reason=type(error).__name__)
        return False
    return True
