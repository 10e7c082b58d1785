"""What a conversation remembers."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from bot.chat.incoming import Incoming, Person
from bot.chat.outgoing import OutgoingPart
from bot.chat.prompt import Role
from bot.chat.receipt import Receipt


@dataclass(frozen=True, slots=True)
class Turn:
    """One line of the history."""

    role: Role
    text: str
    speaker: Person | None  # None: the bot
    at: datetime
    preset: str | None = None  # who answered; None: a person, or nobody in particular
    preset_version: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to walk one conversation; a later claim has a higher epoch and fences this one."""

    conversation: str
    epoch: int
    owner: str


@dataclass(frozen=True, slots=True)
class InboxMessage:
    """An inbox row under work: the unit that is answered once."""

    id: int
    incoming: Incoming
    crashes: int  # how often the process died while working on it

    @property
    def turn(self) -> str:
        """The name of the turn that answers it, the same after every crash."""
        return f"{self.incoming.address.platform}:{self.incoming.external_key}"


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What the processing of one inbox message produced; stored in one transaction."""

    turns: Sequence[Turn] = ()
    """What is appended to the history."""
    outgoing: Sequence[OutgoingPart] = ()
    """The final text of every part of the answer."""
    receipts: Sequence[Receipt] = ()
    """One for each character that answered."""
    new_session: bool = False
    """Whether the turns begin a new session."""


@dataclass(frozen=True, slots=True)
class Session:
    """A copy of what a conversation holds: work on it, store it when the walk ended well."""

    number: int  # /new begins the next one; old ones are kept
    turns: tuple[Turn, ...]  # oldest first


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn that a summary may rest on."""

    id: int
    turn: Turn


@dataclass(frozen=True, slots=True)
class Summary:
    """What was said in a session up to a turn, in short."""

    session: int
    covers_to: int  # the id of the last turn in it
    fingerprint: str  # of all that it covers
    text: str


@dataclass(frozen=True, slots=True)
class SessionTurns:
    """A whole session, oldest first, and the summary of its beginning."""

    session: int
    turns: tuple[StoredTurn, ...]
    summary: Summary | None

    @property
    def hold(self) -> bool:
        """Whether nothing that the summary covers was edited or forgotten since."""
        if self.summary is None:
            return True
        covered = [one for one in self.turns if one.id <= self.summary.covers_to]
        return fingerprint_turns(covered) == self.summary.fingerprint


def fingerprint_turns(turns: Iterable[StoredTurn]) -> str:
    """Tell whether these turns still say what they said."""
    digest = hashlib.sha256()
    for one in turns:
        digest.update(f"{one.id}:{len(one.turn.text)}:{one.turn.text}".encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class ChatSetting:
    """A setting that was made in a chat, and the scope it was made in."""

    scope: str
    value: str


@dataclass(frozen=True, slots=True)
class PresetVersion:
    """One form of a preset. `version` is its number, or the lowest that it may get."""

    name: str
    content: str  # as strict JSON
    version: int
