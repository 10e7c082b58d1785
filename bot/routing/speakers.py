"""Select who answers a message: wake rules, and the choice among several characters."""

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias

from bot.chat.incoming import IncomingMessage, Quote, WakeReason
from bot.chat.session import Turn
from bot.prompting.lorebook.entries import compile_key, is_regex
from bot.prompting.presets.preset import Preset
from bot.prompting.text.words import find_word
from bot.texts.text import StoredPattern, marked
from bot.value_class import value_class

Dice: TypeAlias = Callable[[], float]
"""Returns a random number in [0, 1)."""

_MARKUP_CHARS = "*_~` :"  # around the name line of an answer
_URL = re.compile(r"https?://[!-~]+")  # a Chinese text may follow without a space
_MIN_QUOTE_CHARS = 8
_WAKE_WORD_REASON = StoredPattern(marked("answers to the word {word}"))
CHANCE_REASON = StoredPattern(marked("chance: rolled {drawn}, less than {limit}"))
_MAX_PATTERN_SECONDS = 0.05  # of CPU time, because other messages wait


def is_addressed(incoming: IncomingMessage, preset: Preset) -> bool:
    """Return whether the message addresses the bot in a way the preset responds to."""
    match incoming.wake:
        case WakeReason.DM | WakeReason.COMMAND:
            return True
        case WakeReason.MENTION:
            return preset.wake.mention
        case WakeReason.REPLY:
            return preset.wake.reply
        case None:
            return False


def find_wake_rule(incoming: IncomingMessage, preset: Preset, dice: Dice) -> str | None:
    """Return a description of the preset's wake rule that applies, or None if none does."""
    if preset.wake.always:
        return marked("answers everything here")
    for word in preset.wake.words:
        if _matches_wake_word(word, incoming.authored_text):
            return _WAKE_WORD_REASON.with_values(word=word)
    roll = dice()
    if roll < preset.wake.chance:
        return CHANCE_REASON.with_values(drawn=f"{roll:.2f}", limit=f"{preset.wake.chance:.2f}")
    return None


def is_addressed_to_others(
    incoming: IncomingMessage, recent_turns: Sequence[Turn], presets: Sequence[Preset]
) -> bool:
    """Return whether the message is meant for other people: it replies to or mentions them."""
    if incoming.wake is not None:
        return False
    presets_with_names = [preset for preset in presets if preset.wake.names]
    if any(find_name_position(preset, incoming.text) == 0 for preset in presets_with_names):
        return False
    quote = incoming.quote
    if quote is None or quote.author is None or quote.is_ours:
        return bool(incoming.mentions)
    return bool(incoming.mentions) or find_quoted_preset(quote, recent_turns, presets) is None


def continues_thread(incoming: IncomingMessage, turns: Sequence[Turn], preset: Preset) -> bool:
    """Return whether the message is in a thread where the character answered before."""
    if not (incoming.in_thread and preset.wake.sticky):
        return False
    return any(turn.preset == preset.name for turn in turns)


def _matches_wake_word(word: str, text: str) -> bool:
    if not is_regex(word):
        return find_word(_normalize(word), _normalize(text)) is not None
    pattern = compile_key(word)
    if isinstance(pattern, str):
        return False
    try:
        return pattern.search(text, timeout=_MAX_PATTERN_SECONDS) is not None
    except TimeoutError:
        return False


def find_name_position(preset: Preset, text: str) -> int | None:
    """Return where one of a character's names first occurs outside links, or None."""
    text = _URL.sub(lambda link: " " * len(link[0]), text)
    names = [name for name in (preset.role_name, preset.display_name, *preset.aliases) if name]
    positions = (find_word(_normalize(name), _normalize(text)) for name in names)
    return min((position for position in positions if position is not None), default=None)


def find_quoted_preset(
    quote: Quote | None, recent_turns: Sequence[Turn], presets: Sequence[Preset]
) -> str | None:
    """Return the preset whose character wrote the quoted message, going by its text, or None."""
    text = quote.text.strip() if quote else ""
    if not text:
        return None
    first_line = text.splitlines()[0].strip(_MARKUP_CHARS).casefold()
    for preset in presets:
        if first_line == preset.character_name.casefold():
            return preset.name
    names = {preset.name for preset in presets}
    for turn in reversed(recent_turns):
        is_partial_quote = len(text) >= _MIN_QUOTE_CHARS and text in turn.text
        if turn.preset in names and (turn.text.strip() == text or is_partial_quote):
            return turn.preset
    return None


def _normalize(text: str) -> str:
    """Fold case and width, and replace underscores, so that `_Nora_` is a word."""
    return unicodedata.normalize("NFKC", text).casefold().replace("_", " ")


