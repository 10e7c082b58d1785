"""What a lorebook is made of: SillyTavern's World Info entries as values."""

from dataclasses import dataclass
from enum import StrEnum

from bot.chat.prompt import Role


class Logic(StrEnum):
    """What secondary keys must do, once a primary key was found."""

    AND_ANY = "and_any"  # at least one is there
    NOT_ALL = "not_all"  # at least one is missing
    NOT_ANY = "not_any"  # none is there
    AND_ALL = "and_all"  # every one is there


class Position(StrEnum):
    """Where the content of an entry goes."""

    BEFORE_CHAR = "before_char"
    AFTER_CHAR = "after_char"
    EXAMPLES_TOP = "examples_top"
    EXAMPLES_BOTTOM = "examples_bottom"
    NOTE_TOP = "note_top"  # of the author's note, which stands shortly before the newest message
    NOTE_BOTTOM = "note_bottom"
    AT_DEPTH = "at_depth"  # so many messages before the end


@dataclass(frozen=True, slots=True)
class Entry:
    """One piece of lore, and when it is told."""

    uid: str  # unique in its book
    content: str
    name: str = ""  # for people
    keys: tuple[str, ...] = ()
    secondary_keys: tuple[str, ...] = ()  # those of an entry that is not selective are left out
    logic: Logic = Logic.AND_ANY
    enabled: bool = True
    constant: bool = False  # needs no key
    never: bool = False  # V3's @@dont_activate
    order: int = 100  # within a place the highest comes last; in the budget it comes first
    position: Position = Position.BEFORE_CHAR
    depth: int = 4
    role: Role = "system"
    probability: float = 100
    ignores_budget: bool = False
    exclude_recursion: bool = False  # other entries cannot wake it
    prevent_recursion: bool = False  # it cannot wake others
    delay_until_recursion: int = 0  # the level of recursion that it waits for; 0: none
    scan_depth: int | None = None  # these three: None means as the book says
    case_sensitive: bool | None = None
    match_whole_words: bool | None = None
    sticky: int = 0  # messages that it stays for
    cooldown: int = 0  # messages that it then rests for
    delay: int = 0  # messages that a conversation must have first
    groups: tuple[str, ...] = ()  # of each group only one entry is taken
    group_weight: float = 100
    group_override: bool = False  # the order decides in the group, not the dice
    group_scoring: bool = False  # only those with most keys found stay in the group

    @property
    def label(self) -> str:
        return self.name or ", ".join(self.keys[:3]) or self.uid


@dataclass(frozen=True, slots=True)
class Lorebook:
    """All entries of one file or card, and how they are searched."""

    entries: tuple[Entry, ...]
    name: str = ""
    scan_depth: int = 2  # messages that keys are looked for in
    token_budget: int | None = None  # None: a quarter of the prompt's
    recursive: bool = False
    max_recursion_steps: int = 10
    case_sensitive: bool = False
    match_whole_words: bool = True
    min_activations: int = 0  # look further back until so many entries were found


@dataclass(frozen=True, slots=True)
class Timed:
    """How long entries stay or rest: by uid, the number of messages at which it began and ends."""

    sticky: tuple[tuple[str, int, int], ...] = ()
    cooldown: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why an entry stands in the prompt, or does not."""

    entry: Entry
    fired: bool
    why: str


@dataclass(frozen=True, slots=True)
class Lore:
    """What a lorebook adds to one prompt."""

    entries: tuple[Entry, ...]  # those that stand in it, in the order of their insertion
    verdicts: tuple[Verdict, ...]  # about every entry of the book, in the book's order
    tokens: int
    timed: Timed
