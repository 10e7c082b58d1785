"""What a card's texts mean in one conversation: who is who, what time it is, and how rng fall.

Everything here follows from the conversation alone. The same message gets the same rng whenever
it is looked at again, so a retry or a replay composes the same prompt.
"""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bot.chat.incoming import Incoming
from bot.chat.session import Session, Turn
from bot.prompting.cards.macros import Macros
from bot.prompting.presets.preset import Preset
from bot.prompting.speakers.clean_name import clean_name
from bot.prompting.speakers.labels import SpeakerLabels
from bot.prompting.speakers.user_personas import sanitize_persona

ORIGINAL_SYSTEM = (
    "Write {{char}}'s next reply in a conversation between {{char}} and {{group}}."
    " Stay in character, and never speak or act for anybody else."
)
"""What a card without instructions of its own has, and what its `{{original}}` stands for."""

_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class CardMacros:
    """`standing` fills what stands first and should not change with every message; `now` the rest.

    For `standing` the user is everybody in the room: who writes next changes too often.
    """

    stable: Macros
    current: Macros


@dataclass(frozen=True, slots=True)
class PromptInputs:
    """Who plays, who is there, and what was said, the newest message last."""

    preset: Preset
    session: Session
    incoming: Incoming
    turns: Sequence[Turn]
    speakers: SpeakerLabels
    personas: Mapping[str, str]  # who people say they are, by id

    @property
    def seed(self) -> str:
        return f"{self.incoming.address.conversation} {self.session.number}"

    def is_own(self, turn: Turn) -> bool:
        """Whether the character said it."""
        return turn.speaker is None and turn.preset in {None, self.preset.name}

    def speaker_label(self, turn: Turn) -> str:
        """Name the speaker of a turn, whether lines are tagged or not."""
        return (
            self.preset.character_name
            if self.is_own(turn)
            else self.speakers.label_of(turn, self.preset.name)
        )


def build_card_macros(room: PromptInputs) -> CardMacros:
    """Say what a card's macros mean now, in this room."""
    speakers = [turn.speaker.id for turn in room.turns if turn.speaker]
    people = [room.speakers.people[one] for one in dict.fromkeys(speakers)]
    company = room.speakers.characters.items()
    others = [label for preset, label in company if preset != room.preset.name]
    standing = Macros(
        char=room.preset.character_name,
        user=_listed(people),
        group=_listed([*others, *people]),
        at=room.incoming.at,
        rng=seeded_random(room.seed),
        version=str(room.preset.version),
        model=room.preset.model,
    )
    said = [turn.text for turn in reversed(room.turns) if turn.role == "user"]
    answers = [turn.text for turn in reversed(room.turns) if turn.role == "assistant"]
    now = replace(
        standing,
        user=room.speakers.people[room.incoming.author.id],
        rng=seeded_random(room.seed, turn_seed(room.turns[-1])),
        persona=sanitize_persona(room.personas.get(room.incoming.author.id, "")),
        newest=said[0],
        last=room.turns[-1].text,
        last_answer=answers[0] if answers else "",
    )
    return CardMacros(standing, now)


def choose_greeting(
    preset: Preset, incoming: Incoming, *, rng: random.Random, number: int | None = None
) -> str | None:
    """Choose a greeting, by its number from 1 or by rng; None if the preset has none."""
    greetings = [text for text in (preset.greeting, *preset.alternate_greetings) if text]
    if not greetings:
        return None
    if number is not None:
        text = greetings[max(1, min(number, len(greetings))) - 1]
    else:
        text = rng.choice(greetings)
    if not preset.macros:
        return text
    return Macros(
        char=preset.character_name,
        user=clean_name(incoming.author.name) or "user",
        at=incoming.at,
        rng=rng,
        model=preset.model,
    ).expand(text)


def seeded_random(*seeds: str) -> random.Random:
    """Dice that fall the same way for the same seeds."""
    digest = hashlib.sha256("\x00".join(seeds).encode(errors="replace")).digest()
    return random.Random(digest)  # noqa: S311 -- rng of a game


def turn_seed(turn: Turn) -> str:
    """What tells a turn from others, the same whenever it is read again."""
    return f"{int(turn.at.timestamp())} {turn.text}"


def _listed(people: Sequence[str]) -> str:
    """["Alice", "Bob", "Carol"] -> Alice, Bob and Carol."""
    named = [*people[:_MAX_NAMED], *(["others"] if len(people) > _MAX_NAMED else [])]
    *first, last = named or ["user"]
    return f"{', '.join(first)} and {last}" if first else last
