"""Say which characters of a room speak next, in which order, and why; pure.

The rules are those of SillyTavern's groups, which people know: who is called answers; else each
character feels like it or not, by its `talkativeness`; what is said to the bot is always answered
by somebody. Clock and dice are handed in, so that a rehearsal tells what the real thing would do.
"""

import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from bot.chat.incoming import Incoming
from bot.chat.session import Turn
from bot.prompting.presets.preset import Preset
from bot.prompting.text.words import find_word
from bot.routing.decide import called_by_platform, wishes

LONGEST_CHAIN = 3
"""So many answers follow each other at most until a human speaks again."""

Dice = Callable[[], float]

_CALLED = 100.0  # who is called, goes first; the earlier in the text, the sooner
_REPLIED_TO = 200.0
_JUST_SPOKE = 10.0  # who was the last to speak is still in the talk; then it fades
_FADING = 0.5
_REACTION_SHARE = 0.5  # another character's words move one less than a person's
_MARKS = "*_~` :"
_SHORTEST_QUOTE_CHARS = 8


@dataclass(frozen=True, slots=True)
class _DrawContext:
    """What feeling like speaking depends on, besides the character."""

    recent: Sequence[Turn]
    now: datetime
    dice: Dice
    share: float  # of its talkativeness that what was said calls for: 0, it was not said to us


@dataclass(frozen=True, slots=True)
class SpeakerCandidate:
    """A character: what speaks for its turn, in points and in words, and what came of it."""

    preset: str
    score: float
    reasons: tuple[str, ...]
    chosen: bool = False


def schedule(
    room: Sequence[Preset], incoming: Incoming, recent: Sequence[Turn], *, dice: Dice, now: datetime
) -> tuple[SpeakerCandidate, ...]:
    """Who answers what a person said: the chosen in their order, then the others.

    `recent` is what was said before it, oldest first. Nobody is chosen when it was said to others
    and moves nobody.
    """
    quoted = _quoted(incoming.quote, recent, room)
    called = [
        _with(one, _REPLIED_TO, "was replied to") if one.preset == quoted else one
        for one in _called(room, incoming.text, recent)
    ]
    if any(one.chosen for one in called):
        return _ordered(
            [one if one.chosen else _because(one, "another was called") for one in called]
        )
    to_us = any(called_by_platform(incoming, preset) for preset in room)
    talk = _DrawContext(recent, now, dice, share=1.0 if to_us else 0.0)
    moved = [
        _with(one, preset.talkativeness, "wakes by its own rules")
        if wishes(incoming, preset, dice)
        else _moved(one, preset, talk)
        for one, preset in zip(called, room, strict=True)
    ]
    if to_us and not any(one.chosen for one in moved):
        best = max(moved, key=lambda one: one.score)
        moved[moved.index(best)] = _with(best, 0, "somebody has to answer")
    return _ordered(moved)


def react(
    room: Sequence[Preset],
    answers: Sequence[Turn],
    recent: Sequence[Turn],
    *,
    dice: Dice,
    now: datetime,
) -> tuple[SpeakerCandidate, ...]:
    """Who speaks after the newest of `answers`, which characters gave since a person spoke.

    One at most: it is asked anew after each answer. Who has spoken already has to be called.
    """
    if not answers or len(answers) >= LONGEST_CHAIN:
        return ()
    *_, newest = answers
    spoke = {turn.preset for turn in answers}
    talk = _DrawContext(recent, now, dice, share=_REACTION_SHARE)
    others = [preset for preset in room if preset.name != newest.preset]
    called = _called(others, newest.text, recent)
    ranked = _ordered(
        _because(one, "has spoken already")
        if one.preset in spoke and not one.chosen
        else _moved(one, preset, talk)
        for one, preset in zip(called, others, strict=True)
    )
    return (*ranked[:1], *(replace(one, chosen=False) for one in ranked[1:]))


