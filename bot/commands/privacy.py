"""Delete and export people's messages, and handle the commands for both."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from typing_extensions import override

from bot.chat.command import ButtonAction, CommandOption, CommandSpec
from bot.chat.incoming import (
    ChatJoin,
    Incoming,
    IncomingMessage,
    MessageDeletion,
    Request,
    create_forget_requests,
)
from bot.chat.outgoing import Attachment
from bot.chat.session import Consent, HistoryScope
from bot.commands.answers import find_newest_exchange
from bot.commands.authority import AdminCheck, writes_as_group
from bot.commands.personas import UserPersonas
from bot.commands.presets import Greetings
from bot.commands.request import (
    CommandRequest,
    CommandResult,
    admin_command,
    command,
    private_command,
)
from bot.errors import UserError
from bot.ports import ChatSettings, Clock, ConversationMemory
from bot.prompting.presets.preset import Preset
from bot.replying.answer_parts import action_buttons
from bot.routing.presets import OBSERVE_KEY, SCOPE_DESCRIPTIONS, HistoryScopes, PresetResolver
from bot.storage.forgetting import PersonalData
from bot.storage.history_index import SqlHistoryIndex
from bot.storage.memories import SqlMemories
from bot.texts.caches import clear_text_caches
from bot.texts.text import (
    Text,
    join_texts,
    marked,
    to_translatable,
    translatable,
    translatable_count,
)
from bot.value_class import value_class


async def export_messages(
    personal_data: PersonalData, person_id: str, exported_at: datetime
) -> tuple[Attachment, int, int]:
    """Write a person's messages, descriptions, characters and memories to a file.

    Returns the file, its number of messages, and its number of other items.
    """
    content = await personal_data.export(person_id)
    exported_data = {"person": person_id, "exported_at": exported_at.isoformat(), **content}
    text = json.dumps(exported_data, ensure_ascii=False, indent=1)
    other_item_kinds = ("descriptions", "characters", "memories", "reactions")
    other_item_count = sum(len(content[one]) for one in other_item_kinds) + content["confirmed_age"]
    return Attachment("my-words.json", f"{text}\n"), len(content["messages"]), other_item_count


_OVERLAP_SECONDS = 600.0  # each query starts this much earlier: clocks differ, commits are late


@value_class
class DeletionRequests:
    """Queues deletions for the workers of conversations: only they may change histories."""

    personal_data: PersonalData
    personas: UserPersonas
    history_index: SqlHistoryIndex
    history_scopes: HistoryScopes
    add_events: Callable[[Sequence[Incoming]], Awaitable[None]]
    memories: SqlMemories

    async def request_person_deletion(self, request: Request) -> bool:
        """Queue the deletion of a person's data except an opt-out; return whether there is one."""
        person = request.author.id
        conversations = await self.personal_data.list_conversations(person)
        await self._queue_deletions(conversations, request, person)
        await self.personal_data.forget_outside_histories(person)
        await self.personas.delete_settings(person, await self.personal_data.list_settings(person))
        self.history_scopes.resolver.characters.unload(person)
        if await self.history_scopes.resolver.find_opted_out([person]):
            return True
        await self.history_scopes.set_consent(person, None)
        return False

    async def request_histories_deletion(self, message: IncomingMessage) -> int:
        """Queue the deletion of the channel's other histories; return their number of turns."""
        turn_counts = dict(await self.history_index.count_turns(message.address))
        turn_counts.pop(message.address.conversation, None)
        await self._queue_deletions(turn_counts, message, None)
        return sum(turn_counts.values())

    async def _queue_deletions(
        self, conversations: Iterable[str], request: Request, person_id: str | None
    ) -> None:
        event_prefix = f"{request.external_key}:forget"
        if requests := create_forget_requests(conversations, event_prefix, person_id, request.at):
            await self.add_events(requests)

    async def request_copy_deletion(self, message: IncomingMessage, message_id: str) -> None:
        """Queue the deletion of a message's copies in the channel's other histories."""
        if message.address.history:
            deletion = MessageDeletion(
                address=message.address,
                external_key=f"{message.external_key}:copies",
                message_ids=(message_id,),
                at=message.at,
                scopes=message.scopes,
            )
            await self.add_events([deletion])


