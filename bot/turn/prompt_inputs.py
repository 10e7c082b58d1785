"""Load the inputs of a prompt: history, files, stories, summaries, tools."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import TypeVar

import structlog

from bot.chat.incoming import Address, IncomingMessage, WakeReason, find_person_ids
from bot.chat.outgoing import Limits, OutgoingPart
from bot.chat.prompt import ToolSpec
from bot.chat.receipt import DroppedItem, Receipt
from bot.chat.session import (
    NO_FILES,
    AttachedFiles,
    Claim,
    InboxMessage,
    Session,
    Turn,
    TurnFilter,
    TurnRange,
    TurnResult,
    text_with_attachments,
)
from bot.chat.story import Story
from bot.commands.personas import UserPersonas
from bot.commands.privacy import MAX_EARLIER_MESSAGES, OPTED_OUT_NOTICE
from bot.commands.request import OpenQuestion
from bot.errors import PlatformError, PluginFailed, PrivateError
from bot.intake import redact_message, to_storable_message
from bot.media.attachment_reader import AttachmentReader
from bot.memory.recall import MemoryRecaller
from bot.memory.stories import RetrieveStories
from bot.memory.summaries import Summarizer
from bot.ports import Backend, Clock, ToolServer
from bot.prompting.compose.compose import (
    choose_template,
    compose,
    find_limit_for_lore_and_memory,
    fit_for_backend,
)
from bot.prompting.draft import Draft, PromptPart
from bot.prompting.fit import FittedPrompt
from bot.prompting.presets.preset import Preset
from bot.prompting.speakers import label_speakers
from bot.replying.answer_parts import select_message_parts
from bot.replying.live_reply import LiveReply
from bot.routing.presets import ActiveCharacters, ActivePreset, PresetResolver, remove_turns_of
from bot.runtime import plugins
from bot.storage.conversations import Conversations
from bot.storage.history_index import SqlHistoryIndex
from bot.texts.text import Text
from bot.tools import (
    REACT_TOOL,
    Tool,
    Toolbox,
    ToolFailed,
    dice_tool,
    history_tool,
    plugin_tools,
    react_tool,
    reaction_line,
    server_tools,
    story_tool,
    time_tool,
)
from bot.turn.message_groups import MessageGroup, user_turn
from bot.value_class import value_class

_log = structlog.get_logger(__name__)
_Result = TypeVar("_Result")
_READ_TIMEOUT_SECONDS = 3.0  # the answer waits for this


@dataclass(eq=False)
class ChannelReader:
    """Fetches messages that the bot did not receive, and returns them as turns."""

    read_messages_before: Callable[[IncomingMessage, int], Awaitable[Sequence[IncomingMessage]]]
    """Returns the N messages before a message, oldest first; raises `PlatformError`."""
    read_thread_starter_message: Callable[[IncomingMessage], Awaitable[IncomingMessage | None]]
    """Returns the message that a thread was opened from; raises `PlatformError`."""
    find_retention_start: Callable[[], float]
    """Returns the time before which messages are not kept, in Unix seconds."""

    async def read_earlier_messages(
        self, message: IncomingMessage, active: ActiveCharacters, turns: Sequence[Turn] = ()
    ) -> tuple[Turn, ...]:
        """Return earlier messages that are not stored, oldest first; empty if reading fails."""
        if message.wake is WakeReason.DM or not active.reads_all_messages:
            return ()
        if message.address.history:  # the channel's other messages belong to other histories
            return ()
        request = self.read_messages_before(message, MAX_EARLIER_MESSAGES)
        events = await _read_or_none(message, request) or ()
        known_ids = {turn.message_id for turn in turns}
        return self._observed_turns([one for one in events if one.message_id not in known_ids])

    async def read_thread_starter(
        self, message: IncomingMessage, active: ActiveCharacters, turns: Sequence[Turn]
    ) -> tuple[Turn, ...]:
        """Return the message that a new thread was opened from, unless it is stored."""
        is_new_thread = message.in_thread and not any(turn.role == "assistant" for turn in turns)
        if not (is_new_thread and active.reads_all_messages):
            return ()
        if message.address.history or message.opened_from is not None:
            return ()
        starter_id = message.address.chat  # Discord gives a thread the id of this message
        if starter_id in {message.message_id, *(turn.message_id for turn in turns)}:
            return ()
        starter_message = await _read_or_none(message, self.read_thread_starter_message(message))
        return self._observed_turns([starter_message] if starter_message is not None else [])

    def _observed_turns(self, events: Sequence[IncomingMessage]) -> tuple[Turn, ...]:
        start = self.find_retention_start()
        kept_events = (
            one for one in events if one.at.timestamp() >= start and text_with_attachments(one)
        )
        turns = (user_turn(to_storable_message(one)) for one in kept_events)
        return tuple(replace(turn, files=(), is_observed=True) for turn in turns)


async def _read_or_none(message: IncomingMessage, request: Awaitable[_Result]) -> _Result | None:
    try:
        async with asyncio.timeout(_READ_TIMEOUT_SECONDS):
            return await request
    except (PlatformError, TimeoutError) as error:
        conversation, reason = message.address.conversation, str(error) or "no answer"
        _log.info("channel_not_read", conversation=conversation, reason=reason)
        return None


_MANY_LOREBOOK_ENTRIES = 100  # searching 1,000 entries takes 10 ms
_MAX_LOADED_TURNS = 400
_MIN_TOKENS_PER_TURN = 10  # on average; limits the number of loaded turns


@value_class
class TurnContext:
    """The data that all speakers of a turn share, and the answers so far."""

    claim: Claim
    message: InboxMessage
    incoming: IncomingMessage
    active: ActiveCharacters
    session: Session
    character_names: Mapping[str, str]
    """The names of characters that are active or in the history, by preset."""
    personas: Mapping[str, str]
    """People's descriptions of themselves, by user id."""
    files: AttachedFiles = NO_FILES
    unstored_turns: tuple[Turn, ...] = ()
    """Turns of the session that are not stored yet: messages read from a new channel."""
    first_part_number: int = 0
    """The number of the answer's first part; earlier parts belong to a dropped answer."""
    replaced_part_names: tuple[str, ...] = ()
    """The names of the earlier parts whose messages this answer replaces."""
    replaces_answers: bool = False
    """Whether the question was answered before; the new answer should then differ."""
    started_part_numbers: list[int] = field(default_factory=list)
    """The numbers of the parts whose messages were sent during generation."""
    turns: list[Turn] = field(default_factory=list)
    parts: list[OutgoingPart] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    replies: list[LiveReply] = field(default_factory=list)
    notices: list[Text] = field(default_factory=list)
    """Notices by the service, sent after the answers."""
    reactions_by_preset: dict[str, str] = field(default_factory=dict)
    """The emoji reaction that a model chose, by preset; at most one per message."""

    @property
    def next_part_number(self) -> int:
        """The number of the first message part that the next character sends."""
        next_part_numbers = [one + 1 for one in select_message_parts(self.started_part_numbers)]
        complete_part_count = len(select_message_parts(one.number for one in self.parts))
        return max(self.first_part_number + complete_part_count, *next_part_numbers, 0)

    def to_result(self, *, was_stopped: bool) -> TurnResult:
        """Return a result with the answers collected so far."""
        started_part_numbers = select_message_parts(self.started_part_numbers)
        return TurnResult(
            self.turns,
            self.parts,
            self.receipts,
            was_stopped=was_stopped,
            next_part_number=max(
                self.first_part_number, *(one + 1 for one in started_part_numbers), 0
            ),
            channel_turns=self.unstored_turns,
        )

    def part_name(self, part_number: int) -> str:
        return self.message.choose_part_name(self.replaced_part_names, part_number)


