"""Label speakers with unique, unforgeable names, and remove such labels from answers."""

import hashlib
import re
import tomllib
import unicodedata
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from typing import Literal

from bot.chat.incoming import Person
from bot.chat.session import Turn, display_name
from bot.prompting.text.confusables import (
    COLON,
    confusable_skeleton,
    find_script,
    is_invisible,
    is_overlay_mark,
    mixes_confusable_scripts,
    spell_enclosed_letters,
)
from bot.texts.caches import text_cache
from bot.value_class import value_class

MAX_LABEL_CHARS = 32
_MAX_NAME_CHARS = 1000  # longer names are cut first; platforms allow a tenth of this
_PLAIN_NAME = re.compile("[A-Za-z0-9 .-]*")
_NAME_CACHE_SIZE = 4096  # most messages are from the same few people

_MAX_COMBINING_MARKS = 2  # combining marks on a letter; more would cover the lines above and below
_JOINERS = "\u200c\u200d"
_EMOJI_JOINERS = "\u200d\ufe0f"  # used in emoji such as families and colored hearts
# Scripts in which joiners are part of the spelling: علی‌رضا.
_JOINER_SCRIPTS = {"ARABIC", "SYRIAC", "MONGOLIAN", "KHMER", "MYANMAR", "SINHALA"} | {
    *("DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "ORIYA", "TAMIL", "TELUGU", "KANNADA"),
    "MALAYALAM",
}
_INNER_PUNCTUATION = "'’·・_"  # kept between letters: O'Brien, 爱丽丝·李, b_o_b
_NON_EMOJI_SYMBOLS = range(0x2500, 0x25A0)  # includes ▁, which tokenizers use for a space
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_FLAG_LETTER_PREFIX = "regional indicator symbol letter "


@text_cache(_NAME_CACHE_SIZE)
def clean_name(name: str) -> str:
    """Return a name with only its letters, digits, marks, and emoji, of any script.

    Line breaks, brackets, colons, quotes, control tokens, and invisible characters are removed. A
    name that is all emoji is spelled out, `👑` as `crown`, because emoji alone look like badges.
    """
    plain_name = _normalize(name)
    if _PLAIN_NAME.fullmatch(plain_name):  # nothing to remove
        return _cut_to_label_limit(plain_name).strip(" .-")
    triples = zip(f" {plain_name}", plain_name, f"{plain_name} "[1:], strict=False)
    kept_chars = (char for before, char, after in triples if _should_keep_char(before, char, after))
    clean_text = _remove_stacked_marks("".join(kept_chars))
    if not any(char.isalnum() for char in clean_text):
        clean_text = _spell_emoji(clean_text)
    return _cut_to_label_limit(" ".join(clean_text.split())).strip(f" .-{_JOINERS}")


@text_cache(_NAME_CACHE_SIZE)
def is_unambiguous_name(name: str) -> bool:
    """Return whether a name is one clean line that does not mix lookalike scripts."""
    if len(name.splitlines()) > 1 or mixes_confusable_scripts(name):
        return False
    return clean_name(name) == _normalize(name)


def add_id_suffix(label: str, person_id: str, attempt_number: int = 0) -> str:
    """Add `#` and four hex digits of the id's hash, which no clean name can imitate."""
    salted_id = f"{person_id}/{attempt_number}" if attempt_number else person_id
    return f"{label or 'user'}#{hashlib.sha256(salted_id.encode(errors='replace')).hexdigest()[:4]}"


def _normalize(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name[:_MAX_NAME_CHARS]).split())


def _should_keep_char(before: str, char: str, after: str) -> bool:
    if char in _EMOJI_JOINERS and (_is_emoji(before) or before in _EMOJI_JOINERS):
        return True
    if char in _JOINERS:
        return find_script(before) == find_script(after) and find_script(before) in _JOINER_SCRIPTS
    if char in _INNER_PUNCTUATION:
        return before.isalnum() and after.isalnum()
    if is_invisible(char) or is_overlay_mark(char) or COLON.match(char):
        return False
    if unicodedata.category(char)[0] == "M":
        return unicodedata.category(before)[0] in "LMN"
    return char in " .-" or unicodedata.category(char)[0] in "LN" or _is_emoji(char)


def _is_emoji(char: str) -> bool:
    if ord(char) in _SKIN_TONES:
        return True
    return unicodedata.category(char) == "So" and ord(char) not in _NON_EMOJI_SYMBOLS