def _called(room: Sequence[Preset], text: str, recent: Sequence[Turn]) -> list[SpeakerCandidate]:
    """Everybody, with points for being in the talk, and many for being called by a name."""
    candidates = []
    for preset in room:
        place = min(
            (at for name in _names(preset) if (at := _find(name, text)) is not None), default=None
        )
        if place is None:
            points, reasons = _in_the_talk(preset, recent)
            candidates.append(SpeakerCandidate(preset.name, points, reasons))
        else:  # and whoever spoke last does not come before who was called first
            points = _CALLED - place / len(text)
            candidates.append(
                SpeakerCandidate(preset.name, points, ("was called by name",), chosen=True)
            )
    return candidates


def _moved(one: SpeakerCandidate, preset: Preset, talk: _DrawContext) -> SpeakerCandidate:
    """Whether a character feels like speaking; who was called does."""
    if one.chosen:
        return one
    rests = preset.cooldown_seconds - _seconds_silent(preset, talk)
    if rests > 0:
        return _because(one, f"rests for {rests:.0f} s more")
    likely = preset.talkativeness * talk.share
    if likely <= 0:
        return _because(one, "was not spoken to")
    drawn = talk.dice()
    if drawn < likely:
        return _with(one, likely, f"felt like it: drew {drawn:.2f} of {likely:.2f}")
    return replace(
        _because(one, f"did not feel like it: drew {drawn:.2f}, speaks below {likely:.2f}"),
        score=one.score + likely,
    )


def _ordered(candidates: Iterable[SpeakerCandidate]) -> tuple[SpeakerCandidate, ...]:
    """By score, the chosen first; of those only as many as may speak in a row."""
    ranked = sorted(candidates, key=lambda one: (one.chosen, one.score), reverse=True)
    return tuple(
        one
        if place < LONGEST_CHAIN or not one.chosen
        else replace(_because(one, f"{LONGEST_CHAIN} in a row are enough"), chosen=False)
        for place, one in enumerate(ranked)
    )


def _with(one: SpeakerCandidate, points: float, reason: str) -> SpeakerCandidate:
    return replace(one, score=one.score + points, reasons=(*one.reasons, reason), chosen=True)


def _because(one: SpeakerCandidate, reason: str) -> SpeakerCandidate:
    return replace(one, reasons=(*one.reasons, reason))


def _in_the_talk(preset: Preset, recent: Sequence[Turn]) -> tuple[float, tuple[str, ...]]:
    spoken = [turn.preset for turn in reversed(recent) if turn.preset]
    if preset.name not in spoken:
        return 0.0, ()
    turns_ago = spoken.index(preset.name)
    points = _JUST_SPOKE * _FADING**turns_ago
    return points, ("spoke last" if turns_ago == 0 else "spoke lately",)


def _seconds_silent(preset: Preset, talk: _DrawContext) -> float:
    last = next((turn.at for turn in reversed(talk.recent) if turn.preset == preset.name), None)
    return math.inf if last is None else (talk.now - last).total_seconds()


def _quoted(quote: str | None, recent: Sequence[Turn], room: Sequence[Preset]) -> str | None:
    """Whose message was replied to, by the name in its first line or by its words."""
    if not quote or not quote.strip():
        return None
    first_line = quote.strip().splitlines()[0].strip(_MARKS).casefold()
    for preset in room:
        if first_line == preset.plays_as.casefold():
            return preset.name
    words = quote.strip()
    here = {preset.name for preset in room}
    for turn in reversed(recent):
        same = turn.text.strip() == words
        if turn.preset in here and (
            same or (len(words) >= _SHORTEST_QUOTE_CHARS and words in turn.text)
        ):
            return turn.preset
    return None


def _names(preset: Preset) -> tuple[str, ...]:
    return tuple(name for name in (preset.role_name, preset.name, *preset.aliases) if name)


def _find(name: str, text: str) -> int | None:
    """Where a name stands in a text as a word of its own, `_Nora_` included."""
    name, text = (
        unicodedata.normalize("NFKC", one).casefold().replace("_", " ") for one in (name, text)
    )
    return find_word(name, text)