MAX_ANSWERS_IN_A_ROW = 3
"""The maximum number of answers in a row by characters, until a person writes again."""
_COOLDOWN_REASON = StoredPattern(marked("is on cooldown for {seconds} s more"))
_CHANCE_FAILED_REASON = StoredPattern(marked("chance: rolled {drawn}, needed less than {limit}"))
_TOO_MANY_IN_A_ROW_REASON = StoredPattern(marked("at most {number} characters answer in a row"))

_ADDRESSED_REASONS = {
    WakeReason.DM: marked("was addressed: this is a private chat"),
    WakeReason.MENTION: marked("was addressed by a mention"),
    WakeReason.REPLY: marked("was addressed by a reply"),
    WakeReason.COMMAND: marked("was addressed by a command"),
}

_REPLIED_TO_SCORE = 200.0
_NAMED_SCORE = 100.0  # minus up to 1, so that the character named first comes first
_SPOKE_LAST_SCORE = 10.0
_SCORE_DECAY_FACTOR = 0.5  # factor per answer since the character's last one
_REACTION_CHANCE_FACTOR = 0.5  # the chance to react to a character, relative to a person


@value_class
class SpeakerCandidate:
    """An active character, with its score and whether it is chosen to answer."""

    preset: str
    score: float
    reasons: tuple[str, ...]
    chosen: bool = False


@value_class
class _ChanceInputs:
    """The inputs, besides talkativeness, that decide whether a character answers by chance."""

    recent_turns: Sequence[Turn]
    now: datetime
    dice: Dice
    talkativeness_factor: float
    """The factor for a character's talkativeness; 0 if the message does not address the bot."""


def select_speakers(
    presets: Sequence[Preset],
    incoming: IncomingMessage,
    recent_turns: Sequence[Turn],
    *,
    dice: Dice,
    now: datetime,
) -> tuple[SpeakerCandidate, ...]:
    """Rank the characters that may answer a person's message; those chosen come first."""
    if is_addressed_to_others(incoming, recent_turns, presets):
        reason = marked("was not addressed: the message is for somebody else")
        return tuple(SpeakerCandidate(preset.name, 0.0, (reason,)) for preset in presets)
    if len(presets) == 1:
        return (_decide_on_only_candidate(presets[0], incoming, recent_turns, dice),)
    quoted_name = find_quoted_preset(incoming.quote, recent_turns, presets)
    candidates = [
        _mark_as_chosen(candidate, _REPLIED_TO_SCORE, marked("was replied to"))
        if candidate.preset == quoted_name
        else candidate
        for candidate in _score_by_name(presets, incoming.authored_text, recent_turns)
    ]
    if any(candidate.chosen for candidate in candidates):
        return _rank_candidates(
            candidate
            if candidate.chosen
            else _with_reason(candidate, marked("another character was called"))
            for candidate in candidates
        )
    is_any_addressed = any(
        is_addressed(incoming, preset) or continues_thread(incoming, recent_turns, preset)
        for preset in presets
    )
    talkativeness_factor = 1.0 if is_any_addressed else 0.0
    chance_inputs = _ChanceInputs(recent_turns, now, dice, talkativeness_factor)
    decisions = [
        _mark_as_chosen(candidate, preset.talkativeness, rule)
        if (rule := find_wake_rule(incoming, preset, dice))
        else _decide_by_chance(candidate, preset, chance_inputs)
        for candidate, preset in zip(candidates, presets, strict=True)
    ]
    if is_any_addressed and not any(candidate.chosen for candidate in decisions):
        best_candidate = max(decisions, key=lambda candidate: candidate.score)
        reason = marked("had the highest score, and one character must answer")
        decisions[decisions.index(best_candidate)] = _mark_as_chosen(best_candidate, 0, reason)
    return _rank_candidates(decisions)


def select_next_speaker(
    presets: Sequence[Preset],
    answers: Sequence[Turn],
    recent_turns: Sequence[Turn],
    *,
    dice: Dice,
    now: datetime,
) -> tuple[SpeakerCandidate, ...]:
    """Rank who may react to the newest of `answers`, part of `recent_turns`; choose at most one."""
    if not answers or len(answers) >= MAX_ANSWERS_IN_A_ROW:
        return ()
    answer = answers[-1]
    other_presets = [preset for preset in presets if preset.name != answer.preset]
    if not other_presets:
        return ()
    answer_presets = {turn.preset for turn in answers}
    chance_inputs = _ChanceInputs(recent_turns, now, dice, _REACTION_CHANCE_FACTOR)
    scored_candidates = _score_by_name(other_presets, answer.text, recent_turns)
    candidates = _rank_candidates(
        _with_reason(candidate, marked("has answered already"))
        if candidate.preset in answer_presets and not candidate.chosen
        else _decide_by_chance(candidate, preset, chance_inputs)
        for candidate, preset in zip(scored_candidates, other_presets, strict=True)
    )
    return (*candidates[:1], *(replace(candidate, chosen=False) for candidate in candidates[1:]))