def _remove_stacked_marks(text: str) -> str:
    groups = groupby(text, lambda char: unicodedata.combining(char) > 0)
    char_runs = ((is_combining, "".join(run)) for is_combining, run in groups)
    return "".join(
        run
        for is_combining, run in char_runs
        if not is_combining or len(run) <= _MAX_COMBINING_MARKS
    )


def _spell_emoji(text: str) -> str:
    names = [unicodedata.name(char, "").lower() for char in text if _is_emoji(char)]
    return " ".join(name.removeprefix(_FLAG_LETTER_PREFIX) for name in names)


def _cut_to_label_limit(text: str) -> str:
    """Cut a text to the maximum length without separating a mark or joiner from its letter."""
    end = min(len(text), MAX_LABEL_CHARS)
    while 0 < end < len(text) and (
        unicodedata.category(text[end])[0] == "M"
        or text[end] in _JOINERS
        or text[end - 1] in _JOINERS
    ):
        end -= 1
    return text[:end]


MAX_TAG_CHARS = 80
"""The number of characters from a line's start within which a speaker's tag must end."""

_ROLE_NAMES = tomllib.loads((Path(__file__).parent / "role_names.toml").read_text("utf-8"))["names"]
ROLE_SKELETONS = frozenset(map(confusable_skeleton, _ROLE_NAMES))

# Words that turn a short text into a role name: `System message`, `the assistant`.
_ROLE_WORDS = frozenset(map(confusable_skeleton, ("system", "assistant", "система", "ассистент")))
_MAX_HEADING_WORDS = 3
_MAX_HEADING_CHARS = 48
_WORD = re.compile(r"[^\W_]+")

# Other separators than a colon between name and text: Bob - hi, <Bob> hi, [Bob] hi, Bob | hi,
# Bob → hi. A dash within a word belongs to the word.
_NON_COLON_SEPARATORS = re.compile(r"\s[-~]|[-~]\s|[–—―>\])】〉》」』）|=→⇒»;；]")
_MAX_SEPARATORS = 4  # a time of day has two colons; only hostile texts have more
_LEADING_PUNCTUATION = re.compile(r"^[\W_]+")
# Times and punctuation around a name: 10:30 Bob, [10:30 AM] Bob, Bob, 10:30.
_TEXT_BEFORE_NAME = re.compile(r"^[\W\d_]+(?:[ap]\.?m\b\W*)?", re.IGNORECASE)
_TEXT_AROUND_NAME = re.compile(rf"{_TEXT_BEFORE_NAME.pattern}|[\W\d_]+$", re.IGNORECASE)
_NAME_SUFFIX = re.compile(r"#|(?<=\w)\W*[(（]")


def find_candidate_names(line: str) -> Iterator[str]:
    """Yield the prefixes of a line that could be read as a speaker's name."""
    for possible_name in _find_possible_names(line):
        yield possible_name
        yield _TEXT_AROUND_NAME.sub("", possible_name)


def is_role_heading(text: str) -> bool:
    """Return whether a text looks like a role name, such as `System message`."""
    words = _WORD.findall(text)
    if len(words) > _MAX_HEADING_WORDS:
        return False
    return not _ROLE_WORDS.isdisjoint(map(confusable_skeleton, words))


def strip_name_suffix(name_with_suffix: str) -> str:
    """Remove the text between a name and its colon, as in `Bob #12:` and `Bob (laughs):`."""
    return _NAME_SUFFIX.split(name_with_suffix, maxsplit=1)[0]


def _find_possible_names(line: str) -> Iterator[str]:
    for tag in _find_possible_tags(line):
        yield tag
        yield strip_name_suffix(tag)
    yield from _split_at(_NON_COLON_SEPARATORS, _TEXT_BEFORE_NAME.sub("", line[:MAX_TAG_CHARS]))
    if len(line) <= _MAX_HEADING_CHARS:
        yield line  # a name alone on its line, like a heading


def _find_possible_tags(line: str) -> Iterator[str]:
    """Yield the texts before colons in a line, such as `Bob: hi` or `10:30 Bob: hi`."""
    line_start = _LEADING_PUNCTUATION.sub("", line[:MAX_TAG_CHARS])
    yield from _split_at(COLON, line_start)
    text_without_time = _TEXT_BEFORE_NAME.sub("", line_start)
    if text_without_time != line_start:
        yield from _split_at(COLON, text_without_time)


