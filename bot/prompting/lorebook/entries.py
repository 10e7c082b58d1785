"""The values of a lorebook: SillyTavern's World Info entries, and the result of a search."""

from abc import ABC, abstractmethod
from dataclasses import field
from enum import StrEnum

from bot.chat.prompt import Role
from bot.texts.text import Text
from bot.value_class import value_class


class KeyLogic(StrEnum):
    """What secondary keys must do, once a primary key was found."""

    AND_ANY = "and_any"
    """At least one is found."""
    NOT_ALL = "not_all"
    """At least one is missing."""
    NOT_ANY = "not_any"
    """None is found."""
    AND_ALL = "and_all"
    """All are found."""


class EntryPosition(StrEnum):
    """Where the content of an entry is inserted."""

    BEFORE_CHAR = "before_char"
    AFTER_CHAR = "after_char"
    EXAMPLES_TOP = "examples_top"
    EXAMPLES_BOTTOM = "examples_bottom"
    NOTE_TOP = "note_top"
    """At the top of the author's note, which stands shortly before the newest message."""
    NOTE_BOTTOM = "note_bottom"
    AT_DEPTH = "at_depth"
    """`depth` messages before the end."""
    OUTLET = "outlet"
    """Where the macro `{{outlet::name}}` stands."""


@value_class
class LoreEntry:
    """One text of a lorebook and the conditions under which it is inserted."""

    uid: str
    """Unique in its book."""
    content: str
    name: str = ""
    """For people: the model does not see it."""
    keys: tuple[str, ...] = ()
    secondary_keys: tuple[str, ...] = ()
    """Empty if the entry is not selective."""
    logic: KeyLogic = KeyLogic.AND_ANY
    enabled: bool = True
    constant: bool = False
    """Needs no key."""
    vectorized: bool = False
    """SillyTavern finds it by similarity, besides its keys."""
    never_active: bool = False
    """The decorator `@@dont_activate` of V3 cards."""
    order: int = 100
    """In one position the highest comes last; it comes first for the token budget."""
    position: EntryPosition = EntryPosition.BEFORE_CHAR
    depth: int = 4
    outlet: str = ""
    role: Role = "system"
    probability: float = 100
    ignores_budget: bool = False
    exclude_recursion: bool = False
    """Other entries cannot activate it."""
    prevent_recursion: bool = False
    """It cannot activate other entries."""
    delay_until_recursion: int = 0
    """The recursion level that it waits for; 0: none."""
    scan_depth: int | None = None
    """How many messages are searched; None: the book's setting."""
    case_sensitive: bool | None = None
    """None: the book's setting."""
    match_whole_words: bool | None = None
    """None: the book's setting."""
    sticky: int = 0
    """How many messages it stays active for."""
    cooldown: int = 0
    """How many messages it then pauses for."""
    delay: int = 0
    """How many messages a conversation must have first."""
    groups: tuple[str, ...] = ()
    """Inclusion groups: one entry of each group is activated."""
    group_weight: float = 100
    group_override: bool = False
    """The highest order wins in its groups, without a random choice."""
    group_scoring: bool = False
    """It stays in its groups only if no rival has more keys found."""

    @property
    def label(self) -> str:
        return self.name or ", ".join(self.keys[:3]) or self.uid


class BookIndex(ABC):
    """Tells which entries of a book a text may trigger, without looking at every key."""

    def __init__(self, unindexed: frozenset[str], with_macros: frozenset[str]) -> None:
        self.unindexed = unindexed
        """The uids of the entries that no text can rule out."""
        self.with_macros = with_macros
        """The uids of the entries that may hold macros."""

    @abstractmethod
    def find(self, text: str) -> set[str]:
        """Return the uids of all indexed entries with a key that is a part of the text."""


@value_class
class Lorebook:
    """All entries of one file or card, and how they are searched."""

    entries: tuple[LoreEntry, ...]
    name: str = ""
    scan_depth: int = 2
    """How many messages the keys are searched in."""
    token_budget: int | None = None
    """None: a quarter of the prompt's budget."""
    recursive: bool = False
    max_recursion_steps: int = 10
    case_sensitive: bool = False
    match_whole_words: bool = True
    min_activations: int = 0
    """Search older messages until this many entries are active."""
    problems: tuple[Text, ...] = field(default=(), compare=False, repr=False)
    """What its file has and cannot be used."""
    index: BookIndex | None = field(default=None, compare=False, repr=False)
    """Of a book with many keys; it belongs to these entries."""


@value_class
class TimedEffects:
    """Sticky entries and cooldowns: uid, message count at the begin, message count at the end."""

    sticky: tuple[tuple[str, int, int], ...] = ()
    cooldown: tuple[tuple[str, int, int], ...] = ()


@value_class
class EntryDecision:
    """Whether an entry stands in the prompt, and why."""

    entry: LoreEntry
    activated: bool
    reason: str


@value_class
class LoreResult:
    """What a lorebook adds to one prompt."""

    entries: tuple[LoreEntry, ...]
    """The active entries, in insertion order."""
    decisions: tuple[EntryDecision, ...]
    """One for every entry of the book, in the book's order."""
    tokens: int
    timed: TimedEffects