@dataclass(eq=False)
class ForgottenConversations(ConversationMemory):
    """Makes this process drop conversations that it or another process deleted."""

    memories: Callable[[], Sequence[ConversationMemory]]
    """Returns all parts of this process that hold conversations in memory, such as local models."""
    personal_data: PersonalData
    clock: Clock
    deletion_retention_seconds: float
    """How long rows about forgotten conversations are kept; a new process reads all of them."""

    def __post_init__(self) -> None:
        self._search_start = self.clock.now() - self.deletion_retention_seconds
        self._seen_row_ids = frozenset[int]()

    @override
    async def end_session(self, conversation: str) -> None:
        clear_text_caches()
        for memory in self.memories():
            await memory.end_session(conversation)

    @override
    async def forget(self, conversation: str) -> None:
        clear_text_caches()
        for memory in self.memories():
            await memory.forget(conversation)

    async def drop_deleted_conversations(self) -> None:
        """Drop the conversations that any process deleted since the last call."""
        started_at = self.clock.now()
        deletions = await self.personal_data.find_conversations_with_deletions(self._search_start)
        for key in sorted({key for row, key in deletions.items() if row not in self._seen_row_ids}):
            await self.forget(key)
        self._seen_row_ids, self._search_start = frozenset(deletions), started_at - _OVERLAP_SECONDS


_FORGET_ME_QUESTION = translatable(
    "Delete everything that you said in all channels, and the answers to it? This cannot be undone."
)
_FORGET_ACTION = translatable("make me forget what others said")
_CHANGE_OBSERVING_ACTION = translatable("change what I remember here")
_OBSERVING_ON_NOTICE = translatable(
    "From now on I remember what people say to each other here, if the channel's preset allows it."
)
_OBSERVING_OFF_NOTICE = translatable(
    "From now on I remember only what is said to me here, and my answers."
)

OPTED_OUT_NOTICE = translatable(
    "You've switched me off for yourself: I don't read or store what you write, so I can't answer."
    " /settings me reset switches me back on; /help, /privacy, /export and /forget me still work."
)
_NEW_OPT_OUT_NOTICE = translatable(
    "From now on, I don't store what you write in any chat or send it to any provider, and I leave"
    " out what others quote from you. Within a minute, I delete what you said before, the answers"
    " to it, your description and your own characters. /settings me reset switches me back on."
)
_RESET_CHOICE = "reset"
_CONSENT_TEXTS: Mapping[Consent, Text] = {
    Consent.OFF: OPTED_OUT_NOTICE,
    Consent.HERE: translatable(
        "here: what you say stays in the chat where you said it. Where a channel lets me overhear, "
        "what you say there to others is background for my answers. My memories come only from "
        "what you say to me, and I recall them only in that chat."
    ),
    Consent.SERVER: translatable(
        "server: like `here`, but I may recall what you said in any channel of the same server or"
        " group."
    ),
    Consent.EVERYWHERE: translatable(
        "everywhere: like `here`, but I may recall in any server what you said in another. What you"
        " say in private stays private."
    ),
}
_OPT_OUT_USAGE = translatable("Use /settings me off, here, server, everywhere or reset.")
_RESET_NOTICE = translatable("Your choice was deleted, and the default applies.")
_WRITING_AS_GROUP_NOTICE = translatable(
    "You are writing as the group, like all its anonymous admins. Write under your own name to"
    " choose this for yourself."
)


PRIVACY_GROUP = CommandSpec(
    "privacy",
    marked("show what I read and store here, who gets it, and how to opt out"),
    default_action="show",
)
MAX_EARLIER_MESSAGES = 50
"""The maximum number of earlier messages that are read before the first answer in a channel."""
_PRIVACY_SENTENCE_KEY = "privacy"
_JOIN_NOTICE_SHOWN_KEY = "join_notice"
_SECONDS_BETWEEN_NOTICES = 86_400.0  # no second notice if the bot rejoins a server sooner
_MAX_SENTENCE_CHARS = 500
_COMMA = translatable(", ")
_CHANGE_NOTICE_ACTION = translatable("change what /privacy says")
_NOTICE_HEADING = translatable("What I do with what you write here:")
_READS_ADDRESSED_MESSAGES_LINE = translatable("• I read what is said to me.")
_READS_ALL_LINE = translatable(
    "• I read what is said to me and, as background, what people say to each other here."
)
_READS_EARLIER_LINE = translatable(
    "• Before my first answer in a channel I also read up to {count} earlier messages.",
    count=MAX_EARLIER_MESSAGES,
)
_UNTIL_FORGOTTEN_TEXT = translatable("until somebody deletes it with /forget")
_ENCRYPTED_TEXT = translatable("encrypted")
_NOT_ENCRYPTED_TEXT = translatable("not encrypted")
_HOW_TO_OPT_OUT_LINE = translatable(
    "• With /settings me off, I neither read nor store what you write. /forget me deletes what"
    " you said, and /export sends it to you. With /settings overhear off (admins), I read only"
    " what is said to me."
)