@value_class
class PromptSources:
    """Loads everything a prompt needs: history, names, personas, stories and summaries."""

    conversations: Conversations
    resolver: PresetResolver
    personas: UserPersonas
    retrieve_stories: RetrieveStories | None
    """Retrieves stories; None if no preset has stories."""
    summarizer: Summarizer
    channel_reader: ChannelReader
    attachment_reader: AttachmentReader
    backends: Mapping[str, Backend]
    """Backends by provider."""
    index: SqlHistoryIndex
    recaller: MemoryRecaller
    may_spend: bool = True
    """Whether searching for stories and memories may use a paid embedding service."""

    async def load_context(
        self,
        group: MessageGroup,
        question: OpenQuestion,
        active: ActiveCharacters,
        removed_turns: TurnRange | None = None,
        session_override: Session | None = None,
        first_part_number: int = 0,
    ) -> TurnContext:
        """Load what all speakers of a turn share; load pictures only if a model can see them."""
        incoming, speakers = question.incoming, question.speakers
        claim, message, gathered_turns = group.claim, group.message, question.earlier_turns
        max_turns = _choose_turn_limit(speakers)
        session = session_override or await self._load_session(claim, max_turns, removed_turns)
        if len(session.turns) > max_turns:
            session = replace(session, turns=session.turns[-max_turns:])
        # Later sessions start after /new or /forget, so that earlier messages must not be read.
        is_new_question = session_override is None and removed_turns is None and session.number == 1
        has_all_turns = len(session.turns) < max_turns
        is_first_answer = is_new_question and has_all_turns and not session.has_answer
        user_ids = [one.speaker.id for one in session.turns if one.speaker]
        opted_out_ids = await self.resolver.find_opted_out([*find_person_ids(incoming), *user_ids])
        readable_message = redact_message(incoming, opted_out_ids) if opted_out_ids else incoming
        if readable_message is None or readable_message.is_withheld:  # they have just opted out
            raise PrivateError(OPTED_OUT_NOTICE)
        if opted_out_ids:
            session = replace(session, turns=remove_turns_of(opted_out_ids, session.turns))
        session = _without_old_greetings(session, active)
        incoming = await self._without_forgotten_quote(readable_message, session)
        first_event = message.incoming if gathered_turns else incoming
        oldest_message = first_event if isinstance(first_event, IncomingMessage) else incoming
        history, earlier_turns, thread_turns = session.turns, tuple[Turn, ...](), tuple[Turn, ...]()
        is_first_read = is_first_answer or (is_new_question and oldest_message.in_thread)
        may_observe = is_first_read and await self.resolver.may_observe(oldest_message.scopes)
        if may_observe and is_first_answer:
            turns = await self.channel_reader.read_earlier_messages(oldest_message, active, history)
            earlier_turns = await self.resolver.remove_opted_out_turns(turns)
        if earlier_turns:
            history = tuple(sorted((*earlier_turns, *history), key=lambda one: one.at))
        if may_observe:
            turns = await self.channel_reader.read_thread_starter(oldest_message, active, history)
            thread_turns = await self.resolver.remove_opted_out_turns(turns)
        if thread_turns or earlier_turns or gathered_turns:
            session = replace(session, turns=(*thread_turns, *history, *gathered_turns))
        files = NO_FILES
        has_files = incoming.attachments or incoming.earlier_files or incoming.repeated_files
        if has_files or incoming.quote or "://" in incoming.text:  # there may be files
            sees_images = any(self._sees_images(one.preset) for one in speakers)
            files = await self.attachment_reader.read(incoming, reads_images=sees_images)
        presets_in_history = {turn.preset for turn in session.turns if turn.preset}
        return TurnContext(
            *(claim, message, incoming, active, session),
            self.resolver.character_names(active.names | presets_in_history),
            await self.personas.resolve_for_speakers(session, incoming),
            files,
            (*thread_turns, *earlier_turns),
            first_part_number,
            question.replaced_part_names,
            replaces_answers=removed_turns is not None,
        )

    async def _load_session(
        self, claim: Claim, max_turns: int, removed_turns: TurnRange | None
    ) -> Session:
        if removed_turns is None:
            return await self.conversations.load_session(claim, max_turns)
        turns_to_load = max_turns + removed_turns.newer_turn_count + removed_turns.count
        session = await self.conversations.load_session(claim, turns_to_load)
        return replace(session, turns=removed_turns.remove_from(session.turns))

    async def _without_forgotten_quote(
        self, message: IncomingMessage, session: Session
    ) -> IncomingMessage:
        """Remove the text of a quoted answer if the answer was forgotten in all histories."""
        quote = message.quote
        if quote is None or not quote.is_ours or quote.message_id is None:
            return message
        if any(quote.text in one.text for one in session.turns if one.role == "assistant"):
            return message
        if not await self.index.is_forgotten(message.address, quote.message_id):
            return message
        return replace(message, quote=replace(quote, text="", attachments=()))

    async def fit_prompt(
        self, preset: Preset, context: TurnContext, tools: Sequence[ToolSpec] = ()
    ) -> FittedPrompt:
        """Compose a prompt that fits the token limit; raises `UserError` or `BackendError`."""
        backend = self.backends[preset.provider]
        max_prompt_tokens = await find_limit_for_lore_and_memory(preset, backend)
        draft = await self.compose_draft(preset, context, max_prompt_tokens)
        if not tools:
            return await fit_for_backend(preset, draft, backend)
        draft = replace(draft, empty_prompt=replace(draft.empty_prompt, tools=tuple(tools)))
        fitted_prompt = await fit_for_backend(preset, draft, backend)
        return replace(fitted_prompt, prompt=replace(fitted_prompt.prompt, tools=()))

    async def compose_draft(
        self, preset: Preset, context: TurnContext, max_prompt_tokens: int | None = None
    ) -> Draft:
        """Compose a speaker's complete prompt, which may be longer than the token limit."""
        message, files = context.incoming, context.files
        if files.images and not self._sees_images(preset):
            files = replace(files, images=())
        retrieve, may_spend = self.retrieve_stories, self.may_spend
        stories = await retrieve(preset, message.text, may_spend) if retrieve else None
        summary = await self.summarizer.load_summary_part(preset, context.claim.conversation)
        memories = None
        if preset.memory:
            turns = (*context.session.turns, *context.turns)
            memories = await self.recaller.recall(preset.name, message, turns, may_spend=may_spend)
        compose_draft = partial(
            compose,
            preset,
            context.session,
            message,
            characters=context.character_names,
            answers=tuple(context.turns),
            personas=context.personas,
            stories=stories,
            summary=summary,
            memories=memories,
            max_prompt_tokens=max_prompt_tokens,
            is_retry=context.replaces_answers,
            files=files,
        )
        lorebook = preset.parsed_lorebook
        if lorebook is None or len(lorebook.entries) < _MANY_LOREBOOK_ENTRIES:
            draft = compose_draft()
        else:
            draft = await asyncio.to_thread(compose_draft)
        return await _add_plugin_parts(draft, preset, message)

    def _sees_images(self, preset: Preset) -> bool:
        return self.backends[preset.provider].sees_images(preset.model)