def _split_at(separator: re.Pattern[str], line: str) -> Iterator[str]:
    for match in islice(separator.finditer(line), _MAX_SEPARATORS):
        yield line[: match.start()]


TagMode = Literal["default", "add", "not_add"]

_LABEL_CACHE_SIZE = 512  # conversations


@value_class
class SpeakerLabels:
    people: Mapping[str, str]
    """The label of each person, by person id."""
    characters: Mapping[str, str]
    """The label of each character, by preset name."""
    label_skeletons: frozenset[str]
    """The skeletons (UTS #39) of texts that look like a speaker's name, except role names."""

    @property
    def tagging_context(self) -> Hashable:
        """A value that changes whenever turns have to be tagged again."""
        return frozenset(self.people.items()), tuple(self.characters.items())

    def find_label(self, turn: Turn, preset: str) -> str:
        """Return the label of a turn's speaker; `preset` is the preset that is going to answer."""
        if turn.speaker:
            return self.people[turn.speaker.id]
        return self.characters.get(turn.preset or preset, self.characters[preset])

    def tag_text(self, label: str, text: str) -> str:
        """Return a text with a speaker tag, `U1:MSG` (docs/sources.md#haruhi).

        A later line that looks like a speaker's or role's line is quoted, `> bob: yes`, just as
        mailbox files quote `>From ` (RFC 4155). So every tag at the start of a line is ours. A line
        that is quoted by mistake still reads well, as a quotation.
        """
        first_line, *other_lines = text.splitlines(keepends=True) or [""]
        skeletons = self.label_skeletons
        escaped_lines = [
            f"> {line}" if _looks_like_a_tag(line, skeletons) else line for line in other_lines
        ]
        return "".join([f"{label}:{first_line}", *escaped_lines])

    def other_labels(self, preset_name: str) -> tuple[str, ...]:
        characters = [label for preset, label in self.characters.items() if preset != preset_name]
        return (*self.people.values(), *characters)


def label_speakers(people: Iterable[Person], characters: Mapping[str, str]) -> SpeakerLabels:
    """Return labels for all speakers of a conversation.

    `people` lists the speaker of each turn, oldest first; each person's latest name is used.
    `characters` maps preset names to character names, which the operator chose.

    A label is the displayed name. If the name had to be changed, or can be confused with a role, a
    character, or another person, the label gets a suffix from the person's id, which does not
    depend on who else is present.
    """
    names_by_id = {person.id: person.name for person in people}
    labels = _label_speakers(tuple(sorted(names_by_id.items())), tuple(characters.items()))
    if len(names_by_id) == 1:  # the usual case; more people are labeled in the order of their ids
        return labels
    people_labels = {person_id: labels.people[person_id] for person_id in names_by_id}
    return replace(labels, people=people_labels)


@text_cache(_LABEL_CACHE_SIZE)
def _label_speakers(
    people: tuple[tuple[str, str], ...], characters: tuple[tuple[str, str], ...]
) -> SpeakerLabels:
    character_labels = _label_characters(dict(characters))
    people_labels = _assign_labels(dict(people), character_labels.values())
    labels = [*people_labels.values(), *character_labels.values()]
    plain_labels = [label.partition("#")[0] for label in people_labels.values()]
    skeletons = frozenset(map(confusable_skeleton, [*labels, *plain_labels]))
    return SpeakerLabels(people_labels, character_labels, skeletons - ROLE_SKELETONS - {""})


def _assign_labels(people: Mapping[str, str], characters: Iterable[str]) -> dict[str, str]:
    clean_names = {person_id: clean_name(name) for person_id, name in people.items()}
    skeletons = {person_id: confusable_skeleton(label) for person_id, label in clean_names.items()}
    taken_skeletons = ROLE_SKELETONS | {confusable_skeleton(name) for name in characters} | {""}
    all_skeletons = list(skeletons.values())
    labels: dict[str, str] = {}
    for person_id in people:
        label, attempt_number = clean_names[person_id], 0
        is_label_taken = skeletons[person_id] in taken_skeletons or is_role_heading(label)
        is_label_unique = not is_label_taken and all_skeletons.count(skeletons[person_id]) == 1
        if not (is_label_unique and is_unambiguous_name(people[person_id])):
            label = add_id_suffix(clean_names[person_id], person_id)
            while label in labels.values():  # a hash collision, 1 in 65,536
                attempt_number += 1
                label = add_id_suffix(clean_names[person_id], person_id, attempt_number)
        labels[person_id] = label
    return labels


