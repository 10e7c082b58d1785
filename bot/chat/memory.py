"""Memories: facts about people, characters, places, and scenes, each with its audience.

A memory that is derived from turns of a conversation is deleted with them: by /forget, an edit, a
deletion, retention, or `/settings me off`. One that was made by hand stays until its author, its
subject, or an admin of its channel or server deletes it.
"""

from enum import StrEnum

from bot.chat.incoming import Address, Person
from bot.chat.session import Consent, StoredTurn
from bot.chat.story import PackedVector
from bot.value_class import value_class

MAX_MEMORIES_PER_SUBJECT = 25
"""The maximum number of memories about one person or character in a server or private chat."""
MAX_MEMORIES_PER_CHANNEL = 200
"""The maximum number of memories from one channel or private chat, about anybody."""

MEMORY_APPROVAL_KEY = "memory approval"
"""The setting of a server that requires an admin's approval for new memories about it."""


class SubjectKind(StrEnum):
    """What a memory is about; the values are stored."""

    PERSON = "person"
    CHARACTER = "character"
    PLACE = "place"


class MemoryKind(StrEnum):
    """The kind of a memory; the values are stored."""

    FACT = "fact"
    PREFERENCE = "preference"
    EVENT = "event"
    PROMISE = "promise"
    RELATIONSHIP = "relationship"


class MemoryState(StrEnum):
    """Whether a memory is used; the values are stored."""

    PROPOSED = "proposed"
    """Waiting for an admin's approval; not used in prompts yet."""
    KEPT = "kept"
    RETIRED = "retired"
    """Contradicted by a newer memory: no longer used in prompts, but its author can see it."""


class Reach(StrEnum):
    """Where a memory may be recalled, narrowest first; the values are stored."""

    PRIVATE = "private"
    """The private chat in which it was said."""
    CHANNEL = "channel"
    """The channel, thread, or topic in which it was said."""
    SERVER = "server"
    """The whole server; on Telegram the group with all its topics."""
    EVERYWHERE = "everywhere"
    """All servers and private chats of this installation where its subject is present."""


@value_class
class Audience:
    """Who may recall a memory."""

    reach: Reach
    key: str = ""
    """The private chat (`Address.lane`), the channel (`Address.channel`), or the server (the widest
    of an event's scopes); empty for everywhere."""

    @property
    def database_value(self) -> str:
        """The audience as one database value, such as "channel discord:123" or "everywhere"."""
        return f"{self.reach} {self.key}".rstrip()

    @classmethod
    def from_database(cls, text: str) -> "Audience":
        """Parse a database value. Raises `ValueError` if it is invalid."""
        reach, _, key = text.partition(" ")
        return cls(Reach(reach), key)


@value_class
class MemoryPlace:
    """A private chat or a server's channel, where memories are made and recalled."""

    channel: str
    """The key of the channel (`Address.channel`) or private chat (`Address.lane`)."""
    server: str
    """The widest of an event's scopes, or the chat itself if it is not in a server."""
    is_private: bool

    @classmethod
    def from_event(
        cls, address: Address, scopes: tuple[str, ...], *, is_private: bool
    ) -> "MemoryPlace":
        """Return where an event with this address and these scopes happened."""
        # A private chat is one place with all its topics.
        channel = address.lane if is_private else address.channel
        return cls(channel, address.lane if is_private else scopes[-1], is_private)

    @property
    def narrowest_audience(self) -> Audience:
        """The narrowest audience for memories made here: this channel or private chat."""
        return Audience(Reach.PRIVATE if self.is_private else Reach.CHANNEL, self.channel)

    def audience_with_reach(self, reach: Reach) -> Audience:
        """Return who may recall memories made here; in a private chat, `SERVER` means the chat."""
        if reach is Reach.EVERYWHERE:
            return Audience(Reach.EVERYWHERE)
        is_server_wide = reach is Reach.SERVER and not self.is_private
        return Audience(Reach.SERVER, self.server) if is_server_wide else self.narrowest_audience

    def widest_allowed_audience(self, *consents: Consent) -> Audience:
        """Return the widest audience that all of these consents allow."""
        if self.is_private or Consent.HERE in consents or Consent.OFF in consents:
            return self.narrowest_audience
        is_limited_to_server = Consent.SERVER in consents
        return self.audience_with_reach(Reach.SERVER if is_limited_to_server else Reach.EVERYWHERE)