async def _add_plugin_parts(draft: Draft, preset: Preset, message: IncomingMessage) -> Draft:
    """Add plug-ins' texts before the newest message; record failures for the receipt."""
    origin = (preset.name, message.address.platform, message.address.channel)
    hook_context = plugins.HookContext(*origin, message.author.name, message.text, message.at)
    parts: list[PromptPart] = []
    failures: list[DroppedItem] = []
    for name, hook in plugins.HOOKS["prompt_parts"].items():
        try:
            texts = await plugins.get_prompt_parts(name, hook, hook_context)
        except PluginFailed as error:
            failures.append(DroppedItem("plugin", name, str(error)))
        else:
            parts += [PromptPart("plugin", text, name) for text in texts]
    left_out_items = (*draft.left_out_items, *failures)
    return replace(draft, context=(*parts, *draft.context), left_out_items=left_out_items)


def _without_old_greetings(session: Session, active: ActiveCharacters) -> Session:
    """Drop greetings of characters that were replaced before the first question was asked."""
    opening_turns = takewhile(lambda one: one.is_observed or one.role != "user", session.turns)
    greeting_indexes = [index for index, one in enumerate(opening_turns) if one.role == "assistant"]
    if not greeting_indexes:
        return session
    is_newest_greeter_active = session.turns[greeting_indexes[-1]].preset in active.names
    dropped_indexes = set(greeting_indexes[:-1] if is_newest_greeter_active else greeting_indexes)
    turns = tuple(one for index, one in enumerate(session.turns) if index not in dropped_indexes)
    return replace(session, turns=turns)


