"""Who said what: a label for everybody in a room, unique, in any script, impossible to forge."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bot.chat.incoming import Person
from bot.chat.session import Turn
from bot.prompting.speakers.clean_name import clean_name, is_unambiguous, with_id_suffix
from bot.prompting.speakers.tag_detection import (
    ROLE_SKELETONS,
    candidate_names,
    is_role_heading,
    starts_with_role_tag,
)
from bot.prompting.text.confusables import skeleton

NamingMode = Literal["default", "add", "not_add"]


@dataclass(frozen=True, slots=True)
class SpeakerLabels:
    """The labels of a room: those of people by their ids, those of characters by their presets."""

    people: Mapping[str, str]
    characters: Mapping[str, str]
    reserved_skeletons: frozenset[
        str
    ]  # skeletons of everything that a reader may take for a speaker

    def label_of(self, turn: Turn, own: str) -> str:
        """Name the speaker of a turn; `own` is the preset whose prompt this becomes."""
        if turn.speaker:
            return self.people[turn.speaker.id]
        return self.characters.get(turn.preset or own, self.characters[own])

    def tag_turn(self, turn: Turn, own: str) -> str:
        """Write a turn with its speaker in front, `U1:MSG` (ChatHaruhi 3.0)."""
        return self.tag_text(self.label_of(turn, own), turn.text)

    def tag_text(self, label: str, text: str) -> str:
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
        return starts_with_role_tag(line) or any(
            skeleton(name) in self.reserved_skeletons for name in candidate_names(line)
        )


def label_speakers(people: Iterable[Person], characters: Mapping[str, str]) -> SpeakerLabels:
    """Label a room. `people` as they were seen, oldest first: the newest name of each counts.

    A label without a mark is the name just as people see it. One that had to be changed, is a
    role's, a character's or like somebody else's, gets a mark of its owner's id, the same whoever
    comes and goes. `characters` are names by preset, written by the operator.
    """
    names = _character_labels(characters)
    known = assign_labels(people, names.values())
    seen = {skeleton(label) for label in (*known.values(), *names.values())}
    unmarked = {skeleton(label.partition("#")[0]) for label in known.values()}
    return SpeakerLabels(known, names, frozenset((seen | unmarked | ROLE_SKELETONS) - {""}))


def assign_labels(people: Iterable[Person], characters: Iterable[str]) -> dict[str, str]:
    """Give each person, by id, a label that nobody else here has or seems to have."""
    newest = {person.id: person.name for person in people}
    cleaned = {one: clean_name(name) for one, name in newest.items()}
    bones = {one: skeleton(label) for one, label in cleaned.items()}
    taken = ROLE_SKELETONS | {skeleton(name) for name in characters} | {""}
    everybody = list(bones.values())
    given: dict[str, str] = {}
    for one in sorted(newest):
        label, attempt = cleaned[one], 0
        free = (
            not (bones[one] in taken or is_role_heading(label)) and everybody.count(bones[one]) == 1
        )
        if not (free and is_unambiguous(newest[one])):
            label = with_id_suffix(cleaned[one], one)
            while label in given.values():  # one pair of twins in 65,536
                attempt += 1
                label = with_id_suffix(cleaned[one], one, attempt)
        given[one] = label
    return {one: given[one] for one in newest}


def uses_tags(mode: NamingMode, turns: Sequence[Turn], own: str) -> bool:
    """Whether lines carry their speaker: `default` begins with the second one besides `own`."""
    if mode == "default":
        heard = {turn.speaker.id if turn.speaker else turn.preset for turn in turns}
        return len(heard - {None, own}) > 1
    return mode == "add"


def _character_labels(characters: Mapping[str, str]) -> dict[str, str]:
    """Characters whose names are one go by the names of their presets, which never are."""
    cleaned = {
        preset: clean_name(name) or clean_name(preset) for preset, name in characters.items()
    }
    bones = [skeleton(label) for label in cleaned.values()]
    return {
        preset: label
        if bones.count(skeleton(label)) == 1
        else with_id_suffix(clean_name(preset), preset)
        for preset, label in cleaned.items()
    }
