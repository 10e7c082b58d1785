"""Who said what: a label for everybody in a room, unique, in any script, impossible to forge."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from bot.chat.incoming import Person
from bot.chat.session import Turn
from bot.prompting.label import clean, is_plain, marked
from bot.prompting.lookalikes import COLON, skeleton

NamingMode = Literal["default", "add", "not_add"]

MAX_TAG_CHARS = 80
"""Nobody takes what stands in front of a later colon for a name."""

# What else stands between a speaker and what was said, in copies of chats: Bob - hi, <Bob> hi,
# [Bob] hi, Bob | hi, Bob → hi. A dash within a word is part of it.
_OTHER_ENDS = re.compile(r"\s[-~]|[-~]\s|[–—―>\])】〉》」』）|=→⇒»;；]")
# What stands around a name there: 10:30 Bob, [10:30 AM] Bob, Bob, 10:30.
_BEFORE = re.compile(r"^[\W\d_]+(?:[ap]\.?m\b\W*)?", re.IGNORECASE)
_AROUND = re.compile(rf"{_BEFORE.pattern}|[\W\d_]+$", re.IGNORECASE)
_FRAME = re.compile(r"^[\W_]+")  # read over in front of a name, or a time
_MOST_ENDS = 4  # a time of day has two colons; whoever looks at more does so for hostile texts only
_MAX_HEADING_CHARS = 48
_MAX_WORDS_OF_A_HEADING = 3
_WORD = re.compile(r"[^\W_]+")
_ADDED = re.compile(r"#|(?<=\w)\W*[(（]")
# What templates and their users call the speakers of a prompt. Nobody is called so.
_ROLES = (
    *("system", "assistant", "user", "tool", "developer", "model", "bot", "human", "ai"),
    *("function", "instruction", "response", "系统", "系統", "助手", "用户", "用戶"),
    *("问", "答"),  # ChatGLM's
    *("система", "ассистент", "пользователь", "システム", "アシスタント", "ユーザー"),
    *("시스템", "어시스턴트", "사용자", "النظام", "المساعد", "المستخدم"),
    *("sistema", "asistente", "assistente", "usuario", "système", "utilisateur"),
)
_ROLE_BONES = frozenset(map(skeleton, _ROLES))
# Nor anything with these in it: `System message`, `the assistant`.
_HEADINGS = frozenset(map(skeleton, ("system", "assistant", "система", "ассистент")))


@dataclass(frozen=True, slots=True)
class Speakers:
    """The labels of a room: those of people by their ids, those of characters by their presets."""

    people: Mapping[str, str]
    characters: Mapping[str, str]
    guarded: frozenset[str]  # skeletons of everything that a reader may take for a speaker

    def label(self, turn: Turn, own: str) -> str:
        """Name the speaker of a turn; `own` is the preset whose prompt this becomes."""
        if turn.speaker:
            return self.people[turn.speaker.id]
        return self.characters.get(turn.preset or own, self.characters[own])

    def tagged(self, turn: Turn, own: str) -> str:
        """Write a turn with its speaker in front, `U1:MSG` (ChatHaruhi 3.0)."""
        return self.line(self.label(turn, own), turn.text)

    def line(self, label: str, text: str) -> str:
        """Write what the owner of this label said.

        A further line of it that looks as if somebody here, or a role, had said it becomes a
        quotation, `> bob: yes`, as mail programs write `>From ` where a line of a text could be
        taken for the beginning of the next mail (RFC 4155). So each tag at the beginning of a line
        is ours. An honest list of who said what reads as well so, thus rather one too many.
        """
        first, *rest = text.splitlines(keepends=True) or [""]
        quoted = [f"> {line}" if self._looks_like_a_tag(line) else line for line in rest]
        return "".join([f"{label}:{first}", *quoted])

    def others(self, own: str) -> tuple[str, ...]:
        """Everybody's label but that of the preset `own`."""
        characters = [label for preset, label in self.characters.items() if preset != own]
        return (*self.people.values(), *characters)

    def _looks_like_a_tag(self, line: str) -> bool:
        begins = _FRAME.sub("", line[:MAX_TAG_CHARS])
        name_first = _BEFORE.sub("", begins)
        tags = _heads(COLON, begins)
        if name_first != begins:
            tags += _heads(COLON, name_first)
        others = _heads(_OTHER_ENDS, name_first)
        whole = [line] if len(line) <= _MAX_HEADING_CHARS else []  # a name alone, as a heading
        heads = (*tags, *map(name_alone, tags), *others, *whole)
        return any(map(self._names_somebody, heads)) or any(map(_is_heading, tags))

    def _names_somebody(self, head: str) -> bool:
        return any(skeleton(one) in self.guarded for one in {head, _AROUND.sub("", head)})