def _choose_turn_limit(speakers: Sequence[ActivePreset]) -> int:
    token_limits = [speaker.preset.max_input_tokens for speaker in speakers]
    turn_counts = [
        _MAX_LOADED_TURNS if tokens is None else tokens // _MIN_TOKENS_PER_TURN
        for tokens in token_limits
    ]
    return min(_MAX_LOADED_TURNS, max(turn_counts))


_MAX_SEARCHED_TURNS = 500


@value_class
class AnswerTools:
    """Creates the tools for answers, such as searching the history and stories."""

    conversations: Conversations
    retrieve_stories: RetrieveStories | None
    clock: Clock
    draw_random: Callable[[], float]
    tool_servers: Mapping[str, ToolServer]
    """Tool servers by the name used in presets."""
    filter_turns: TurnFilter
    """Removes turns that contain observed messages of people who opted out."""
    limits: Callable[[Address], Limits]

    async def create_toolbox(
        self, preset: Preset, backend: Backend, context: TurnContext
    ) -> Toolbox | None:
        """Return the tools for an answer, or None if the preset or backend uses no tools."""
        if not preset.calls_tools:
            return None
        if not await backend.calls_tools(preset.model, choose_template(preset)):
            _log.info("tools_not_offered", preset=preset.name, provider=preset.provider)
            return None
        tool_factories: Mapping[str, Callable[[], Tool]] = {
            "time": lambda: time_tool(self.clock),
            "dice": lambda: dice_tool(self.draw_random),
            "history": lambda: self._history_tool(preset, context),
            "stories": lambda: self._story_tool(preset, context),
            REACT_TOOL: lambda: self._react_tool(preset, context),
        }
        message = context.incoming
        is_new_version = context.replaced_part_names or context.replaces_answers
        has_reactions = self.limits(message.address).convert_reaction is not None
        may_react = has_reactions and message.message_id is not None and not is_new_version
        tool_names = [one for one in dict.fromkeys(preset.tools) if one != REACT_TOOL or may_react]
        tools = [tool_factories[name]() for name in tool_names if name in tool_factories]
        tools += plugin_tools([name for name in tool_names if name not in tool_factories])
        # Servers that failed to start are missing.
        servers = [
            self.tool_servers[name] for name in preset.mcp_servers if name in self.tool_servers
        ]
        for server in servers:
            await server.wait_for_first_attempt()
        tools += server_tools(servers)
        # Even without tools, a model may call a tool that it knows; the call must return an error.
        return Toolbox(tools, self.clock, lambda: preset.name in context.reactions_by_preset)

    def _react_tool(self, preset: Preset, context: TurnContext) -> Tool:
        convert_reaction = self.limits(context.incoming.address).convert_reaction

        async def react(text: str) -> str:
            if context.reactions_by_preset:
                raise ToolFailed("you have already reacted to this message")
            emoji = convert_reaction(text) if convert_reaction else ""
            if not emoji:
                emojis = "👍 👎 ❤ 🔥 🎉 😁 😢 🤔"
                raise ToolFailed(f"that emoji is not available here; use another, such as {emojis}")
            context.reactions_by_preset[preset.name] = emoji
            return reaction_line(emoji)

        return react_tool(react)

    def _history_tool(self, preset: Preset, context: TurnContext) -> Tool:
        async def load_turns() -> Sequence[Turn]:
            session = await self.conversations.load_session(context.claim, _MAX_SEARCHED_TURNS)
            turns = await self.filter_turns(session.turns)
            return [one for one in turns if not one.is_observed or preset.context == "all"]

        def create_labeler(turns: Sequence[Turn]) -> Callable[[Turn, str], str]:
            people = [one.speaker for one in turns if one.speaker]
            labels = label_speakers([*people, context.incoming.author], context.character_names)
            return lambda turn, text: labels.tag_text(labels.find_label(turn, preset.name), text)

        return history_tool(load_turns, create_labeler)

    def _story_tool(self, preset: Preset, context: TurnContext) -> Tool:
        async def search_stories(query: str) -> Sequence[Story]:
            retrieve = self.retrieve_stories
            found_stories = (await retrieve(preset, query, True) if retrieve else None) or {}
            stories_by_id = {one.id: one for stories in found_stories.values() for one in stories}
            return sorted(stories_by_id.values(), key=lambda one: -one.score)

        return story_tool(search_stories)
