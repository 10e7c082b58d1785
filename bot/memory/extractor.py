"""Extract memories from conversations in the background, after answers.

A model is asked after six exchanges, or after ten quiet minutes if there were at least two. The
database records how far a conversation was read, so a restart neither repeats nor skips turns.
After a restart during the quiet minutes, the model is asked only after the next answer. If a
request fails, the same turns are read again next time.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

import structlog

from bot.chat.incoming import IncomingMessage
from bot.chat.memory import (
    MEMORY_APPROVAL_KEY,
    CheckedNote,
    Memory,
    MemoryPlace,
    MemoryState,
    SubjectKind,
)
from bot.chat.prompt import Message
from bot.chat.session import Consent, StoredTurn
from bot.memory.extraction import NOTE_INSTRUCTION, build_transcript, check_notes, parse_notes
from bot.memory.recall import MemoryRecaller
from bot.memory.summaries import ConversationQueue, Summarizer, build_background_prompt, fit_first
from bot.ports import ChatSettings, Clock
from bot.prompting.presets.preset import Preset
from bot.prompting.text.tokens import get_counter_for_model
from bot.storage.extractions import SqlExtractions, UnreadTurns

_MIN_EXCHANGES_TO_EXTRACT = 6
_MIN_EXCHANGES_WHEN_QUIET = 2
_QUIET_SECONDS = 600.0
_MAX_OUTPUT_TOKENS = 800
_MAX_TRANSCRIPT_TOKENS = 8000
_MEMORY_NOTICE_KEY = "persona_memories"
"""The key of the setting that says whether a person was told about memories of them. `/forget me`
deletes it, like all settings whose keys start with "persona"."""
_NOTICE_DUE, _NOTICE_SHOWN = "due", "shown"
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _RecentChat:
    """A conversation with an answer in the last ten minutes."""

    preset: Preset
    message: IncomingMessage
    """The first message of the newest author, who pays for the extraction."""
    presets_by_time: list[tuple[datetime, tuple[str, ...]]] = field(default_factory=list)
    """The time of each question and the presets that were active then, oldest first."""
    exchange_count: int | None = None
    """The number of exchanges since a model was last asked, or None if it is not loaded yet."""
    stop_timer: Callable[[], None] = lambda: None

    def find_active_presets(self, turn: StoredTurn, turns: Sequence[StoredTurn]) -> tuple[str, ...]:
        """Return the presets active at a turn or, if unknown, the one that answered it."""
        at = turn.turn.at
        if at < self.presets_by_time[0][0]:
            answers = (other.turn.preset for other in turns if other.id >= turn.id)
            return (next(filter(None, answers), ""),)
        later_presets = (presets for asked_at, presets in self.presets_by_time if asked_at >= at)
        return next(later_presets, self.presets_by_time[-1][1])


@dataclass(eq=False, repr=False)
class MemoryExtractor:
    """Extracts memories for presets with the key `memory`."""

    recaller: MemoryRecaller
    extractions: SqlExtractions
    summarizer: Summarizer
    """Sends requests to models in the background, and decides which turns models may read."""
    settings: ChatSettings
    clock: Clock
    find_consent: Callable[[str], Awaitable[Consent | None]]
    find_character_names: Callable[[Collection[str]], Mapping[str, str]]
    """Returns the names of characters by preset."""

    def __post_init__(self) -> None:
        self._recent_chats: dict[str, _RecentChat] = {}
        self._queue = ConversationQueue(self.extract_if_due, "memories_not_extracted")

    def record_answer(self, message: IncomingMessage, presets: Sequence[Preset]) -> None:
        """Record that a message was answered in a channel where these presets are active."""
        preset = next((one for one in presets if one.memory), None)
        if preset is None or message.is_withheld or self.summarizer.writes_via_sample_model(preset):
            return
        key, payer = message.address.conversation, message.author
        chat = self._recent_chats.get(key)
        if chat is None or chat.message.author.id != payer.id:
            # Keep no words of the message, because `/forget` must take effect within a minute.
            payer = replace(payer, name="")
            empty_message = replace(message, author=payer, text="", quote=None, attachments=())
            chat = chat or _RecentChat(preset, empty_message)
            self._recent_chats[key], chat.message = chat, empty_message
        chat.preset = preset
        chat.presets_by_time.append((message.at, tuple(one.name for one in presets)))
        del chat.presets_by_time[: -2 * _MIN_EXCHANGES_TO_EXTRACT]
        chat.stop_timer()
        chat.stop_timer = self.clock.call_later(_QUIET_SECONDS, partial(self._queue.add, key))
        if chat.exchange_count is not None:
            chat.exchange_count += 1
        if chat.exchange_count is None or chat.exchange_count >= _MIN_EXCHANGES_TO_EXTRACT:
            self._queue.add(key)

    @property
    def is_idle(self) -> bool:
        """Whether no extraction is due or in progress."""
        return self._queue.is_idle

    async def run(self) -> None:
        """Run the extractions that are due, until cancelled."""
        try:
            await self._queue.run()
        finally:
            for one in self._recent_chats.values():
                one.stop_timer()

    async def extract_if_due(self, conversation: str) -> None:
        """Extract memories if there were enough exchanges; fewer suffice after a quiet period."""
        chat = self._recent_chats.get(conversation)
        if chat is None:
            return
        chat.exchange_count = 0  # exchanges during this read count twice; that costs another read
        newest_turns = await self.extractions.load(conversation)
        exchange_count = newest_turns.exchange_count
        is_quiet = self.clock.now() - chat.presets_by_time[-1][0].timestamp() >= _QUIET_SECONDS
        if is_quiet:  # the next answer adds it again
            del self._recent_chats[conversation]
        if exchange_count < (_MIN_EXCHANGES_WHEN_QUIET if is_quiet else _MIN_EXCHANGES_TO_EXTRACT):
            chat.exchange_count += exchange_count
            return
        if await self.extractions.begin_extraction(conversation, newest_turns):
            await self._extract_memories(conversation, chat, newest_turns)

    async def _extract_memories(
        self, conversation: str, chat: _RecentChat, newest_turns: UnreadTurns
    ) -> None:
        preset, message = chat.preset, chat.message
        readable_turns = await self._select_readable_turns(newest_turns.turns)
        presets = {one.turn.preset for one in readable_turns if one.turn.preset}
        names = self.find_character_names(presets.union(*(one for _, one in chat.presets_by_time)))
        limit = await self.summarizer.max_prompt_tokens(preset)
        count_tokens = get_counter_for_model(preset.model)
        # The rest follows later.
        turns = fit_first(readable_turns, limit, count_tokens, _MAX_TRANSCRIPT_TOKENS)
        last_read_id = (newest_turns.turns if len(turns) == len(readable_turns) else turns)[-1].id
        transcript = build_transcript(turns, names)
        checked_notes: list[CheckedNote] = []
        if transcript.turns:
            messages = (Message("user", transcript.text),)
            provider, prompt = build_background_prompt(
                preset, f"{conversation}:memory", messages, NOTE_INSTRUCTION, _MAX_OUTPUT_TOKENS
            )
            notes = parse_notes(await self.summarizer.write_text(preset, provider, prompt, message))
            place = MemoryPlace.from_event(
                message.address, message.scopes, is_private=message.is_private
            )
            checked_notes = check_notes(notes, transcript, place, conversation)
            note_counts = {"noted": len(notes), "backed": len(checked_notes)}
            _log.info("memories_extracted", conversation=conversation, **note_counts)
        completed_notes = [
            await self._complete_note(one, chat.find_active_presets(one.source, turns))
            for one in checked_notes
        ]
        try:
            await self.extractions.finish(conversation, newest_turns, last_read_id, completed_notes)
        finally:  # a failed transaction may be committed
            self.recaller.memories.invalidate_cache([one.memory for one in completed_notes])

    async def _select_readable_turns(self, turns: Sequence[StoredTurn]) -> list[StoredTurn]:
        """Drop turns of people who opted out, and observed turns if they consent only to `HERE`."""
        ids = {id(one) for one in await self.summarizer.filter_turns([one.turn for one in turns])}
        people = {one.turn.speaker.id for one in turns if one.turn.is_observed and one.turn.speaker}
        consents = {one: await self.find_consent(one) for one in people}
        consenters = {
            one for one, scope in consents.items() if scope in {Consent.SERVER, Consent.EVERYWHERE}
        }
        return [
            one
            for one in turns
            if id(one.turn) in ids
            and (
                not one.turn.is_observed or (one.turn.speaker and one.turn.speaker.id in consenters)
            )
        ]

    async def _complete_note(self, note: CheckedNote, presets: tuple[str, ...]) -> CheckedNote:
        """Add vectors, witnesses and state to a note; schedule a notice to its subject."""
        model, vector = await self.recaller.embed(note.memory.text) or ("", None)
        embedding = await self.recaller.embed(note.outdated_fact) if note.outdated_fact else None
        memory = replace(note.memory, witnesses=presets, model=model, vector=vector)
        if memory.subject.kind is SubjectKind.PLACE and await self._needs_admin_approval(memory):
            memory = replace(memory, state=MemoryState.PROPOSED)
        person = memory.subject.key if memory.subject.kind is SubjectKind.PERSON else None
        # Before the memory is stored, so that even a crash leaves no memory without a notice.
        if person and person not in await self.settings.get_all([person], _MEMORY_NOTICE_KEY):
            await self.settings.set(person, _MEMORY_NOTICE_KEY, _NOTICE_DUE, person)
        return replace(note, memory=memory, outdated_fact_vector=embedding and embedding[1])

    async def _needs_admin_approval(self, memory: Memory) -> bool:
        scopes = () if memory.place.is_private else (memory.place.server,)
        return await self.settings.resolve(scopes, MEMORY_APPROVAL_KEY) is not None

    async def claim_first_notice(self, person: str) -> bool:
        """Return whether to tell a person now that memories of them exist; True only once."""
        notice_states = await self.settings.get_all([person], _MEMORY_NOTICE_KEY)
        if notice_states.get(person) != _NOTICE_DUE:
            return False
        await self.settings.set(person, _MEMORY_NOTICE_KEY, _NOTICE_SHOWN, person)
        return True
