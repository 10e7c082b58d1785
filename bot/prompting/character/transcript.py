"""The transcript of a library character, as messages with or without speaker tags."""

from collections.abc import Sequence

from bot.chat.incoming import Person
from bot.errors import CharacterError
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import TextTokenCounter
from bot.prompting.speakers.echo_filter import EchoFilter
from bot.prompting.speakers.labels import SpeakerLabels, label_speakers

Messages = list[dict[str, str]]

_MODES = ("default", "add", "not_add")


@frozen_dataclass
class TranscriptLine:
    """One utterance."""

    speaker: str | None
    """None: the character itself."""
    text: str


class Transcript:
    """The lines so far. A library has no user ids, so people are identified by their names.

    `naming` is "add" (every line has a speaker tag), "not_add", or "default": all lines have one,
    old ones and the character's own as well, as soon as a second person talks to it.
    """

    def __init__(self, role_name: str, naming: str) -> None:
        if str(naming).lower() not in _MODES:
            raise CharacterError(f"user_name_in_message={naming!r}: use one of {', '.join(_MODES)}")
        self.lines: list[TranscriptLine] = []
        self._role_name = role_name
        self._naming = naming.lower()
        self._participants: dict[str, None] = {}  # in the order of their first line

    def add_participant(self, user: str) -> None:
        """Register a person; from the second one on, lines may have speaker tags."""
        self._participants.setdefault(user)

    def to_messages(self, lines: Sequence[TranscriptLine]) -> Messages:
        """Return the lines in OpenAI's form."""
        tagged = self._tags_speakers()
        labels = self._speaker_labels()
        return [
            {
                "role": "assistant" if line.speaker is None else "user",
                "content": labels.tag_text(self._label(line, labels), line.text)
                if tagged
                else line.text,
            }
            for line in lines
        ]

    def newest_messages(self, tokens: int | None, count: TextTokenCounter) -> Messages:
        """Return the newest lines, back to the first that does not fit."""
        messages = self.to_messages(self.lines)
        if tokens is None:
            return messages
        costs = count([message["content"] for message in messages])
        kept = len(messages)
        while kept and costs[kept - 1] <= tokens:
            kept -= 1
            tokens -= costs[kept]
        return messages[kept:]

    def strip_echo(self, response: str) -> str:
        """Remove the tag that a model may put before its own line after reading `Nora:...`."""
        people = self._speaker_labels().people.values()
        echo_filter = EchoFilter(self._role_name if self._tags_speakers() else None, people)
        return echo_filter.feed(response) + echo_filter.finish()

    def _speaker_labels(self) -> SpeakerLabels:
        names = [
            *self._participants,
            *(line.speaker for line in self.lines if line.speaker is not None),
        ]
        people = [Person(name, name) for name in names]
        return label_speakers(people, {self._role_name: self._role_name})

    def _label(self, line: TranscriptLine, labels: SpeakerLabels) -> str:
        return self._role_name if line.speaker is None else labels.people[line.speaker]

    def _tags_speakers(self) -> bool:
        has_several = self._naming == "default" and len(self._participants) > 1
        return self._naming == "add" or has_several