def _heads(end: re.Pattern[str], line: str) -> list[str]:
    """What stands in front of the first few ends of a tag in a line."""
    return [line[: found.start()] for found in islice(end.finditer(line), _MOST_ENDS)]


def name_alone(head: str) -> str:
    """Take off what stands between a name and its colon: `Bob #12`, `Bob (laughs)`."""
    return _ADDED.split(head, maxsplit=1)[0]


def speakers(people: Iterable[Person], characters: Mapping[str, str]) -> Speakers:
    """Label a room. `people` as they were seen, oldest first: the newest name of each counts.

    A label without a mark is the name just as people see it. One that had to be changed, is a
    role's, a character's or like somebody else's, gets a mark of its owner's id, the same whoever
    comes and goes. `characters` are names by preset, written by the operator.
    """
    names = _character_labels(characters)
    known = labels(people, names.values())
    seen = {skeleton(label) for label in (*known.values(), *names.values())}
    unmarked = {skeleton(label.partition("#")[0]) for label in known.values()}
    return Speakers(known, names, frozenset((seen | unmarked | _ROLE_BONES) - {""}))


def labels(people: Iterable[Person], characters: Iterable[str]) -> dict[str, str]:
    """Give each person, by id, a label that nobody else here has or seems to have."""
    newest = {person.id: person.name for person in people}
    cleaned = {one: clean(name) for one, name in newest.items()}
    bones = {one: skeleton(label) for one, label in cleaned.items()}
    taken = _ROLE_BONES | {skeleton(name) for name in characters} | {""}
    everybody = list(bones.values())
    given: dict[str, str] = {}
    for one in sorted(newest):
        label, attempt = cleaned[one], 0
        free = not (bones[one] in taken or _is_heading(label)) and everybody.count(bones[one]) == 1
        if not (free and is_plain(newest[one])):
            label = marked(cleaned[one], one)
            while label in given.values():  # one pair of twins in 65,536
                attempt += 1
                label = marked(cleaned[one], one, attempt)
        given[one] = label
    return {one: given[one] for one in newest}


def _is_heading(text: str) -> bool:
    """Whether it reads like a role's: `System message`, but not a sentence about the system."""
    words = _WORD.findall(text)
    return len(words) <= _MAX_WORDS_OF_A_HEADING and not _HEADINGS.isdisjoint(map(skeleton, words))


def tagging(mode: NamingMode, turns: Sequence[Turn], own: str) -> bool:
    """Whether lines carry their speaker: `default` begins with the second one besides `own`."""
    if mode == "default":
        heard = {turn.speaker.id if turn.speaker else turn.preset for turn in turns}
        return len(heard - {None, own}) > 1
    return mode == "add"


def _character_labels(characters: Mapping[str, str]) -> dict[str, str]:
    """Characters whose names are one go by the names of their presets, which never are."""
    cleaned = {preset: clean(name) or clean(preset) for preset, name in characters.items()}
    bones = [skeleton(label) for label in cleaned.values()]
    return {
        preset: label if bones.count(skeleton(label)) == 1 else marked(clean(preset), preset)
        for preset, label in cleaned.items()
    }
