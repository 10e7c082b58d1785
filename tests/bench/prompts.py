"""How much CPU the prompt of a message costs: `python -m tests.bench.prompts`.

Composes and fits the prompts of a growing chat with 20 to 1,000 turns in its history: each message
adds a question and an answer, the oldest two turns fall out of the window.
"""

import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from typing_extensions import override

from bot.backends.chat_completions.http_backend import PromptTokenEstimator
from bot.chat.incoming import Person
from bot.chat.prompt import Prompt
from bot.chat.session import Session, Turn
from bot.ports import TextTokenCounter
from bot.prompting.compose.compose import compose, fit_for_backend
from bot.prompting.presets.preset import Preset
from tests.fakes import FakeBackend
from tests.samples import ALICE, BOB, make_incoming

LENGTHS, BUDGETS = (20, 100, 400, 1_000), (16_000, None)
MESSAGES, ROUNDS = 20, 3
PEOPLE = (ALICE, BOB, Person("telegram:3", "小明"), Person("telegram:4", "María"))
MODEL = "llama-3.1-8b"  # in no known encoding
_AT = datetime(2026, 11, 21, tzinfo=UTC)
_ENGLISH = (
    "The keeper of lamp {n} says that the tide comes in at {n} past four; nobody believes it."
)
_OTHERS = (
    _ENGLISH,
    "第{n}盏灯的守护者说，潮水四点{n}分上涨；没有人相信他。",
    "¿Y el faro {n}? Dicen que la marea sube a las cuatro y {n}… 🌊\nnote: nobody believes it",
)


class CountingBackend(FakeBackend):
    """A backend that estimates prompts as a service with OpenAI's API is estimated."""

    def __init__(self) -> None:
        super().__init__()
        self._estimator = PromptTokenEstimator()

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        return await self._estimator.count(prompt, MODEL)

    @override
    async def text_counter(self, prompt: Prompt) -> TextTokenCounter:
        return await self._estimator.text_counter(MODEL)

    @override
    async def max_prompt_tokens(self, prompt: Prompt) -> int | None:
        return None


@dataclass(frozen=True)
class Chat:
    """A chat with so many people, and the texts that they write."""

    name: str
    people: Sequence[Person]
    texts: Sequence[str]

    def turns(self, start: int, length: int) -> tuple[Turn, ...]:
        return tuple(self._turn(at) for at in range(start, start + length))

    def _turn(self, at: int) -> Turn:
        text = self.texts[at // 2 % len(self.texts)].format(n=at)
        if at % 2:
            return Turn("assistant", text, None, _AT, "nora")
        return Turn("user", text, self.people[at // 2 % len(self.people)], _AT)


CHATS = (Chat("private", PEOPLE[:1], (_ENGLISH,)), Chat("group", PEOPLE, _OTHERS))


async def main() -> None:
    gc.freeze()
    gc.set_threshold(10_000)  # as in the service
    tell(f"{'chat':8} {'budget':>7} " + "".join(f"{turns:>8}" for turns in LENGTHS) + "  turns")
    for chat in CHATS:
        for budget in BUDGETS:
            costs = [await measure(chat, budget, length) for length in LENGTHS]
            shown = "".join(f"{cost:8.2f}" for cost in costs)
            tell(f"{chat.name:8} {budget or 'none':>7} {shown}  ms of CPU a message")


async def measure(chat: Chat, budget: int | None, length: int) -> float:
    """Return the median CPU of a message, in milliseconds, in the best of some rounds."""
    backend = CountingBackend()
    preset = Preset.model_validate(
        {
            "name": "nora",
            "provider": "p",
            "model": "m",
            "system": "You are Nora, who keeps the lighthouse.",
            "max_input_tokens": budget,
        }
    )
    said = chat.turns(0, 2 * ROUNDS * MESSAGES + length)
    rounds = []
    for first in range(0, ROUNDS * MESSAGES, MESSAGES):
        costs = []
        for message in range(first, first + MESSAGES):
            turns = said[2 * message : 2 * message + length]
            begun = time.thread_time_ns()
            await prompt_of(preset, chat.people[message % len(chat.people)], turns, backend)
            costs.append((time.thread_time_ns() - begun) / 1e6)
        rounds.append(statistics.median(costs[1:]))
    return min(rounds)


async def prompt_of(
    preset: Preset, author: Person, turns: tuple[Turn, ...], backend: CountingBackend
) -> None:
    incoming = make_incoming(f"And what about lamp {len(turns)}?", author=author)
    await fit_for_backend(preset, compose(preset, Session(1, turns), incoming), backend)


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    asyncio.run(main())
