"""Conversations that a preset can be tried on before anybody has talked to it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from bot.chat.console.scene import Scene
from bot.chat.incoming import Address, Person, Said, WakeReason
from bot.chat.session import Session, Turn
from bot.frozen_dataclass import frozen_dataclass
from bot.texts.text import Text, translatable

_BEGIN = datetime(2026, 1, 5, 19, 30, tzinfo=UTC)
_PLATFORM = "web"
_ANSWER = ""
"""In the lines of a sample: who answers."""


@frozen_dataclass
class SampleScene:
    """A scene in lines: who says what; the last one is answered."""

    id: str
    title: Text
    lines: Sequence[tuple[str, str]]

    def for_preset(self, preset: str) -> Scene:
        """Return the scene with the answers of a preset."""
        *earlier, (name, text) = self.lines
        turns = tuple(
            _turn(at, speaker, said, preset) for at, (speaker, said) in enumerate(earlier)
        )
        people = {speaker for speaker, _ in self.lines if speaker}
        address = Address(_PLATFORM, f"sample-{self.id}")
        said = Said(
            address=address,
            external_key=self.id,
            message_id=f"sample-{len(earlier)}",
            author=_person(name),
            text=text,
            at=_BEGIN + timedelta(minutes=len(earlier)),
            wake=WakeReason.MENTION if len(people) > 1 else WakeReason.DM,
            scopes=(address.lane,),
        )
        return Scene(Session(1, turns), said)


def _turn(at: int, speaker: str, text: str, preset: str) -> Turn:
    moment = _BEGIN + timedelta(minutes=at)
    if speaker == _ANSWER:
        return Turn("assistant", text, None, moment, preset)
    return Turn("user", text, _person(speaker), moment, message_id=f"sample-{at}")


def _person(name: str) -> Person:
    return Person(f"{_PLATFORM}:{name.casefold()}", name)


_TAVERN = (
    ("Alice", "Is anybody still up? It is raining into my boots."),
    (_ANSWER, "Come in, and mind the step. There is soup."),
    ("Bob", "I was here first, but I will share the bench."),
    ("Alice", "Thank you, Bob. What are you mending there?"),
    (_ANSWER, "Something that stopped. It happens to things in this weather."),
    ("小明", "我的怀表停了，你能帮我看看吗？"),
)
_LONG = tuple(
    line
    for number in range(1, 61)
    for line in (
        ("Alice", f"Chapter {number}: what happened after the bridge, and who was there?"),
        (
            _ANSWER,
            f"In chapter {number} the bridge was closed at dusk. The ferryman came, then his"
            " brother; they argued about the toll until the lamps were lit, and nobody crossed.",
        ),
    )
)
SAMPLE_SCENES: Sequence[SampleScene] = (
    SampleScene("tavern", translatable("Three people in a tavern"), _TAVERN),
    SampleScene(
        "first",
        translatable("The first message of one person"),
        (("Alice", "Hello! Who are you, and what can you do?"),),
    ),
    SampleScene(
        "long",
        translatable("A long conversation of one person"),
        (*_LONG, ("Alice", "Tell me again how it began.")),
    ),
)
"""The first one is shown first."""
