"""Extract memories from conversations in the background, after answers.

A model is asked after six exchanges, or after ten quiet minutes if there were at least two. The
database records how far a conversation was read, so a restart neither repeats nor skips turns.
After a restart during the quiet minutes, the model is only asked after the next answer. If a
request fails, the same turns are read again next time.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

import structlog

from bot.chat.incoming import IncomingMessage
from bot.chat.memory import APPROVAL_KEY, CheckedNote, Memory, MemoryPlace, MemoryState, SubjectKind
from bot.chat.prompt import Message
from bot.chat.session import Consent, StoredTurn
from bot.memory.extraction import INSTRUCTION, check_notes, read_notes, write_transcript
from bot.memory.recall import MemoryRecaller
from bot.memory.summaries import ConversationQueue, Summarizer, background_prompt, fit_turns
from bot.ports import ChatSettings, Clock
from bot.prompting.presets.preset import Preset
from bot.prompting.text.tokens import counter_for_model
from bot.storage.extractions import SqlExtractions, UnreadTurns

_MIN_EXCHANGES = 6
_MIN_EXCHANGES_WHEN_QUIET = 2
_QUIET_SECONDS = 600.0
_MAX_OUTPUT_TOKENS = 800
_MAX_TURN_TOKENS = 8000  # of turns in one prompt
_NOTICE_KEY = "persona_memories"
"""The person's setting that records whether the notice is due or was shown; `/forget me` deletes it
like all settings that start with "persona"."""
_DUE, _SHOWN = "due", "shown"
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _WatchedConversation:
    """A conversation with an answer in the last ten minutes."""

    preset: Preset
    message: IncomingMessage
    """The first message of the newest author, who pays."""
    present: list[tuple[datetime, tuple[str, ...]]] = field(default_factory=list)
    """The times of questions, oldest first, each with the presets that were active then."""
    exchanges: int | None = None
    """Exchanges since a model was last asked; None: to be read from the database."""
    stop_timer: Callable[[], None] = lambda: None

    def active_presets_at(self, turn: StoredTurn, turns: Sequence[StoredTurn]) -> tuple[str, ...]:
        """Return the presets active at a turn or, if unknown, the one that answered it."""
        at = turn.turn.at
        if at < self.present[0][0]:
            answers = (other.turn.preset for other in turns if other.id >= turn.id)
            return (next(filter(None, answers), ""),)
        later = (presets for asked_at, presets in self.present if asked_at >= at)
        return next(later, self.present[-1][1])


@dataclass(eq=False, repr=False)
class MemoryExtractor:
    """Extracts memories for presets with the key `memory`."""

    recaller: MemoryRecaller
    progress: SqlExtractions
    summarizer: Summarizer
    """Sends requests to models in the background, and tells which turns may be read."""
    settings: ChatSettings
    clock: Clock
    find_consent: Callable[[str], Awaitable[Consent | None]]
    character_names: Callable[[Collection[str]], Mapping[str, str]]
    """Returns the names of characters by preset."""

    def __post_init__(self) -> None:
        self._watched: dict[str, _WatchedConversation] = {}
        self._queue = ConversationQueue(self.extract_if_due, "memories_not_extracted")

    def record_answer(self, message: IncomingMessage, presets: Sequence[Preset]) -> None:
        """Record that a message was answered in a channel where these presets are active."""
        preset = next((one for one in presets if one.memory), None)
        if preset is None or message.is_withheld or self.summarizer.uses_sample_model(preset):
            return
        key, payer = message.address.conversation, message.author
        watched = self._watched.get(key)
        if watched is None or watched.message.author.id != payer.id:
            # Keep no words of the message, because `/forget` must take effect within a minute.
            payer = replace(payer, name="")
            wordless = replace(message, author=payer, text="", quote=None, attachments=())
            watched = watched or _WatchedConversation(preset, wordless)
            self._watched[key], watched.message = watched, wordless
        watched.preset = preset
        watched.present.append((message.at, tuple(one.name for one in presets)))
        del watched.present[: -2 * _MIN_EXCHANGES]
        watched.stop_timer()
        watched.stop_timer = self.clock.call_later(_QUIET_SECONDS, partial(self._queue.add, key))
        if watched.exchanges is not None:
            watched.exchanges += 1
        if watched.exchanges is None or watched.exchanges >= _MIN_EXCHANGES:
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
            for one in self._watched.values():
                one.stop_timer()

    async def extract_if_due(self, conversation: str) -> None:
        """Extract memories if there were enough exchanges; fewer suffice after a quiet time."""
        watched = self._watched.get(conversation)
        if watched is None:
            return
        watched.exchanges = 0  # exchanges during the read count twice, which costs another read
        unread = await self.progress.load(conversation)
        exchanges = unread.exchanges
        is_quiet = self.clock.now() - watched.present[-1][0].timestamp() >= _QUIET_SECONDS
        if is_quiet:  # the next answer starts to watch it again
            del self._watched[conversation]
        if exchanges < (_MIN_EXCHANGES_WHEN_QUIET if is_quiet else _MIN_EXCHANGES):
            watched.exchanges += exchanges
            return
        if await self.progress.begin(conversation, unread):
            await self._extract(conversation, watched, unread)

    async def _extract(
        self, conversation: str, watched_chat: _WatchedConversation, unread: UnreadTurns
    ) -> None:
        preset, message = watched_chat.preset, watched_chat.message
        admissible = await self._admissible_turns(unread.turns)
        presets = {one.turn.preset for one in admissible if one.turn.preset}
        names = self.character_names(presets.union(*(active for _, active in watched_chat.present)))
        limit, count = await self.summarizer.prompt_limit(preset), counter_for_model(preset.model)
        turns = fit_turns(admissible, limit, count, _MAX_TURN_TOKENS)  # the next pass has the rest
        read_up_to = (unread.turns if len(turns) == len(admissible) else turns)[-1].id
        transcript = write_transcript(turns, names)
        checked: list[CheckedNote] = []
        if transcript.turns:
            messages = (Message("user", transcript.text),)
            provider, prompt = background_prompt(
                preset, f"{conversation}:memory", messages, INSTRUCTION, _MAX_OUTPUT_TOKENS
            )
            response = await self.summarizer.complete(preset, provider, prompt, message)
            notes = read_notes(response)
            place = MemoryPlace.from_event(
                message.address, message.scopes, is_private=message.is_private
            )
            checked = check_notes(notes, transcript, place, conversation)
            counts = {"noted": len(notes), "backed": len(checked)}
            _log.info("memories_extracted", conversation=conversation, **counts)
        complete = [
            await self._complete_note(one, watched_chat.active_presets_at(one.source, turns))
            for one in checked
        ]
        try:
            await self.progress.finish(conversation, unread, read_up_to, complete)
        finally:  # a failed transaction may be committed
            self.recaller.memories.read_again_for([one.memory for one in complete])

    async def _admissible_turns(self, turns: Sequence[StoredTurn]) -> list[StoredTurn]:
        """Drop turns of people who opted out, and observed turns of those who consent to `HERE`."""
        read = {id(one) for one in await self.summarizer.filter_turns([one.turn for one in turns])}
        observed = {one.turn.speaker.id for one in turns if one.turn.observed and one.turn.speaker}
        consents = {one: await self.find_consent(one) for one in observed}
        willing = {
            one for one, to in consents.items() if to in {Consent.SERVER, Consent.EVERYWHERE}
        }
        return [
            one
            for one in turns
            if id(one.turn) in read
            and (not one.turn.observed or (one.turn.speaker and one.turn.speaker.id in willing))
        ]

    async def _complete_note(self, note: CheckedNote, witnesses: tuple[str, ...]) -> CheckedNote:
        """Add vectors, witnesses and state to a note; schedule the first notice to its person."""
        model, vector = await self.recaller.embed(note.memory.text) or ("", None)
        outdated = await self.recaller.embed(note.outdated_fact) if note.outdated_fact else None
        memory = replace(note.memory, witnesses=witnesses, model=model, vector=vector)
        if memory.subject.kind is SubjectKind.PLACE and await self._needs_approval(memory):
            memory = replace(memory, state=MemoryState.PROPOSED)
        person = memory.subject.key if memory.subject.kind is SubjectKind.PERSON else None
        # Before the memory is stored, so that even a killed process keeps no memory in secret.
        if person and person not in await self.settings.get_all([person], _NOTICE_KEY):
            await self.settings.set(person, _NOTICE_KEY, _DUE, person)
        return replace(note, memory=memory, outdated_fact_vector=outdated and outdated[1])

    async def _needs_approval(self, memory: Memory) -> bool:
        scopes = () if memory.place.is_private else (memory.place.server,)
        return await self.settings.resolve(scopes, APPROVAL_KEY) is not None

    async def claim_first_notice(self, person: str) -> bool:
        """Return whether to tell a person that memories of them exist; True only once."""
        found = await self.settings.get_all([person], _NOTICE_KEY)
        if found.get(person) != _DUE:
            return False
        await self.settings.set(person, _NOTICE_KEY, _SHOWN, person)
        return True