def should_tag_turns(tag_mode: TagMode, turns: Sequence[Turn], preset: str) -> bool:
    """Return whether to tag turns with names; by default, if two others besides `preset` spoke."""
    if tag_mode == "default":
        speaker_ids = {turn.speaker.id if turn.speaker else turn.preset for turn in turns}
        return len(speaker_ids - {None, preset}) > 1
    return tag_mode == "add"


def _looks_like_a_tag(line: str, label_skeletons: frozenset[str]) -> bool:
    plain_line = spell_enclosed_letters(line)
    if plain_line != line and _looks_like_a_tag(plain_line, label_skeletons):
        return True
    if any(map(is_role_heading, _find_possible_tags(line))):
        return True
    skeletons = set(map(confusable_skeleton, find_candidate_names(line)))
    return not (skeletons.isdisjoint(label_skeletons) and skeletons.isdisjoint(ROLE_SKELETONS))


def _label_characters(characters: Mapping[str, str]) -> dict[str, str]:
    """Return characters' labels: their names, or preset names where names can be confused."""
    labels = {
        preset: clean_name(name) or clean_name(display_name(preset))
        for preset, name in characters.items()
    }
    skeletons = [confusable_skeleton(label) for label in labels.values()]
    return {
        preset: label
        if skeletons.count(confusable_skeleton(label)) == 1
        else add_id_suffix(clean_name(display_name(preset)), preset)
        for preset, label in labels.items()
    }


MAX_PERSONA_CHARS = 500
MAX_SPEAKERS_WITH_PERSONA = 16
"""The number of most recent speakers whose persona is loaded."""

_MAX_DESCRIBED_SPEAKERS = 8
_BRACKET_REPLACEMENTS = str.maketrans("()（）﹙﹚⁽⁾₍₎", "[][][][][]")


def sanitize_persona(text: str) -> str:
    """Return a persona as one line of visible text, so that it cannot imitate a speaker's turn."""
    visible_chars = (
        " " if char.isspace() else char
        for char in unicodedata.normalize("NFC", text)
        if char.isspace() or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co", "Cn"}
    )
    line = " ".join("".join(visible_chars).split())
    return line if len(line) <= MAX_PERSONA_CHARS else line[: MAX_PERSONA_CHARS - 1] + "…"


def format_personas(
    speaker_ids: Iterable[str], labels: Mapping[str, str], personas: Mapping[str, str]
) -> str:
    """List how speakers (person ids, latest first) describe themselves, one speaker per line."""
    if not personas:
        return ""
    # Without round brackets, a persona cannot end its own description and start another person's.
    speaker_lines = [
        f"({labels[person_id]} says of themselves: "
        f"{sanitize_persona(personas[person_id]).translate(_BRACKET_REPLACEMENTS)})"
        for person_id in dict.fromkeys(speaker_ids)
        if personas.get(person_id)
    ]
    return "\n".join(speaker_lines[:_MAX_DESCRIBED_SPEAKERS])


_LINE_END = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_OPENING_DELIMITERS = "*_~`\"'“”„«‘「『【[(<＊"  # models write **Nora:** or 「Nora」：
_CLOSING_DELIMITERS = str.maketrans("“„«‘「『【[(<", "””»’」』】])>")
_DELIMITERS = frozenset(_OPENING_DELIMITERS + _OPENING_DELIMITERS.translate(_CLOSING_DELIMITERS))
_DELIMITER_REMOVAL_TABLE = str.maketrans(dict.fromkeys(_DELIMITERS))


