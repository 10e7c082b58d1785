"""What was said to a character and by it, and how a model reads that, with names if need be."""

from collections.abc import Sequence
from dataclasses import dataclass

from bot.chat.incoming import Person
from bot.errors import CharacterError
from bot.prompting.speakers.echo_filter import EchoFilter
from bot.prompting.speakers.labels import SpeakerLabels, label_speakers
from bot.prompting.text.token_counter import TextTokenCounter

Messages = list[dict[str, str]]

_MODES = ("default", "add", "not_add")


@dataclass(frozen=True, slots=True)
class Line:
    """What somebody said; `speaker` None: the character itself."""

    speaker: str | None
    text: str


class Transcript:
    """The lines so far. People are told apart by their names: a library knows no other identity.

    `naming` is "add" (every line tells its speaker), "not_add", or "default": all lines do, old
    ones and the character's own too, from when a second person talks to it.
    """

    def __init__(self, role_name: str, naming: str) -> None:
        if str(naming).lower() not in _MODES:
            raise CharacterError(
                f"user_name_in_message={naming!r}: it is one of {', '.join(_MODES)}"
            )
        self.lines: list[Line] = []
        self._role_name = role_name
        self._naming = naming.lower()
        self._met: dict[str, None] = {}  # in the order they came

    def meet(self, user: str) -> None:
        """Note that somebody talks here; from the second one on, lines may tell their speakers."""
        self._met.setdefault(user)

    def written(self, lines: Sequence[Line]) -> Messages:
        """These lines as a model reads them."""
        tagged = self._tags_speakers()
        room = self._room()
        return [
            {
                "role": "assistant" if line.speaker is None else "user",
                "content": room.tag_text(self._label(line, room), line.text)
                if tagged
                else line.text,
            }
            for line in lines
        ]

    def newest(self, tokens: int | None, count: TextTokenCounter) -> Messages:
        """What fits of all lines: the first that does not leaves those before it out, too."""
        messages = self.written(self.lines)
        if tokens is None:
            return messages
        costs = count([message["content"] for message in messages])
        kept = len(messages)
        while kept and costs[kept - 1] <= tokens:
            kept -= 1
            tokens -= costs[kept]
        return messages[kept:]

    def without_echo(self, response: str) -> str:
        """A model that reads `Nora:...` may begin its own line so, too."""
        people = self._room().people.values()
        remover = EchoFilter(self._role_name if self._tags_speakers() else None, people)
        return remover.feed(response) + remover.finish()

    def _room(self) -> SpeakerLabels:
        names = [*self._met, *(line.speaker for line in self.lines if line.speaker is not None)]
        people = [Person(name, name) for name in names]
        return label_speakers(people, {self._role_name: self._role_name})

    def _label(self, line: Line, room: SpeakerLabels) -> str:
        return self._role_name if line.speaker is None else room.people[line.speaker]

    def _tags_speakers(self) -> bool:
        several = self._naming == "default" and len(self._met) > 1
        return self._naming == "add" or several
