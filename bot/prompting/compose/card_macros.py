"""Build the macros of a card for one conversation: names, the time, and seeded random choices.

Everything here depends on the conversation alone. The same message gets the same random numbers
whenever a prompt is composed for it, so a retry or a replay composes the same prompt.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace

from bot.chat.incoming import Joined, Said
from bot.chat.session import Turn
from bot.frozen_dataclass import frozen_dataclass
from bot.prompting.cards.macros import Macros
from bot.prompting.compose.inputs import PromptInputs
from bot.prompting.presets.preset import Preset
from bot.prompting.speakers.clean_name import clean_name
from bot.prompting.speakers.user_personas import sanitize_persona

ORIGINAL_SYSTEM = (
    "Write {{char}}'s next reply in a conversation between {{char}} and {{group}}."
    " Stay in character, and never speak or act for anybody else."
)
"""The default instructions of a card, and what `{{original}}` stands for."""

_MAX_LISTED_NAMES = 5
_MAX_GREETING_CHARS = 20_000  # ten messages on Discord; nobody can stop a greeting


@frozen_dataclass
class CardMacros:
    """The macros of the stable beginning of a prompt, and of the part that changes."""

    stable: Macros
    """Here `{{user}}` is everybody in the conversation, because the author changes too often."""
    current: Macros


def build_card_macros(inputs: PromptInputs) -> CardMacros:
    """Return the values of a card's macros for this message."""
    ids = [turn.speaker.id for turn in inputs.turns if turn.speaker]
    people = [inputs.speakers.people[one] for one in dict.fromkeys(ids)]
    characters = inputs.speakers.characters.items()
    others = [label for preset, label in characters if preset != inputs.preset.name]
    stable = Macros(
        char=inputs.preset.character_name,
        user=_listed(people),
        group=_listed([*others, *people]),
        now=inputs.incoming.at,
        rng=seeded_random(inputs.seed),
        version=str(inputs.preset.version),
        model=inputs.preset.model,
    )
    user_texts = [turn.text for turn in reversed(inputs.turns) if turn.role == "user"]
    answers = [turn.text for turn in reversed(inputs.turns) if turn.role == "assistant"]
    author = inputs.incoming.author.id
    current = replace(
        stable,
        user=inputs.speakers.people[author],
        rng=seeded_random(inputs.seed, turn_seed(inputs.turns[-1])),
        persona=sanitize_persona(inputs.personas.get(author, "")),
        last_user_message=user_texts[0],
        last_message=inputs.turns[-1].text,
        last_char_message=answers[0] if answers else "",
    )
    return CardMacros(stable, current)


def choose_greeting(
    preset: Preset,
    incoming: Said | Joined,
    *,
    rng: random.Random,
    number: int | None = None,
    characters: int = 1,
) -> str | None:
    """Return a greeting by its number from 1, or a random one; None if the preset has none.

    Among several active characters a preset may have other greetings. What is longer than ten
    messages is cut.
    """
    greetings = preset.greetings_among(characters)
    if not greetings:
        return None
    if number is not None:
        text = greetings[max(1, min(number, len(greetings))) - 1]
    else:
        text = rng.choice(greetings)
    if not preset.macros:
        return _cut(text)
    name = clean_name(incoming.author.name) if incoming.author else ""
    macros = Macros(
        char=preset.character_name,
        user=name or "user",
        now=incoming.at,
        rng=rng,
        model=preset.model,
    )
    return _cut(macros.expand(text))


def seeded_random(*seeds: str) -> random.Random:
    """Return a generator that gives the same numbers for the same seeds."""
    digest = hashlib.sha256("\x00".join(seeds).encode(errors="replace")).digest()
    return random.Random(digest)  # noqa: S311 -- rolls of a game


def turn_seed(turn: Turn) -> str:
    """Return a text that identifies a turn, the same whenever the session is loaded."""
    return f"{int(turn.at.timestamp())} {turn.text}"


def _cut(greeting: str) -> str:
    """Return a greeting as it is, or its beginning and an ellipsis."""
    if len(greeting) <= _MAX_GREETING_CHARS:
        return greeting
    return f"{greeting[: _MAX_GREETING_CHARS - 1]}…"


def _listed(names: Sequence[str]) -> str:
    """["Alice", "Bob", "Carol"] -> Alice, Bob and Carol."""
    listed = [*names[:_MAX_LISTED_NAMES], *(["others"] if len(names) > _MAX_LISTED_NAMES else [])]
    *first, last = listed or ["user"]
    return f"{', '.join(first)} and {last}" if first else last
