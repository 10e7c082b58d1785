"""Let a model write an answer: cleaned of what no reader should see, and timed."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from bot.chat.prompt import Delta, Finish, FinishReason, Prompt, Thought, Usage, Waiting
from bot.chat.receipt import Receipt, Timings
from bot.errors import BackendInterrupted
from bot.ports import Backend, Clock
from bot.prompting.budget import Fitted
from bot.prompting.echo import EchoRemover
from bot.prompting.output_filter import OutputFilter
from bot.prompting.preset import Preset
from bot.telemetry.metrics import SECONDS_TO_FIRST_WORD

_INTERRUPTED = "\n\n⚠ (interrupted)"


@dataclass(frozen=True, slots=True)
class Written:
    """An answer, as its readers are to see it in the end."""

    text: str
    reason: FinishReason | None  # None: it was interrupted
    usage: Usage
    first_word_seconds: float | None  # since the model was asked
    seconds: float
    thoughts: str = ""  # what the model thought before; for those who run it, never for readers


def receipt_of(
    written: Written, fitted: Fitted, preset: Preset, version: int | None, queued_seconds: float
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


async def write(
    backend: Backend,
    prompt: Prompt,
    show: Callable[[str], None],
    announce: Callable[[Waiting], None],
    clock: Clock,
) -> Written:
    """Ask for an answer, and `show` it piece by piece as it comes; `announce` waiting for it.

    Raises:
        BackendError: there is none. What is interrupted after its first word is kept and marked.
    """
    echo, cleaned = EchoRemover(prompt.answers_as), OutputFilter(prompt.filtered)
    said: list[str] = []
    thoughts: list[str] = []
    end = Finish(FinishReason.STOP)
    asked = clock.monotonic()
    first_word: float | None = None

    def hear(text: str) -> None:
        said.append(text)
        show(text)

    interrupted = False
    try:
        async with aclosing(backend.generate(prompt)) as stream:
            async for event in stream:
                match event:
                    case Delta(text):
                        if first_word is None:
                            first_word = clock.monotonic() - asked
                            SECONDS_TO_FIRST_WORD.observe(first_word)
                        hear(cleaned.feed(echo.feed(text)))
                    case Thought(text):
                        thoughts.append(text)
                    case Finish():
                        end = event
                    case Waiting():
                        announce(event)
    except BackendInterrupted:
        if not "".join(said).strip():
            raise
        interrupted = True
    hear(cleaned.feed(echo.finish()) + cleaned.finish())
    text = "".join(said).strip()
    return Written(
        text=text + _INTERRUPTED if interrupted else text,
        reason=None if interrupted else end.reason,
        usage=end.usage,
        first_word_seconds=first_word,
        seconds=clock.monotonic() - asked,
        thoughts="".join(thoughts).strip(),
    )