def _decide_on_only_candidate(
    preset: Preset, incoming: IncomingMessage, recent_turns: Sequence[Turn], dice: Dice
) -> SpeakerCandidate:
    only_character_reason = marked("is the only character here")
    if incoming.wake is not None and is_addressed(incoming, preset):
        reasons = (only_character_reason, _ADDRESSED_REASONS[incoming.wake])
        return SpeakerCandidate(preset.name, 0.0, reasons, chosen=True)
    candidate = SpeakerCandidate(preset.name, 0.0, (only_character_reason,))
    if preset.wake.names and find_name_position(preset, incoming.authored_text) is not None:
        return _mark_as_chosen(candidate, 0.0, marked("was called by name"))
    if continues_thread(incoming, recent_turns, preset):
        return _mark_as_chosen(candidate, 0.0, marked("has answered in this thread before"))
    if rule := find_wake_rule(incoming, preset, dice):
        return _mark_as_chosen(candidate, 0.0, rule)
    return _with_reason(candidate, marked("was not addressed"))


def _score_by_name(
    presets: Sequence[Preset], text: str, recent_turns: Sequence[Turn]
) -> list[SpeakerCandidate]:
    candidates = []
    for preset in presets:
        position = find_name_position(preset, text) if preset.wake.names else None
        if position is None:
            candidates.append(_score_by_recency(preset, recent_turns))
        else:  # recency does not count: whoever is named first speaks first
            score, reasons = _NAMED_SCORE - position / len(text), (marked("was called by name"),)
            candidates.append(SpeakerCandidate(preset.name, score, reasons, chosen=True))
    return candidates


def _score_by_recency(preset: Preset, recent_turns: Sequence[Turn]) -> SpeakerCandidate:
    recent_presets = [turn.preset for turn in reversed(recent_turns) if turn.preset]
    if preset.name not in recent_presets:
        return SpeakerCandidate(preset.name, 0.0, ())
    turns_ago = recent_presets.index(preset.name)
    score = _SPOKE_LAST_SCORE * _SCORE_DECAY_FACTOR**turns_ago
    reason = marked("spoke last") if turns_ago == 0 else marked("spoke recently")
    return SpeakerCandidate(preset.name, score, (reason,))


def _decide_by_chance(
    candidate: SpeakerCandidate, preset: Preset, chance_inputs: _ChanceInputs
) -> SpeakerCandidate:
    if candidate.chosen:
        return candidate
    seconds_left = preset.cooldown_seconds - _count_silent_seconds(preset, chance_inputs)
    if seconds_left > 0:
        return _with_reason(candidate, _COOLDOWN_REASON.with_values(seconds=f"{seconds_left:.0f}"))
    threshold = preset.talkativeness * chance_inputs.talkativeness_factor
    if threshold <= 0:
        return _with_reason(candidate, marked("was not addressed"))
    roll = chance_inputs.dice()
    values = {"drawn": f"{roll:.2f}", "limit": f"{threshold:.2f}"}
    if roll < threshold:
        return _mark_as_chosen(candidate, threshold, CHANCE_REASON.with_values(**values))
    rejected_candidate = _with_reason(candidate, _CHANCE_FAILED_REASON.with_values(**values))
    return replace(rejected_candidate, score=candidate.score + threshold)


def _count_silent_seconds(preset: Preset, inputs: _ChanceInputs) -> float:
    answer_times = (turn.at for turn in reversed(inputs.recent_turns) if turn.preset == preset.name)
    answered_at = next(answer_times, None)
    return math.inf if answered_at is None else (inputs.now - answered_at).total_seconds()


def _rank_candidates(candidates: Iterable[SpeakerCandidate]) -> tuple[SpeakerCandidate, ...]:
    ranked_candidates = sorted(
        candidates, key=lambda candidate: (candidate.chosen, candidate.score), reverse=True
    )
    for rank, candidate in enumerate(ranked_candidates):
        if rank >= MAX_ANSWERS_IN_A_ROW and candidate.chosen:
            limit_reason = _TOO_MANY_IN_A_ROW_REASON.with_values(number=MAX_ANSWERS_IN_A_ROW)
            ranked_candidates[rank] = replace(_with_reason(candidate, limit_reason), chosen=False)
    return tuple(ranked_candidates)


def _mark_as_chosen(candidate: SpeakerCandidate, score: float, reason: str) -> SpeakerCandidate:
    return replace(
        candidate, score=candidate.score + score, reasons=(*candidate.reasons, reason), chosen=True
    )


def _with_reason(candidate: SpeakerCandidate, reason: str) -> SpeakerCandidate:
    return replace(candidate, reasons=(*candidate.reasons, reason))
