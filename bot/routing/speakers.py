"""Several characters in one place: who of them speaks next, and how readers see who does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from bot.chat.incoming import Incoming, WakeReason
from bot.chat.session import Turn
from bot.prompting.presets.preset import Preset
from bot.prompting.speakers.labels import label_speakers
from bot.routing.active_presets import ActivePreset
from bot.routing.decide import Decision, decide, decide_among
from bot.routing.scheduling import Dice, SpeakerCandidate, react, schedule


@dataclass(frozen=True, slots=True)
class ActiveCharacters:
    """Everybody who answers in a place; most places have one."""

    casts: tuple[ActivePreset, ...]

    def decide(
        self, incoming: Incoming, recent: Sequence[Turn], *, dice: Dice, now: datetime
    ) -> tuple[Decision, tuple[ActivePreset, ...]]:
        """What a message asks for, and if that is an answer, who gives it, in order."""
        if len(self.casts) == 1:
            return decide(incoming, self.casts[0].preset, dice), self.casts
        found = schedule(self._presets, incoming, recent, dice=dice, now=now)
        chosen = self._chosen(found)
        return decide_among(incoming, self._presets, somebody_speaks=bool(chosen)), chosen

    def reaction(
        self, answers: Sequence[Turn], recent: Sequence[Turn], *, dice: Dice, now: datetime
    ) -> tuple[ActivePreset, ...]:
        """Who says something to the newest of these answers: one, or nobody."""
        turns = [*recent, *answers]
        return self._chosen(react(self._presets, answers, turns, dice=dice, now=now))

    def explain(
        self, text: str, incoming: Incoming, recent: Sequence[Turn], *, dice: Dice, now: datetime
    ) -> str:
        """Tell who would answer this if the author of `incoming` said it to the bot, and why."""
        if len(self.casts) == 1:
            return f"{self.casts[0].preset.name} is alone here and answers all that is said to me."
        said = replace(incoming, text=text, wake=WakeReason.MENTION, quote=None)
        found = schedule(self._presets, said, recent, dice=dice, now=now)
        return "\n".join(
            f"{'→' if one.chosen else '·'} {one.preset} ({one.score:.1f}): {', '.join(one.reasons)}"
            for one in found
        )

    def line(self, cast: ActivePreset, names: Mapping[str, str], form: str) -> str:
        """The line that tells who speaks, in this form; empty where that is plain."""
        if len(self.casts) == 1:
            return ""
        return form.format(label_speakers((), names).characters[cast.preset.name]) + "\n"

    @property
    def presets(self) -> set[str]:
        """The names of the presets that answer here."""
        return {cast.preset.name for cast in self.casts}

    @property
    def _presets(self) -> list[Preset]:
        return [cast.preset for cast in self.casts]

    def _chosen(self, found: Sequence[SpeakerCandidate]) -> tuple[ActivePreset, ...]:
        by_name = {cast.preset.name: cast for cast in self.casts}
        return tuple(by_name[one.preset] for one in found if one.chosen)
