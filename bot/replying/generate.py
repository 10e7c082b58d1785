"""Let a model write an answer: cleaned of what no reader should see, and timed."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from bot.chat.prompt import (
    Delta,
    Finish,
    FinishReason,
    GenerationEvent,
    Prompt,
    QueuePosition,
    ReasoningDelta,
    Usage,
)
from bot.chat.receipt import Receipt, Timings
from bot.errors import BackendInterrupted
from bot.ports import Backend, Clock
from bot.prompting.draft.fit import FittedPrompt
from bot.prompting.presets.preset import Preset
from bot.prompting.speakers.echo_filter import EchoFilter
from bot.replying.output_filter import OutputFilter
from bot.telemetry.metrics import SECONDS_TO_FIRST_TOKEN, record_usage

_INTERRUPTED = "\n\n⚠ (interrupted)"


@dataclass(frozen=True, slots=True)
class GeneratedAnswer:
    """An answer, as its readers are to see it in the end."""

    text: str
    reason: FinishReason | None  # None: it was interrupted
    usage: Usage
    first_word_seconds: float | None  # since the model was asked
    seconds: float
    thoughts: str = ""  # what the model thought before; for those who run it, never for readers


def receipt_of(
    written: GeneratedAnswer,
    fitted: FittedPrompt,
    preset: Preset,
    version: int | None,
    queued_seconds: float,
) -> Receipt:
    """Put down what was sent, what was left out, and what it took."""
    return Receipt(
        preset=preset.name,
        preset_version=version,
        provider=preset.provider,
        prompt=fitted.prompt,
        layout=fitted.draft.layout,
        dropped=fitted.dropped,
        tokens=fitted.tokens,
        limit=fitted.limit,
        answer=written.text,
        thoughts=written.thoughts,
        reason=written.reason,
        usage=written.usage,
        timings=Timings(queued_seconds, written.first_word_seconds, written.seconds),
    )


async def generate_answer(
    backend: Backend,
    prompt: Prompt,
    show: Callable[[str], None],
    announce: Callable[[QueuePosition], None],
    clock: Clock,
) -> GeneratedAnswer:
    """Ask for an answer, and `show` it piece by piece as it comes; `announce` waiting for it.

    Raises:
        BackendError: there is none. What is interrupted after its first word is kept and marked.
    """
    answer = _AnswerBuilder(prompt, show, announce, clock)
    interrupted = False
    try:
        async with aclosing(backend.generate(prompt)) as stream:
            async for event in stream:
                answer.take(event)
                if answer.whole:  # closing the stream stops the model
                    break
    except BackendInterrupted:
        if not answer.begun:
            raise
        interrupted = True
    return answer.written(interrupted=interrupted)


class _AnswerBuilder:
    """What has come of an answer so far."""

    def __init__(
        self,
        prompt: Prompt,
        show: Callable[[str], None],
        announce: Callable[[QueuePosition], None],
        clock: Clock,
    ) -> None:
        self._show = show
        self._announce = announce
        self._clock = clock
        self._echo = EchoFilter(prompt.answers_as, prompt.speakers)
        self._cleaned = OutputFilter(prompt.filtered)
        self._said: list[str] = []
        self._thoughts: list[str] = []
        self._end = Finish(FinishReason.STOP)
        self._asked = clock.monotonic()
        self._first_word_seconds: float | None = None

    @property
    def begun(self) -> bool:
        """Whether there is anything for a reader."""
        return bool("".join(self._said).strip())

    @property
    def whole(self) -> bool:
        """Whether nothing more can follow, whatever the model still says."""
        return self._echo.stopped

    def take(self, event: GenerationEvent) -> None:
        match event:
            case Delta(text):
                if self._first_word_seconds is None:
                    self._first_word_seconds = self._clock.monotonic() - self._asked
                    SECONDS_TO_FIRST_TOKEN.observe(self._first_word_seconds)
                self._hear(self._cleaned.feed(self._echo.feed(text.replace("\0", ""))))
            case ReasoningDelta(text):
                self._thoughts.append(text.replace("\0", ""))  # no database keeps one
            case Finish():
                self._end = event
                record_usage(event.usage)
            case QueuePosition():
                self._announce(event)

    def written(self, *, interrupted: bool) -> GeneratedAnswer:
        self._hear(self._cleaned.feed(self._echo.finish()) + self._cleaned.finish())
        text = "".join(self._said).strip()
        return GeneratedAnswer(
            text=text + _INTERRUPTED if interrupted else text,
            reason=None if interrupted else self._end.reason,
            usage=self._end.usage,
            first_word_seconds=self._first_word_seconds,
            seconds=self._clock.monotonic() - self._asked,
            thoughts="".join(self._thoughts).strip(),
        )

    def _hear(self, text: str) -> None:
        self._said.append(text)
        self._show(text)