@value_class
class MemorySubject:
    """What a memory is about."""

    kind: SubjectKind
    key: str
    """A person's id, a preset's name, or a channel's or server's key."""
    name: str = ""
    """The name that prompts and lists show."""


@value_class
class Memory:
    """A fact about a subject, with its source, witnesses and audience."""

    subject: MemorySubject
    text: str
    """One sentence about the subject, in the language of its source."""
    said_by: str
    """The id of the person, or the name of the preset, that said it; after a correction, the id of
    the person who corrected it."""
    place: MemoryPlace
    """Where it was said."""
    kind: MemoryKind = MemoryKind.FACT
    told_by: Person | None = None
    """Who said it about somebody else; None: first-hand. A character's id is its preset name."""
    witnesses: tuple[str, ...] = ()
    """The presets that witnessed it or were told about it; only these recall it. Empty: all."""
    conversation: str = ""
    """The key of the conversation where it was recorded, automatically or by a person."""
    turn_ids: tuple[int, ...] = ()
    """The ids of the turns that it is derived from; it is deleted with any of them."""
    is_derived: bool = True
    """Whether this memory was extracted from turns; if not, a person made it."""
    audience: Audience | None = None
    """Where this memory may be recalled; None: wherever the author and the subject consent."""
    is_widened: bool = False
    """Whether the author chose the audience; if not, it follows people's consents."""
    state: MemoryState = MemoryState.KEPT
    is_pinned: bool = False
    since: float = 0.0
    """When it was said, in Unix seconds."""
    until: float | None = None
    """When it stopped being true, in Unix seconds; None: it is still true."""
    model: str = ""
    """The embedding model of the vector."""
    vector: PackedVector | None = None
    id: int = 0
    """The database id; 0: not stored yet."""


@value_class
class CheckedNote:
    """A memory made from a model's note, after its quote was found in the conversation."""

    memory: Memory
    source: StoredTurn
    outdated_fact: str
    """An earlier fact that this note says is no longer true; may be empty."""
    outdated_fact_vector: PackedVector | None = None


@value_class
class MemoryReader:
    """A person who views memories, and the place where they view them."""

    person_id: str
    """The id of the person."""
    place: MemoryPlace
    is_admin: bool = False
    """Whether the person is an admin of the place, and so may change the memories there."""


@value_class
class RecallingCharacter:
    """A character for which memories are recalled, with the place and the people involved."""

    place: MemoryPlace
    preset: str
    """The character's preset, which recalls only what it witnessed or was told about."""
    asker_id: str
    """The author of the message."""
    person_ids: tuple[str, ...] = ()
    """The ids of people who take part in the conversation or are mentioned, asker included."""

    @property
    def subjects(self) -> tuple[str, ...]:
        """The keys of the people, characters and places here that a memory may be about."""
        return (*self.person_ids, self.asker_id, self.preset, self.place.channel, self.place.server)


@value_class
class RecallCandidates:
    """Unranked memories that a character may use here, and ids of memories left out as private."""

    memories: tuple[Memory, ...] = ()
    omitted_private_ids: tuple[int, ...] = ()
    """The ids of the asker's memories that may be recalled only in other private chats."""


class RecallReason(StrEnum):
    """Why a memory was recalled, in receipts."""

    PINNED = "pinned"
    SAME_WORDS = "same words"
    SIMILAR_MEANING = "similar"
    RECENT = "recent"


@value_class
class RankedMemory:
    memory: Memory
    score: float
    reason: RecallReason


@value_class
class RankedMemories:
    """The memories that a character may use for an answer, best first."""

    memories: tuple[RankedMemory, ...] = ()
    omitted_private_count: int = 0
    """The number of the asker's memories that may be recalled only in other private chats."""
    budget_share: float = 0.1
    """The share of the prompt's token budget that the memories may take."""
