"""Sample presets, conversations, and prompts."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from bot.chat.incoming import Person
from bot.chat.prompt import Prompt
from bot.chat.session import Session, Turn
from bot.prompting.compose.compose import compose
from bot.prompting.draft import Draft
from bot.prompting.fit import FittedPrompt, estimate_message_tokens, fit_draft
from bot.prompting.presets.preset import Preset
from tests.samples import ALICE, make_incoming

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def words(texts: Sequence[str]) -> Sequence[int]:
    """Count tokens as the words of each text."""
    return [len(text.split()) for text in texts]


def letters(text: str) -> list[float]:
    """Embed a text as the counts of certain letters."""
    return [float(text.count(letter)) for letter in "abc"]


def preset(**given: object) -> Preset:
    return Preset.model_validate({"name": "nora", "provider": "p", "model": "m", **given})


def user(text: str, speaker: Person = ALICE) -> Turn:
    return Turn("user", text, speaker, AT)


def bot(text: str) -> Turn:
    return Turn("assistant", text, None, AT)


async def count(prompt: Prompt) -> int:
    return sum(estimate_message_tokens(prompt.messages, words))


def compose_and_fit(
    who: Preset,
    turns: Sequence[Turn],
    text: str = "and now?",
    *,
    characters: Mapping[str, str] | None = None,
    **given: object,
) -> FittedPrompt:
    message = make_incoming(text, **given)  # type: ignore[arg-type]
    made = compose(who, Session(1, tuple(turns)), message, characters=characters)
    return asyncio.run(fit_draft(made, who.max_input_tokens, count, words))


def as_sent(result: FittedPrompt) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in result.prompt.messages]


def history(*texts: str, speaker: Person = ALICE) -> Session:
    """Return alternating questions and answers, a minute apart."""
    turns = (bot(text) if at % 2 else user(text, speaker) for at, text in enumerate(texts))
    return Session(
        1, tuple(replace(turn, at=AT + timedelta(minutes=at)) for at, turn in enumerate(turns))
    )


def draft(one: Preset, text: str, session: Session = Session(1, ()), **more: object) -> Draft:  # noqa: B008
    later = replace(make_incoming(text), at=AT + timedelta(minutes=len(session.turns)))
    return compose(one, session, later, **more)  # type: ignore[arg-type]


def shown(made: Draft) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in made.prompt.messages]
