"""Send a prompt to a backend and record the events of its answer."""

from contextlib import aclosing
from dataclasses import dataclass, field

from bot.chat.prompt import (
    Delta,
    Finish,
    Message,
    Prompt,
    QueuePosition,
    RateLimitWait,
    ReasoningDelta,
    Retraction,
)
from bot.errors import BackendError
from bot.ports import Backend


def prompt(text: str = "hello", **parts: object) -> Prompt:
    given: dict[str, object] = {"model": "m", "conversation": "chat"} | parts
    return Prompt(messages=(Message("user", text),), **given)  # type: ignore[arg-type]


@dataclass
class Answer:
    deltas: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    finish: Finish | None = None
    error: BackendError | None = None

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    @property
    def error_texts(self) -> str:
        """Return the error text for the operator and the notice for the chat."""
        assert self.error is not None
        return f"{self.error} | {self.error.notice}"


async def ask(backend: Backend, question: Prompt | None = None) -> Answer:
    answer = Answer()
    try:
        async with aclosing(backend.generate(question or prompt())) as pieces:
            async for piece in pieces:
                assert answer.finish is None, "nothing may follow the finish"
                match piece:
                    case Delta(text):
                        assert text, "a delta must not be empty"
                        answer.deltas.append(text)
                    case ReasoningDelta(text):
                        assert text, "a reasoning delta must not be empty"
                        answer.reasoning.append(text)
                    case Retraction():
                        answer.reasoning += answer.deltas
                        answer.deltas.clear()
                    case Finish():
                        answer.finish = piece
                    case QueuePosition() | RateLimitWait():
                        assert not answer.deltas, "a queue position comes before the first delta"
    except BackendError as error:
        answer.error = error
    return answer
