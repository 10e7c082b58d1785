"""Ask a backend and write down what it said, in order."""

from contextlib import aclosing
from dataclasses import dataclass, field

from bot.chat.prompt import Delta, Finish, Message, Prompt, QueuePosition, ReasoningDelta
from bot.errors import BackendError
from bot.ports import Backend


def prompt(text: str = "hello", **parts: object) -> Prompt:
    given: dict[str, object] = {"model": "m", "conversation": "room"} | parts
    return Prompt(messages=(Message("user", text),), **given)  # type: ignore[arg-type]


@dataclass
class Answer:
    deltas: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    finish: Finish | None = None
    error: BackendError | None = None

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    @property
    def says_why(self) -> str:
        """What the operator reads and what the chat is told."""
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
                        assert text, "an empty delta says nothing"
                        answer.deltas.append(text)
                    case ReasoningDelta(text):
                        assert text, "an empty thought is none"
                        answer.thoughts.append(text)
                    case Finish():
                        answer.finish = piece
                    case QueuePosition():
                        assert not answer.deltas, "who is served does not wait"
    except BackendError as error:
        answer.error = error
    return answer
