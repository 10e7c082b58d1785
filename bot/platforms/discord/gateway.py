"""The gateway client: puts events into a queue, and responds to interactions in time."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import discord
import structlog
from discord import InteractionResponseType as ResponseType
from discord.utils import MISSING, utcnow
from typing_extensions import override

from bot.chat.command import ButtonAction
from bot.chat.incoming import ButtonPress, Incoming, IncomingMessage
from bot.errors import OutcomeUnknown, PlatformError, Unreachable
from bot.platforms.discord import commands, incoming
from bot.platforms.discord.connection import ShardClient
from bot.platforms.discord.internals import parse_or_skip
from bot.platforms.discord.rest import AlreadyAcknowledged, RestClient, RestEndpoint
from bot.platforms.discord.settings import DiscordSettings
from bot.platforms.discord.shards import IdentifyLimits, Shard
from bot.platforms.spec import EditableText, PlatformContext
from bot.value_class import value_class


@value_class
class SessionStarted:
    """A new session has started; messages sent since the last session must be fetched."""

    at: datetime
    guilds_known_event: asyncio.Event = field(default_factory=asyncio.Event)


@value_class
class SessionResumed:
    """A session was resumed. Discord has replayed all missed events, so later events are new."""


IsPublicFuture: TypeAlias = asyncio.Future[bool | None]


@value_class
class CommandReceived:
    interaction: discord.Interaction
    acknowledgment: IsPublicFuture
    """Done when the command is acknowledged; its result is whether everyone sees the response, or
    None if Discord rejected the acknowledgment."""


GatewayEvent = Incoming | CommandReceived | SessionStarted | SessionResumed


async def wait_for_events(
    queue: asyncio.Queue[GatewayEvent], timeout_seconds: float
) -> Sequence[GatewayEvent]:
    """Wait up to `timeout_seconds` for an event; return those up to the next session start."""
    events: list[GatewayEvent] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_seconds):
            events.append(await queue.get())
    # Even after a timeout, take the events that have arrived, because they count as received.
    while not queue.empty() and not (events and isinstance(events[-1], SessionStarted)):
        events.append(queue.get_nowait())
    return events


_log = structlog.get_logger(__name__)
_COMMAND_INTERACTION_TYPES = frozenset(
    {discord.InteractionType.application_command, discord.InteractionType.modal_submit}
)
"""The types of interactions that are commands; a submitted form counts as one."""
_PERMISSION_CHECK_TIMEOUT_SECONDS = 1.5
_RESPONSE_TIMEOUT_SECONDS = 3.0  # Discord ignores later responses
_MAX_NEW_GUILD_AGE = timedelta(minutes=5)
_RESPOND_TO_INTERACTION = RestEndpoint(
    "POST", "/interactions/{}/{}/callback", bucket_id_count=2, is_interaction_callback=True
)
_EPHEMERAL_FLAG = discord.MessageFlags(ephemeral=True).value


class Gateway(ShardClient):
    """The client of one shard; it puts all events into one queue, in Discord's order."""

    def __init__(
        self,
        settings: DiscordSettings,
        rest: RestClient,
        context: PlatformContext,
        bot: discord.Object,
        shard: Shard,
        identify_limits: IdentifyLimits,
    ) -> None:
        intents = discord.Intents(guilds=True, messages=True, message_content=True, reactions=True)
        super().__init__(settings, rest, intents, shard, identify_limits, context.clock)
        self._context = context
        self._bot_user = bot
        self.event_queue = asyncio.Queue[GatewayEvent]()
        """Events in the order in which they were received."""
        self.newest_bot_messages: dict[int, tuple[int, int]] = {}
        """The id of the newest bot message and of its guild (or 0), by channel id."""
        self._response_tasks: set[asyncio.Task[None]] = set()
        self._current_session: SessionStarted | None = None
        self._is_ready = False

    @property
    def connection_error(self) -> str | None:
        """The reason why no events are being received, or None while connected."""
        if self.is_closed():
            return "the Discord client has ended"
        if not self._is_ready:
            return "connecting to the Discord gateway"
        return None if self.is_connected else "the Discord gateway closed the connection"

    def _queue_event(self, event: GatewayEvent | None) -> None:
        if event is not None:
            self.event_queue.put_nowait(event)

    def on_connect(self) -> None:
        """Queue a `SessionStarted` event after an IDENTIFY."""
        self._set_guilds_known_event()
        self.drop_events_of_unloaded_guilds()  # their messages are fetched from the channels
        self._current_session = SessionStarted(utcnow())
        _log.info("discord_session_started")
        self._queue_event(self._current_session)

    def on_ready(self) -> None:
        self._is_ready = True
        self._set_guilds_known_event()

    def on_resumed(self) -> None:
        self._is_ready = True
        self._queue_event(SessionResumed())

    def on_disconnect(self) -> None:
        self._is_ready = False

    @override
    def handle_raw_message(self, event: str, message: dict[str, Any]) -> bool:
        author, guild_id = message.get("author"), int(message.get("guild_id") or 0)
        if not (author and author.get("bot") and self.is_guild_loaded(guild_id)):
            return False
        if event == "MESSAGE_CREATE":
            self.newest_bot_messages[int(message["channel_id"])] = int(message["id"]), guild_id
        return True

    def on_message(self, message: discord.Message) -> None:
        if message.author.bot:  # it is not answered, but the channel's cursor moves past it
            guild_id = message.guild.id if message.guild else 0
            self.newest_bot_messages[message.channel.id] = message.id, guild_id
        else:
            self._queue_event(self.convert_message(message))

    def convert_message(self, message: discord.Message) -> IncomingMessage | None:
        """Convert a new or missed message, or return None if the bot should not read it."""
        bot_id = self._context.bot_id
        return parse_or_skip(
            "MESSAGE", incoming.to_incoming_message, message, self._bot_user, bot_id
        )

    def on_raw_message_edit(self, edit: discord.RawMessageUpdateEvent) -> None:
        message = edit.message
        if message.author.bot:  # includes the bot's own edits of live answers
            return
        self._queue_edit(message)
        # If a thread was started from the message, the thread's history also contains it.
        thread = message.guild.get_thread(message.id) if message.guild else None
        if thread is not None and thread != message.channel:
            self._queue_edit(message, thread)

    def _queue_edit(self, message: discord.Message, thread: discord.Thread | None = None) -> None:
        arguments = message, self._bot_user, self._context.bot_id, thread
        self._queue_event(parse_or_skip("EDIT", incoming.to_message_edit, *arguments))

    def on_raw_message_delete(self, deletion: discord.RawMessageDeleteEvent) -> None:
        self._queue_deletion(deletion.channel_id, deletion.guild_id, {deletion.message_id})

    def on_raw_bulk_message_delete(self, deletion: discord.RawBulkMessageDeleteEvent) -> None:
        if deletion.message_ids:
            self._queue_deletion(deletion.channel_id, deletion.guild_id, deletion.message_ids)

    def _queue_deletion(self, channel_id: int, guild_id: int | None, message_ids: Set[int]) -> None:
        """Queue a deletion in a channel, and in the threads started from the deleted messages."""
        guild = self.get_guild(guild_id) if guild_id else None
        thread_ids = [one.id for one in guild.threads if one.id in message_ids] if guild else []
        for chat_id in dict.fromkeys([channel_id, *thread_ids]):
            channel = guild.get_channel_or_thread(chat_id) if guild else None
            deleted_ids = message_ids if chat_id == channel_id else {chat_id}
            arguments = chat_id, deleted_ids, channel, guild, self._context.bot_id
            self._queue_event(incoming.to_message_deletion(*arguments))

    def on_raw_reaction_add(self, event: discord.RawReactionActionEvent) -> None:
        if event.user_id == self._bot_user.id:
            return
        guild = self.get_guild(event.guild_id) if event.guild_id else None
        channel = guild.get_channel_or_thread(event.channel_id) if guild else None
        # Reactions have no id; the sequence number distinguishes repeated reactions.
        session_id = self.session.id if self.session else ""
        external_key = f"r{event.message_id}:{session_id}:{self.last_handled_sequence}"
        arguments = event, channel, guild, external_key, self._context.bot_id
        self._queue_event(parse_or_skip("REACTION", incoming.to_reaction_change, *arguments))

    on_raw_reaction_remove = on_raw_reaction_add

    def on_guild_join(self, guild: discord.Guild) -> None:
        self._queue_event(incoming.to_chat_join(guild, self._context.bot_id))

    def on_guild_available(self, guild: discord.Guild) -> None:
        """Queue a join event if the bot just joined; Discord also sends this after an outage."""
        joined_at = getattr(guild.me, "joined_at", None)  # the event may lack the bot's member data
        has_just_joined = joined_at is not None and utcnow() - joined_at < _MAX_NEW_GUILD_AGE
        if self._is_ready and has_just_joined and guild.channels:
            self.on_guild_join(guild)

    def _queue_command(self, interaction: discord.Interaction) -> IsPublicFuture | None:
        """Queue a command and return its acknowledgment.

        Return None for other interactions, and for commands that open a form.
        """
        if (
            not _is_answerable(interaction)
            or interaction.type not in _COMMAND_INTERACTION_TYPES
            or commands.should_open_form(interaction, self._context)
            or commands.is_button_form(interaction, self._context.message_commands)
        ):
            return None
        acknowledgment = asyncio.get_running_loop().create_future()
        self._queue_event(CommandReceived(interaction, acknowledgment))
        return acknowledgment

    def on_interaction(self, interaction: discord.Interaction) -> None:
        """Start a task that responds; the interaction counts as received when the task ends."""
        self._unanswered_interactions[interaction.id] = self.sequence
        task = asyncio.create_task(self.respond(interaction, self._queue_command(interaction)))
        self._response_tasks.add(task)
        task.add_done_callback(self._response_tasks.discard)

    async def respond(
        self, interaction: discord.Interaction, acknowledgment: IsPublicFuture | None
    ) -> None:
        """Respond to an interaction. For a queued command, set the result of `acknowledgment`."""
        try:
            if acknowledgment is not None:
                is_public = await self._is_response_public(interaction)
                data = {} if is_public else {"flags": _EPHEMERAL_FLAG}
                kind = ResponseType.deferred_channel_message
                is_response_accepted = await self._send_response(interaction, kind, data)
                acknowledgment.set_result(is_public if is_response_accepted else None)
            elif _is_answerable(interaction):
                await self._handle_interaction(interaction)
        finally:
            self._unanswered_interactions.pop(interaction.id, None)

    async def _is_response_public(self, interaction: discord.Interaction) -> bool:
        """Return whether everyone should see the response to a command. Refusals are private."""
        if not commands.has_public_response(interaction, self._context.commands):
            return False
        command = incoming.to_command_message(interaction, self._context, is_deferred=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PERMISSION_CHECK_TIMEOUT_SECONDS):
                return not await self._context.is_refused(command)
        return False

    async def _handle_interaction(self, interaction: discord.Interaction) -> None:
        context, message_commands = self._context, self._context.message_commands
        is_form_submission = commands.is_button_form(interaction, message_commands)
        if is_form_submission or interaction.type is discord.InteractionType.component:
            press = incoming.to_button_press(interaction, context.bot_id)
            form = None if is_form_submission else await context.find_press_form(press)
            if form is None:
                await self._handle_press(interaction, press)
            else:
                await self._open_form(interaction, press.data, form)
        elif interaction.type is discord.InteractionType.autocomplete:
            typed_text = commands.focused_option_text(interaction)
            command = incoming.to_command_message(interaction, context, is_deferred=False)
            suggestions = () if typed_text is None else await context.suggest(command, typed_text)
            choices = {"choices": commands.to_choices(suggestions)}
            await self._send_response(interaction, ResponseType.autocomplete_result, choices)
        elif commands.should_open_form(interaction, context):
            command = incoming.to_command_message(interaction, context, is_deferred=False)
            target_id = commands.interaction_data(interaction).get("target_id")
            form_id = f"{command.text.removeprefix('/')}:{target_id}" if target_id else command.text
            await self._open_form(interaction, form_id, await context.find_command_form(command))

    async def _open_form(
        self, interaction: discord.Interaction, form_id: str, form: EditableText
    ) -> None:
        refusal = form.too_long_notice if len(form.text) > commands.MAX_FORM_CHARS else form.refusal
        if refusal:
            await self._respond_privately(interaction, refusal)
        else:
            payload = commands.make_form_payload(form_id, form)
            await self._send_response(interaction, ResponseType.modal, payload)

    async def _handle_press(self, interaction: discord.Interaction, press: ButtonPress) -> None:
        """Queue and acknowledge a button press, or refuse it with a private notice."""
        refusal = None
        try:
            async with asyncio.timeout(_PERMISSION_CHECK_TIMEOUT_SECONDS):
                refusal = await self._context.find_press_refusal(press)
        except TimeoutError:  # accept the press for now; it is checked again when processed
            _log.warning("discord_button_press_not_checked")
        if refusal is not None:
            await self._respond_privately(interaction, refusal)
            return
        is_stop_button = press.data.startswith(f"{ButtonAction.STOP}:")
        # Other buttons edit their message, which Discord refuses before the acknowledgment.
        if not is_stop_button:
            await self._send_response(interaction, ResponseType.deferred_message_update)
        self._queue_event(press)
        if is_stop_button:
            await self._send_response(interaction, ResponseType.deferred_message_update)

    async def _respond_privately(self, interaction: discord.Interaction, text: str) -> None:
        data = {"content": text, "flags": _EPHEMERAL_FLAG, "allowed_mentions": {"parse": []}}
        await self._send_response(interaction, ResponseType.channel_message, data)

    async def _send_response(
        self,
        interaction: discord.Interaction,
        kind: ResponseType,
        data: Mapping[str, object] | None = None,
    ) -> bool:
        """Send a response, with at most one retry, and return whether Discord accepted it."""
        ids = str(interaction.id), interaction.token
        body = {"type": kind.value} | ({"data": data} if data else {})
        try:
            async with asyncio.timeout(_RESPONSE_TIMEOUT_SECONDS):
                try:
                    await self._rest.call(_RESPOND_TO_INTERACTION, *ids, body=body)
                except (OutcomeUnknown, Unreachable):
                    await self._rest.call(_RESPOND_TO_INTERACTION, *ids, body=body)
        except AlreadyAcknowledged:
            return True
        except (PlatformError, TimeoutError) as error:
            _log.warning("discord_response_failed", response=kind.name, reason=type(error).__name__)
            return False
        return True

    def _set_guilds_known_event(self) -> None:
        if self._current_session is not None:
            self._current_session.guilds_known_event.set()


def _is_answerable(interaction: discord.Interaction) -> bool:
    return interaction.channel_id is not None and interaction.user is not MISSING
