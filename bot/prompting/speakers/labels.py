"""Label the speakers of a channel: unique names in any script that cannot be forged."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from bot.chat.incoming import Person
from bot.chat.session import Turn
from bot.frozen_dataclass import frozen_dataclass
from bot.prompting.speakers.clean_name import clean_name, is_unambiguous, with_id_suffix
from bot.prompting.speakers.tag_detection import (
    ROLE_SKELETONS,
    candidate_names,
    is_role_heading,
    starts_with_role_tag,
)
from bot.prompting.text.confusables import skeleton, spell_enclosed_letters
from bot.texts.caches import text_cache

NamingMode = Literal["default", "add", "not_add"]

_MAX_CACHED_LABELS = 512  # conversations


@frozen_dataclass
class SpeakerLabels:
    """The labels of everybody in a conversation."""

    people: Mapping[str, str]
    """By person id."""
    characters: Mapping[str, str]
    """By preset."""
    reserved_skeletons: frozenset[str]
    """The skeletons of everything that a reader may take for a speaker, besides role names."""

    @property
    def form(self) -> Hashable:
        """What tagged texts depend on: with an equal form, a turn reads the same."""
        return frozenset(self.people.items()), tuple(self.characters.items())

    def label_of(self, turn: Turn, own: str) -> str:
        """Return the label of a turn's speaker; `own` is the preset that the prompt is for."""
        if turn.speaker:
            return self.people[turn.speaker.id]
        return self.characters.get(turn.preset or own, self.characters[own])

    def labels_of(self, turns: Iterable[Turn], own: str) -> list[str]:
        """Return the label of each turn's speaker."""
        people, characters, own_label = self.people, self.characters, self.characters[own]
        return [
            people[turn.speaker.id]
            if turn.speaker
            else characters.get(turn.preset or own, own_label)
            for turn in turns
        ]

    def tag_text(self, label: str, text: str) -> str:
        """Return a text with a speaker tag, `U1:MSG` (docs/sources.md#haruhi)."""
        return add_speaker_tag(label, text, self.reserved_skeletons)

    def others(self, own: str) -> tuple[str, ...]:
        """Return all labels except that of the preset `own`."""
        characters = [label for preset, label in self.characters.items() if preset != own]
        return (*self.people.values(), *characters)


def add_speaker_tag(label: str, text: str, reserved_skeletons: frozenset[str]) -> str:
    """Return a text with a speaker tag.

    A further line that looks as if another speaker or a role had said it is quoted,
    `> bob: yes`, as mailbox files quote `>From ` (RFC 4155). So every tag at the beginning of a
    line is ours. A false positive is harmless: it reads well as a quotation.
    """
    first, *rest = text.splitlines(keepends=True) or [""]
    quoted = [f"> {line}" if _looks_like_a_tag(line, reserved_skeletons) else line for line in rest]
    return "".join([f"{label}:{first}", *quoted])


def label_speakers(people: Iterable[Person], characters: Mapping[str, str]) -> SpeakerLabels:
    """Label all speakers of a conversation.

    A label without an id suffix is the name as people see it. A name that had to be changed, or is
    confusable with a role, a character or another person, gets a suffix of its owner's id, which
    stays the same whoever else is present.

    Args:
        people: in the order of their turns, oldest first; the newest name of each is used.
        characters: names by preset, written by the operator.
    """
    newest = {person.id: person.name for person in people}
    labels = _label_speakers(tuple(sorted(newest.items())), tuple(characters.items()))
    if len(newest) == 1:  # nearly always; more people are labelled in the order of their ids
        return labels
    return replace(labels, people={one: labels.people[one] for one in newest})


@text_cache(_MAX_CACHED_LABELS)
def _label_speakers(
    people: tuple[tuple[str, str], ...], characters: tuple[tuple[str, str], ...]
) -> SpeakerLabels:
    """Label speakers by the items of two mappings; people are sorted by their ids."""
    names = _character_labels(dict(characters))
    people_labels = assign_labels((Person(*one) for one in people), names.values())
    seen = {skeleton(label) for label in (*people_labels.values(), *names.values())}
    without_suffix = {skeleton(label.partition("#")[0]) for label in people_labels.values()}
    return SpeakerLabels(
        people_labels, names, frozenset((seen | without_suffix) - ROLE_SKELETONS - {""})
    )


def assign_labels(people: Iterable[Person], characters: Iterable[str]) -> dict[str, str]:
    """Return a label for each person, by id, that is not confusable with any other."""
    newest = {person.id: person.name for person in people}
    cleaned = {one: clean_name(name) for one, name in newest.items()}
    skeletons = {one: skeleton(label) for one, label in cleaned.items()}
    taken = ROLE_SKELETONS | {skeleton(name) for name in characters} | {""}
    all_skeletons = list(skeletons.values())
    given: dict[str, str] = {}
    for one in sorted(newest):
        label, attempt = cleaned[one], 0
        free = (
            not (skeletons[one] in taken or is_role_heading(label))
            and all_skeletons.count(skeletons[one]) == 1
        )
        if not (free and is_unambiguous(newest[one])):
            label = with_id_suffix(cleaned[one], one)
            while label in given.values():  # a hash collision: 1 in 65,536
                attempt += 1
                label = with_id_suffix(cleaned[one], one, attempt)
        given[one] = label
    return {one: given[one] for one in newest}


def uses_tags(mode: NamingMode, turns: Sequence[Turn], own: str) -> bool:
    """Whether turns have speaker tags; `default`: with two or more speakers besides `own`."""
    if mode == "default":
        speaker_ids = {turn.speaker.id if turn.speaker else turn.preset for turn in turns}
        return len(speaker_ids - {None, own}) > 1
    return mode == "add"


def _looks_like_a_tag(line: str, reserved_skeletons: frozenset[str]) -> bool:
    plain = spell_enclosed_letters(line)
    if plain != line and _looks_like_a_tag(plain, reserved_skeletons):
        return True
    if starts_with_role_tag(line):
        return True
    skeletons = set(map(skeleton, candidate_names(line)))
    return not (skeletons.isdisjoint(reserved_skeletons) and skeletons.isdisjoint(ROLE_SKELETONS))


def _character_labels(characters: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of characters; those with confusable names use their preset's name."""
    cleaned = {
        preset: clean_name(name) or clean_name(preset) for preset, name in characters.items()
    }
    skeletons = [skeleton(label) for label in cleaned.values()]
    return {
        preset: label
        if skeletons.count(skeleton(label)) == 1
        else with_id_suffix(clean_name(preset), preset)
        for preset, label in cleaned.items()
    }
