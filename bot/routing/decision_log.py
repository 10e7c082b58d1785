"""Remember why the newest messages of each channel were answered or not, for admins."""

from collections import OrderedDict, deque
from collections.abc import Sequence

from bot.chat.incoming import Said
from bot.chat.receipt import Receipt
from bot.frozen_dataclass import frozen_dataclass
from bot.routing.active_presets import ActivePreset
from bot.routing.decide import Answer, Decision, Ignore, Observe
from bot.routing.speaker_selection import SpeakerCandidate
from bot.texts.stored import looked_up
from bot.texts.text import Text, joined, translatable

_MAX_CHANNELS = 1000
_MAX_MESSAGES = 8
_MAX_CHARS = 40
_ANSWERED = translatable("answered")
_OBSERVED = translatable("not answered, but remembered")
_IGNORED = translatable("not answered")


@frozen_dataclass
class _NotedDecision:
    """A decision on a message; it is put into words once somebody asks for them."""

    name: str
    """Of the author."""
    begin: str
    """Of the message."""
    outcome: Text
    candidates: Sequence[SpeakerCandidate]

    def describe(self) -> Text:
        reasons = joined(map(_with_reasons, self.candidates), "; ")
        return translatable(
            "{name}: “{text}” – {outcome}",
            name=self.name,
            text=self.begin,
            outcome=joined([self.outcome, reasons], ": "),
        )


class DecisionLog:
    """What this process decided; it is lost with the process."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Text | _NotedDecision]] = OrderedDict()

    def note(self, said: Said, decision: Decision) -> None:
        """Remember the decision on a message, unless it is a command."""
        noted = _note_of(said, decision)
        if noted is None:
            return
        key = said.address.channel
        lines = self._lines.get(key)
        if lines is None:
            lines = self._lines[key] = deque(maxlen=_MAX_MESSAGES)
            if len(self._lines) > _MAX_CHANNELS:
                self._lines.popitem(last=False)
        lines.append(noted)
        self._lines.move_to_end(key)

    def note_substitutes(
        self, channel: str, speakers: Sequence[ActivePreset], receipts: Sequence[Receipt]
    ) -> None:
        """Remember which answers another model gave than that of the character's preset."""
        own = {one.preset.name: (one.preset.provider, one.preset.model) for one in speakers}
        for receipt in receipts:
            expected = own.get(receipt.preset)
            used = (receipt.provider, receipt.prompt.model)
            if expected is not None and used != expected and channel in self._lines:
                self._lines[channel].append(
                    translatable(
                        "{name}: {used} answered in place of {expected}",
                        name=receipt.preset,
                        used="/".join(used),
                        expected="/".join(expected),
                    )
                )

    def newest(self, channel: str) -> tuple[Text, ...]:
        """Return a line for each of the newest messages, oldest first."""
        return tuple(
            one.describe() if isinstance(one, _NotedDecision) else one
            for one in self._lines.get(channel, ())
        )

    def forget(self, channel: str) -> None:
        """Drop what is remembered of a channel."""
        self._lines.pop(channel, None)


def describe_silence(decision: Observe | Ignore) -> Text:
    """Say for each character why it did not answer."""
    return joined([_with_reasons(one) for one in decision.candidates], "; ")


def _note_of(said: Said, decision: Decision) -> _NotedDecision | None:
    match decision:
        case Answer(candidates=candidates):
            outcome = _ANSWERED
        case Observe(candidates=candidates):
            outcome = _OBSERVED
        case Ignore(candidates=candidates) if candidates:
            outcome = _IGNORED
        case _:
            return None
    return _NotedDecision(said.author.name, _short(said.text), outcome, candidates)


def _with_reasons(one: SpeakerCandidate) -> Text:
    return joined([one.preset, joined(map(looked_up, one.reasons), translatable(", "))], " ")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS].rstrip()} …"
