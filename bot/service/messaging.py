"""The part of the container that creates the components for receiving and sending."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial

from bot.chat.command import (
    ANSWERING_ACTIONS,
    FORM_ACTIONS,
    ButtonAction,
    parse_button,
    parse_command,
)
from bot.chat.incoming import Address, ButtonPress, Incoming, IncomingMessage, MediaItem, Request
from bot.chat.outgoing import OutboxRow
from bot.commands.answers import AnswerButtons
from bot.commands.authority import AdminCheck
from bot.commands.characters import CharacterHandlers
from bot.commands.menus import INPUT_FORM_LABELS
from bot.console.server import RouteAdder, webhook_routes
from bot.delivery.pacing import RateLimitedSurface
from bot.delivery.sender import (
    SENT_ROWS_TOPIC,
    RowDispatcher,
    Sender,
    SentRowTracker,
    publish_sent_row,
)
from bot.errors import PlatformError, Refused, StoreError, UserError
from bot.intake import HistoryRouter, InboxIntake
from bot.platforms.spec import EditableText
from bot.ports import (
    Delivery,
    FileSource,
    HistoryReader,
    PictureHost,
    Platform,
    PrivateChats,
    ShardedPlatform,
    SilenceExplainer,
    Surface,
    WebhookReceiver,
)
from bot.replying.live_reply import LiveReplies
from bot.routing.decide import AccessRules
from bot.routing.presets import HistoryScopes
from bot.runtime.keyed_worker_pool import KeyedWorkerPool, urgent_topic, wake_keys
from bot.service.exclusive_role import ExclusiveReceiver, ShardReceiver
from bot.service.options import Role
from bot.service.platform_supervisor import PlatformSupervisor, Receiver
from bot.service.stores import StorageContainer
from bot.storage.chat_settings import CachedChatSettings
from bot.telemetry.metrics import HELD_ROLES
from bot.texts.text import Text, supported_language, to_translatable, translatable, translate
from bot.turn.claims import LeaseKeeper
from bot.turn.signals import CONVERSATIONS_TOPIC, StopRequests

_MAX_SCOPE_AGE_SECONDS = 3.0  # only Redis signals changes by other processes
_SECONDS_BETWEEN_CLEANUPS = 60.0
_LANE_QUEUE_NAME = "lanes"
_MAX_CONCURRENT_LANES = 4000  # concurrently in one process
_MAX_EXTRA_LANES = 32  # beyond the limit, for responses to native commands
_EDIT_FORM_TEXTS = translatable("Edit a message"), translatable("New text")
_TOO_LONG_NOTICE = translatable("This text is too long to edit in a form.")
_CHARACTER_FORM_TITLE = translatable("Your own character")
_TRY_AGAIN_NOTICE = translatable("That didn't work. Please try again in a moment.")


def _make_form(form_texts: tuple[Text, Text], text: str, language: str) -> EditableText:
    title, label = (translate(one, language) for one in form_texts)
    return EditableText(title, label, text, too_long_notice=translate(_TOO_LONG_NOTICE, language))


class MessagingContainer(StorageContainer, ABC):
    """Creates platforms, permissions and intake, and the queues and surfaces for sending."""

    @property
    @abstractmethod
    def platforms(self) -> Mapping[str, Platform]:
        """The platforms by `Address.source`, one per bot."""

    # calls to platforms other than sending

    async def is_platform_admin(self, incoming: Request) -> bool:
        return await self.platforms[incoming.address.source].is_admin(incoming)

    async def explain_silence(self, message: IncomingMessage, explanation: Text) -> None:
        """Tell the author privately why no character answers, if the platform supports this."""
        platform = self.platforms[message.address.source]
        if isinstance(platform, SilenceExplainer):
            text = translate(explanation, supported_language(message.locale))
            with suppress(PlatformError):  # the channel was deleted
                await platform.explain_silence(message, text)

    async def download(self, address: Address, item: MediaItem, max_bytes: int) -> bytes:
        """Return the content of an attachment; raises `Refused`."""
        platform = self.platforms[address.source]
        if not isinstance(platform, FileSource):
            raise Refused(f"{platform.name} does not store files")
        return await platform.download(item, max_bytes)

    async def host_picture(self, address: Address, png: bytes) -> str | None:
        """Upload a picture and return its URL, or None if the platform hosts no pictures."""
        platform = self.platforms[address.source]
        return await platform.host_picture(png) if isinstance(platform, PictureHost) else None

    async def delete_unused_pictures(self) -> None:
        """Delete pictures that no character uses, every minute, until cancelled."""
        picture_hosts = [one for one in self.platforms.values() if isinstance(one, PictureHost)]
        while True:
            await self.clock.sleep(_SECONDS_BETWEEN_CLEANUPS)
            for host in picture_hosts:
                with suppress(PlatformError, StoreError):  # the next run repeats it
                    await host.delete_unused_pictures(await self.preset_versions.picture_urls())

    async def read_before(self, message: IncomingMessage, limit: int) -> Sequence[IncomingMessage]:
        """Return earlier messages by people who may use the bot, oldest first.

        The caller checks whether the chat's messages may be read at all.
        """
        platform = self.platforms[message.address.source]
        if not isinstance(platform, HistoryReader):
            return ()
        messages = await platform.read_before(message, limit)
        return [one for one in messages if await self.access.find_refusal(one) is None]

    async def read_thread_starter(self, message: IncomingMessage) -> IncomingMessage | None:
        """Return the message that started a thread, or None if unknown or not readable."""
        platform = self.platforms[message.address.source]
        if not isinstance(platform, HistoryReader):
            return None
        start = await platform.read_thread_starter(message)
        return None if start is None or await self.access.find_refusal(start) is not None else start

    async def read_author_roles(self, event: Request) -> tuple[str, ...] | None:
        """Return the ids of the author's roles, or None if the platform cannot tell."""
        platform = self.platforms[event.address.source]
        if not isinstance(platform, HistoryReader):
            return ()
        with suppress(PlatformError):
            return await platform.read_author_roles(event)
        return None

    async def is_refused(self, message: IncomingMessage) -> bool:
        """Return True if the author may not use the bot, or if that cannot be determined."""
        try:
            return await self.access.find_refusal(message) is not None
        except StoreError:
            return True

    # forms that platforms open before a request is stored

    async def find_press_form(self, press: ButtonPress) -> EditableText | None:
        """Return the form that a button opens, or None if it opens no form."""
        button = parse_button(press)
        if button is None or button.action not in FORM_ACTIONS:
            return None
        refusal = await self.answer_buttons.find_refusal_reason(replace(press, values=("",)))
        if refusal is not None:
            return EditableText(refusal=refusal)
        text = ""
        if button.action is ButtonAction.ENTER_BIO:
            with suppress(StoreError):  # the form is empty
                persona = await self.personas.find(press.author.id, press.scopes)
                text = persona.value if persona is not None else ""
        return _make_form(INPUT_FORM_LABELS[button.action], text, supported_language(press.locale))

    @cached_property
    def characters(self) -> CharacterHandlers:
        limits = self.settings.limits
        return CharacterHandlers(
            *(self.resolver, self.preset_versions, self.admins),
            *(self.download, self.host_picture),
            *(limits.characters_per_person, limits.characters_per_server, limits.card_bytes),
        )

    async def find_command_form(self, message: IncomingMessage) -> EditableText:
        """Return the form that a command opens: to edit a message, or a character."""
        language = supported_language(message.locale)
        command = parse_command(message.text)
        name = f"{command.name} {command.text.partition(' ')[0]}" if command else ""
        try:
            if command is not None and command.name == "edit":
                routed_message = await self.history_router.assign_command_to_history(message)
                text = await self.answer_buttons.find_text_to_edit(routed_message)
                return _make_form(_EDIT_FORM_TEXTS, text, language)
            if await self.access.may_run_admin_command(message, name):  # which an admin may do
                message = replace(message, author_is_admin=True)
            fields = await self.characters.load_form(message)
        except (UserError, StoreError) as error:
            problem = error.text if isinstance(error, UserError) else _TRY_AGAIN_NOTICE
            return EditableText(refusal=translate(problem, language))
        return EditableText(
            translate(_CHARACTER_FORM_TITLE, language),
            fields=tuple(
                EditableText(
                    one.name,
                    translate(to_translatable(one.summary), language),
                    text,
                    max_chars=one.max_form_chars,
                    is_required=one.name in {"name", "persona"},
                )
                for one, text in fields
            ),
        )

    async def suggest(self, message: IncomingMessage, text: str) -> Sequence[str]:
        """Return suggestions for a partly typed command; an empty list if the database fails."""
        with suppress(StoreError):
            return await self.characters.suggest_names(message, text)
        return ()

    # permissions

    @cached_property
    def admins(self) -> AdminCheck:
        return AdminCheck(
            self.settings.admins,
            self.is_platform_admin,
            self.clock,
            self.chat_settings,
            reveals_presets_in_private=self.settings.private_prompts,
            shows_prompts_in_groups=self.settings.group_prompts or self.chats_in_terminal,
            audit_log=self.audit_log,
        )

    @cached_property
    def access(self) -> AccessRules:
        local_platforms = [one.kind for one in self.specs if one.uses_terminal or one.is_companion]
        return AccessRules(
            self.chat_settings,
            self.admins.was_recently_admin,
            self.settings.admins,
            self.read_author_roles,
            local_platforms=local_platforms,
            fixed_rules=self.settings.access.fixed_rules,
            reports_refusals=self.settings.access.tell,
        )

    @cached_property
    def history_scopes(self) -> HistoryScopes:
        settings = self.chat_settings
        if not isinstance(settings, CachedChatSettings):  # it is read for every received event
            max_age_seconds = _MAX_SCOPE_AGE_SECONDS
            settings = CachedChatSettings(settings, self.signals, self.clock, max_age_seconds)
        return HistoryScopes(settings, self.resolver)

    @cached_property
    def history_router(self) -> HistoryRouter:
        return HistoryRouter(self.history_scopes.find, self.history_index)

    @cached_property
    def answer_buttons(self) -> AnswerButtons:
        refusal = self.command_limits.find_press_refusal if self.command_limits else None
        route_press = self.history_router.assign_press_to_history
        return AnswerButtons(
            self.conversations, self.inbox, self.admins, route_press, self.access, refusal
        )

    # receiving

    @cached_property
    def receivers(self) -> Mapping[str, Receiver]:
        """The platforms' receivers by source; each runs in one process at a time."""
        if Role.GATEWAY not in self.options.roles:
            return {}
        if self.runs_alone or self.chats_in_terminal:
            for source in self.platforms:  # no other process can hold the role
                HELD_ROLES.labels(f"receive {source}").set(1)
            return self.platforms
        return {
            source: ShardReceiver(one, source, self.owner, self.role_leases, self.clock)
            if isinstance(one, ShardedPlatform)
            else ExclusiveReceiver(one, self.exclusive_role(f"receive {source}"))
            for source, one in self.platforms.items()
        }

    @cached_property
    def supervisor(self) -> PlatformSupervisor:
        companion_names = [spec.kind for spec in self.specs if spec.is_companion]
        return PlatformSupervisor(
            self.receivers.values(), self._intake, self.clock, self.announce, companion_names
        )

    @cached_property
    def _intake(self) -> InboxIntake:
        return InboxIntake(
            *(self.inbox, self._wake_conversations, self._announce_urgent, self.history_router),
            self.restore_filter.filter_event,
            self.history_scopes.find_opted_out,
            self.chat_settings,
        )

    @property
    def webhook_routes(self) -> RouteAdder:
        """The webhook routes, which standby processes serve, too."""
        platforms = [self.platforms[source] for source in self.receivers]
        webhook_receivers = [one for one in platforms if isinstance(one, WebhookReceiver)]
        return webhook_routes(webhook_receivers, self._intake)

    async def receive(self, events: Sequence[Incoming]) -> None:
        """Receive events that this process created itself: store them."""
        intake = InboxIntake(self.inbox, self._wake_conversations, router=self.history_router)
        await intake.receive(events, {})

    def _wake_conversations(self, keys: Sequence[str]) -> None:
        """Signal to all processes that conversations have unanswered messages."""
        self.signals.publish(CONVERSATIONS_TOPIC, keys)

    def _announce_urgent(self, messages: Sequence[Incoming]) -> None:
        """Signal urgent messages to all processes, before waking the conversations."""
        self.stop_requests.announce(messages)
        keys = [one.address.conversation for one in messages if _is_urgent(one)]
        if keys:
            self.signals.publish(urgent_topic(CONVERSATIONS_TOPIC), keys)

    # stopping answers

    @cached_property
    def stop_requests(self) -> StopRequests:
        admins = self.admins
        return StopRequests(self.signals, admins.find_admin_status, admins.record_admin_action)

    # sending

    @cached_property
    def lane_pool(self) -> KeyedWorkerPool[OutboxRow]:
        """The pool that sends queued messages; a lane is the queue of one channel."""
        return KeyedWorkerPool(
            _LANE_QUEUE_NAME,
            signals=self.signals,
            find_ready_keys=lambda limit: self.outbox.list_due_lanes(limit, self.platforms.keys()),
            claim=self._sender.claim,
            process=self._sender.deliver_lane,
            max_concurrent=_MAX_CONCURRENT_LANES,
            extra_urgent_slots=_MAX_EXTRA_LANES,
            seconds_on_hold=self._sender.seconds_on_hold,
            clock=self.clock,
        )

    @cached_property
    def _sender(self) -> Sender:
        return Sender(
            self.outbox,
            self.rate_limited_surfaces(is_best_effort=False),
            self.clock,
            settle_seconds=self.settings.delivery.settle_seconds,
            announce_done_row=self._tell_workers_of_sent_row,
            call_queue=self._call_queue,
            private_chats=self.private_chats,
            wake=lambda lanes: self.lane_pool.wake(lanes),
        )

    def _tell_workers_of_sent_row(self, row_id: int, external_id: str | None) -> None:
        """Unless this process is a worker, tell workers in other processes that a row was sent."""
        if Role.WORKER not in self.options.roles:
            publish_sent_row(self.signals, row_id, external_id)

    @cached_property
    def _delivery(self) -> Delivery:
        if Role.SENDER in self.options.roles:
            lane_pool = self.lane_pool
            return RowDispatcher(self._sender.sent_row_tracker, lane_pool.wake, lane_pool.start)
        sent_row_tracker = SentRowTracker(self.outbox)
        self.signals.subscribe(SENT_ROWS_TOPIC, sent_row_tracker.record_announced_rows)
        return RowDispatcher(sent_row_tracker, partial(wake_keys, self.signals, _LANE_QUEUE_NAME))

    @cached_property
    def replies(self) -> LiveReplies:
        """Creates live replies, which show answers during generation."""
        surfaces = self.rate_limited_surfaces(is_best_effort=True)
        return LiveReplies(
            self.conversations,
            surfaces,
            self._delivery,
            self.clock,
            self.lease_keeper.is_safely_held,
        )

    @cached_property
    def lease_keeper(self) -> LeaseKeeper:
        """The component that renews this process's claims on conversations."""
        return LeaseKeeper(self.conversations, self.clock)

    @property
    def private_chats(self) -> dict[str, PrivateChats]:
        """The platforms that can open private chats, by `Address.source`."""
        return {name: one for name, one in self.platforms.items() if isinstance(one, PrivateChats)}

    def rate_limited_surfaces(self, *, is_best_effort: bool) -> dict[str, Surface]:
        """Return surfaces by `Address.source`; if `is_best_effort`, other calls take precedence."""
        return {
            name: RateLimitedSurface(
                platform.surface,
                self.rate_limits,
                self.clock,
                is_best_effort=is_best_effort,
                settings=self.settings.delivery,
                call_queue=self._call_queue,
            )
            for name, platform in self.platforms.items()
        }


def _is_urgent(event: Incoming) -> bool:
    match event:
        case IncomingMessage(text=text):
            return parse_command(text) is not None
        case ButtonPress():
            button = parse_button(event)
            return button is not None and button.action not in ANSWERING_ACTIONS
        case _:
            return False