@dataclass(eq=False)
class PrivacyNotice:
    """Explains what the bot reads and stores in a channel under the current settings."""

    resolver: PresetResolver
    history_scopes: HistoryScopes
    chat_settings: ChatSettings
    history_days: float | None
    """How many days the history is kept; None: until somebody deletes it."""
    receipt_days: float
    is_encrypted: bool
    list_recipients: Callable[[Sequence[Preset]], Mapping[str, bool]]
    """Returns who receives messages, and whether the recipient is on this machine."""
    can_read_history: Callable[[str], bool]
    """Returns whether a bot (`Address.source`) can read earlier messages of a channel."""

    async def describe(self, scopes: Sequence[str], source: str) -> Text:
        """Return what /privacy says in a channel."""
        active, history_days = await self.resolver.resolve(scopes), self.history_days
        reads_everything = active.reads_all_messages and await self.resolver.may_observe(scopes)
        scope = await self.history_scopes.find(scopes) or HistoryScope.SHARED
        local_provider_template = marked("{provider} (on this bot's machine)")
        names = [
            translatable(local_provider_template, provider=name) if is_local else name
            for name, is_local in self.list_recipients(active.presets).items()
        ]
        providers_text = join_texts(names, _COMMA)
        retention_text = (
            _UNTIL_FORGOTTEN_TEXT
            if history_days is None
            else translatable("{days} days", days=f"{history_days:g}")
        )
        lines: list[str] = [
            _NOTICE_HEADING,
            _READS_ALL_LINE if reads_everything else _READS_ADDRESSED_MESSAGES_LINE,
            *([_READS_EARLIER_LINE] if reads_everything and self.can_read_history(source) else []),
            translatable(
                "• I store what I read and my answers ({until}), and the exact prompts of my "
                "answers ({days} days). The database is {encrypted}. In this channel, {scope}.",
                until=retention_text,
                days=f"{self.receipt_days:g}",
                encrypted=_ENCRYPTED_TEXT if self.is_encrypted else _NOT_ENCRYPTED_TEXT,
                scope=to_translatable(SCOPE_DESCRIPTIONS[scope]),
            ),
            translatable(
                "• To answer, I send what I read to: {providers}.", providers=providers_text
            ),
            _HOW_TO_OPT_OUT_LINE,
        ]
        if (setting := await self.chat_settings.resolve(scopes, _PRIVACY_SENTENCE_KEY)) is not None:
            lines.append(setting.value)
        return join_texts(lines)

    async def prepare_join_notice(self, join: ChatJoin) -> Text | None:
        """Return the notice for a server that the bot joins; None if shown in the last 24 hours."""
        server = join.scopes[-1]
        stored_notices = await self.chat_settings.get_all([server], _JOIN_NOTICE_SHOWN_KEY)
        shown_at, _, event_key = stored_notices.get(server, "0 ").partition(" ")
        is_repeated = event_key == join.external_key  # the same event after a crash
        if not is_repeated and join.at.timestamp() - float(shown_at) < _SECONDS_BETWEEN_NOTICES:
            return None
        notice_record = f"{join.at.timestamp():.0f} {join.external_key}"
        await self.chat_settings.set(server, _JOIN_NOTICE_SHOWN_KEY, notice_record, server)
        return await self.describe(join.scopes, join.address.source)