class EchoFilter:
    """Removes speaker tags from a streamed answer, holding back only the starts of lines.

    The character's own tags, even repeated ones, are removed from the start of each line. The
    answer ends at a line that starts with another speaker's tag, unless nothing was shown before:
    then that tag is removed, too. The result does not depend on how the text is split.
    """

    def __init__(self, own_label: str | None, other_labels: Iterable[str] = ()) -> None:
        self.has_ended = False
        """Whether another speaker's tag ended the answer."""
        self._own_labels = frozenset(_clean_label(one) for one in [own_label] if one is not None)
        self._known_labels = (self._own_labels | set(map(_clean_label, other_labels))) - {""}
        self._held_text = ""
        self._is_at_line_start = True
        self._has_text = False

    def feed(self, text: str) -> str:
        """Add the answer's next chunk, and return the text that can be shown now."""
        if not self._own_labels:
            return text
        is_waiting = self._is_at_line_start or self._held_text or self.has_ended
        if self._has_text and not is_waiting and _LINE_END.search(text) is None:
            return text  # the usual case: inside a line
        self._held_text += text
        return self._release_held_text(is_end_of_answer=False)

    def finish(self) -> str:
        """End the answer, and return the text that was still held back."""
        return self._release_held_text(is_end_of_answer=True)

    def _release_held_text(self, *, is_end_of_answer: bool) -> str:
        shown_parts = []
        while self._held_text and not self.has_ended:
            tag_length: int | None = 0
            if self._is_at_line_start:
                tag_length = self._measure_tag(is_end_of_answer=is_end_of_answer)
            if tag_length is None:
                break
            if tag_length:
                self._remove_tag(tag_length)
            else:
                shown_parts.append(self._take_line())
        return "".join(shown_parts)

    def _remove_tag(self, tag_length: int) -> None:
        tag, self._held_text = self._held_text[:tag_length], self._held_text[tag_length:]
        is_own_tag = _normalize_tag(COLON.split(tag, maxsplit=1)[0]) in self._own_labels
        self.has_ended = self._has_text and not is_own_tag

    def _take_line(self) -> str:
        """Remove a line from the held text and return it; return "" for leading blank lines."""
        end_match = _LINE_END.search(self._held_text)
        line_length = len(self._held_text) if end_match is None else end_match.end()
        line, self._held_text = self._held_text[:line_length], self._held_text[line_length:]
        self._is_at_line_start = end_match is not None
        self._has_text = self._has_text or bool(line.strip())
        return line if self._has_text else ""

    def _measure_tag(self, *, is_end_of_answer: bool) -> int | None:
        """Return the length of the line's tag, 0 if it has none, or None if more text is needed."""
        end_match = _LINE_END.search(self._held_text)
        line = self._held_text if end_match is None else self._held_text[: end_match.start()]
        indent_length = len(line) - len(line.lstrip())
        limit = indent_length + MAX_TAG_CHARS
        colon = COLON.search(line, 0, limit)
        is_line_complete = is_end_of_answer or end_match is not None
        if colon is None:
            can_grow = not is_line_complete and len(line) < limit
            return None if can_grow and self._may_become_a_tag(line) else 0
        if _normalize_tag(line[: colon.start()]) not in self._known_labels:
            return 0
        text_after_colon = line[colon.end() :]
        closing_delimiter = _find_closing_delimiter(line[: colon.start()])
        text = text_after_colon.removeprefix(closing_delimiter).lstrip()
        if not is_line_complete and (not text or closing_delimiter.startswith(text_after_colon)):
            return None
        return len(line) - len(text)

    def _may_become_a_tag(self, line: str) -> bool:
        normalized_line = _normalize_tag(line)
        return any(label.startswith(normalized_line) for label in self._known_labels)


def _find_closing_delimiter(tag_text: str) -> str:
    """Return the closing delimiter expected after the colon, as in `**Nora:**`, or ""."""
    name = tag_text.strip()
    opening_delimiters = name[: len(name) - len(name.lstrip(_OPENING_DELIMITERS))]
    closing_delimiters = opening_delimiters[::-1].translate(_CLOSING_DELIMITERS)
    return "" if name.endswith(closing_delimiters) else closing_delimiters


def _normalize_tag(text: str) -> str:
    """Remove delimiters, case, suffix, and invisible characters from a name, to compare it.

    Models invent suffixes, `Nora#12:`, and stage directions, `Nora (smiles):`. Characters are
    decomposed, so that prefixes of a name become prefixes of the result.
    """
    name = strip_name_suffix(text)
    if name.isascii() and name.isprintable():  # the usual case, in a fraction of the time
        return " ".join(name.translate(_DELIMITER_REMOVAL_TABLE).lower().split())
    decomposed_name = unicodedata.normalize("NFKD", name).casefold()
    visible_chars = (
        char
        for char in decomposed_name
        if char.isspace() or not (char in _DELIMITERS or is_invisible(char))
    )
    return " ".join("".join(visible_chars).split())


_clean_label = text_cache(1024)(_normalize_tag)  # cached: each answer has the same few speakers