@dataclass(eq=False)
class PrivacyHandlers:
    """Handles /forget, /export and /privacy, which anybody may use for their own messages."""

    deletions: DeletionRequests
    admins: AdminCheck
    resolver: PresetResolver
    notice: PrivacyNotice
    greetings: Greetings

    @private_command(
        "privacy show", marked("show what I read and store here, who gets it, and how to opt out")
    )
    async def show_notice(self, request: CommandRequest) -> CommandResult:
        """Say what the bot does with people's words in this channel."""
        message = request.incoming
        return CommandResult(await self.notice.describe(message.scopes, message.address.source))

    @admin_command(
        "privacy edit",
        marked("add a sentence about this server to /privacy; without text, remove it (admins)"),
        CommandOption("text", marked("for example: Ask Ada what the bot is for"), required=False),
    )
    async def set_privacy_sentence(self, request: CommandRequest) -> CommandResult:
        """Store a sentence that admins of the server add to the privacy notice."""
        await self.admins.require_admin(request.incoming, _CHANGE_NOTICE_ACTION)
        sentence = " ".join(request.argument.split())
        if len(sentence) > _MAX_SENTENCE_CHARS:
            max_chars = _MAX_SENTENCE_CHARS
            raise UserError(translatable("Use at most {count} characters.", count=max_chars))
        server = request.incoming.scopes[-1]
        await request.store(
            self.notice.chat_settings, server, _PRIVACY_SENTENCE_KEY, sentence or None
        )
        saved_notice = translatable("/privacy now also says: {text}", text=sentence)
        removed_notice = translatable("/privacy no longer shows the added sentence.")
        return CommandResult(saved_notice if sentence else removed_notice, changes_channel=True)

    @command(
        "forget",
        marked(
            "delete what you said (me), the newest question (last), everything here, or the "
            "message you reply to"
        ),
        CommandOption(
            "what", marked("me, last or channel"), required=False, choices=("me", "last", "channel")
        ),
    )
    async def delete_messages(self, request: CommandRequest) -> CommandResult:
        """Delete a message, the newest question, or everything here; "me" asks first."""
        message, quote, admins = request.incoming, request.incoming.quote, self.admins
        message_id = quote.message_id if quote is not None else None
        has_no_quoted_message = message_id is None
        if quote is not None and not has_no_quoted_message:
            is_own_quote = quote.author is not None and quote.author.id == message.author.id
            is_own_message = is_own_quote or request.is_asker
        elif request.argument == "me":
            choices = (ButtonAction.FORGET, ButtonAction.KEEP_DATA)
            buttons = action_buttons(request.part_name, message.locale, *choices)
            return CommandResult(_FORGET_ME_QUESTION, buttons=buttons)
        elif request.argument == "last":
            exchange = find_newest_exchange(request)
            message_id = exchange.question.message_id if exchange is not None else None
            if exchange is None or message_id is None:
                raise UserError(translatable("There is no question in this conversation yet."))
            is_own_message = exchange.question.is_from(message.author)
        else:
            action = translatable("delete the conversation of this channel")
            await admins.require_admin(
                message, action, refuses_anonymous=True, audit_name="forget channel"
            )
            text = translatable("A new conversation has started.")
            result = CommandResult(
                text, starts_session=True, deletes_history=True, changes_channel=True
            )
            return await self.greetings.add_greeting(result, request)
        if not is_own_message or writes_as_group(message):  # unknown which admin wrote it
            await admins.require_admin(
                message, _FORGET_ACTION, refuses_anonymous=True, audit_name="forget message"
            )
        return CommandResult(
            "", forgotten_message_id=message_id, deletes_answers=has_no_quoted_message
        )

    @private_command("export", marked("send you everything you said to me, as a file"))
    async def export_own_messages(self, request: CommandRequest) -> CommandResult:
        """Send the author's messages as a file."""
        incoming = request.incoming
        data, person = self.deletions.personal_data, incoming.author.id
        file, message_count, _ = await export_messages(data, person, incoming.at)
        text = translatable_count(
            "Everything you said to me: {count} message.",
            "Everything you said to me: {count} messages.",
            message_count,
        )
        return CommandResult(text, file=file)

    @private_command(
        "settings me",
        marked("choose what I may do with what you write in all chats, or show your choice"),
        CommandOption(
            "value",
            marked("off, here, server, everywhere or reset"),
            required=False,
            choices=(*Consent, _RESET_CHOICE),
        ),
    )
    async def choose_consent(self, request: CommandRequest) -> CommandResult:
        """Store the author's consent choice; "off" also deletes their earlier messages."""
        choice, message = request.argument, request.incoming
        if not choice:
            consent = await self.resolver.find_consent(message.author.id)
            return CommandResult(
                join_texts([_CONSENT_TEXTS[consent or Consent.HERE], _OPT_OUT_USAGE])
            )
        if writes_as_group(message):
            raise UserError(_WRITING_AS_GROUP_NOTICE)
        new_consent = None if choice == _RESET_CHOICE else Consent(choice)
        self.deletions.personal_data.record_consent(message.author.id, new_consent or "")
        await self.deletions.history_scopes.set_consent(message.author.id, new_consent)
        await self.deletions.memories.apply_consent_to_audiences(message.author.id)
        if new_consent is Consent.OFF:
            await self.deletions.request_person_deletion(message)
            return CommandResult(_NEW_OPT_OUT_NOTICE)
        if new_consent is None:
            return CommandResult(join_texts([_RESET_NOTICE, _CONSENT_TEXTS[Consent.HERE]], " "))
        return CommandResult(_CONSENT_TEXTS[new_consent])

    @admin_command(
        "settings overhear",
        marked("choose whether I remember what people say to each other here (admins)"),
        CommandOption("value", marked("on, off or inherit"), choices=("on", "off", "inherit")),
    )
    async def set_observing(self, request: CommandRequest) -> CommandResult:
        """Choose whether messages between people in this channel are remembered."""
        await self.admins.require_admin(request.incoming, _CHANGE_OBSERVING_ACTION)
        setting_value = None if request.argument == "inherit" else request.argument
        await request.store(self.notice.chat_settings, request.scope, OBSERVE_KEY, setting_value)
        is_observing = await self.resolver.may_observe(request.incoming.scopes)
        return CommandResult(
            _OBSERVING_ON_NOTICE if is_observing else _OBSERVING_OFF_NOTICE, changes_channel=True
        )
