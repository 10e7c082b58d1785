"""What a turn pays for when more conversations are held than there are places in the model.

`python -m tests.bench.places`: 8 conversations on 4 places, 10 turns each in random order, all with
one system text of about 500 tokens; then a restart, and one more turn of each. Beside it, in the
same run, llama.cpp's server with its own defaults, which is asked the same.
"""

import argparse
import asyncio
import random
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx2

from bot.backends.llama_cpp import LlamaCpp
from bot.backends.openai_compatible import OpenAICompatible
from bot.chat.prompt import Delta, Finish, Message, Prompt, Thought, Usage, Waiting
from bot.children import supervised
from bot.ports import Backend
from bot.settings import ProviderSettings
from bot.templates.rendering import Renderer
from tests.backends.local_model import lend_model

CONVERSATIONS, PLACES, TURNS = 8, 4, 10
CONTEXT_TOKENS = 2560
SYSTEM = "You are Nora, the keeper of a small library by the sea. " + " ".join(
    f"Rule {number}: you answer kindly, you name the shelf, and you never invent a book."
    for number in range(1, 25)
)
ASKED = (
    "This is question {turn} from visitor {visitor}. I was at the harbour this morning and met "
    "the lamp keeper and his dog, and they told me about a book on ships and storms with a blue "
    "cover that somebody left on the third table near the window last {day}. Do you know which one "
    "they mean, and on which shelf I should look for it, please? I come back after my walk."
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SERVER = """
import signal, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], int(sys.argv[2])
params.n_parallel, params.n_ctx = int(sys.argv[3]), int(sys.argv[3]) * int(sys.argv[4])
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.chat_template, params.verbosity, params.fit_params = "chatml", 2, False
server = xllamacpp.Server(params)
while True:
    signal.pause()
"""


@dataclass(frozen=True)
class Turn:
    number: int
    first_word_seconds: float
    usage: Usage


@dataclass
class Run:
    """One side's conversations and what their turns cost."""

    histories: list[list[Message]] = field(
        default_factory=lambda: [[Message("system", SYSTEM)] for _ in range(CONVERSATIONS)]
    )
    turns: list[Turn] = field(default_factory=list)

    async def ask(self, backend: Backend, visitor: int) -> None:
        history = self.histories[visitor]
        number = len(history) // 2 + 1
        text = ASKED.format(turn=number, visitor=visitor, day=DAYS[(number + visitor) % 7])
        history.append(Message("user", text))
        prompt = Prompt(
            tuple(history),
            "default",
            f"bench:{visitor}",
            parameters={"temperature": 0},
            max_output_tokens=32,
        )
        said: list[str] = []
        began, first = time.perf_counter(), 0.0
        async with aclosing(backend.generate(prompt)) as pieces:
            async for piece in pieces:
                match piece:
                    case Delta(words):
                        first = first or time.perf_counter() - began
                        said.append(words)
                    case Finish(_, usage):
                        self.turns.append(Turn(number, first, usage))
                    case Waiting() | Thought():
                        pass
        history.append(Message("assistant", "".join(said)))

    def cached_share(self, numbers: Sequence[int]) -> float:
        counted = [turn.usage for turn in self.turns if turn.number in numbers]
        return sum(each.cached_tokens for each in counted) / sum(
            each.prompt_tokens for each in counted
        )

    def first_word(self, number: int) -> float:
        return median(turn.first_word_seconds for turn in self.turns if turn.number == number)


def order(seed: int) -> list[int]:
    """Who speaks when: everybody `TURNS` times."""
    visitors = [visitor for visitor in range(CONVERSATIONS) for _ in range(TURNS)]
    random.Random(seed).shuffle(visitors)
    return visitors


async def ours(data_dir: Path, seed: int, engine: str) -> Run:
    settings = ProviderSettings.model_validate(
        {
            "kind": "llama_cpp",
            "engine": engine,
            "parallel": PLACES,
            "context_tokens": CONTEXT_TOKENS,
        }
    )
    run = Run()
    async with Renderer() as renderer:
        for visitors in (order(seed), list(range(CONVERSATIONS))):
            backend = LlamaCpp(settings, data_dir, renderer)
            await backend.warm("default")
            try:
                for visitor in visitors:
                    await run.ask(backend, visitor)
            finally:
                await backend.close()
    return run


async def defaults(data_dir: Path, model: Path, seed: int) -> Run:
    run = Run()
    async with serving(data_dir, model) as backend:
        for visitor in order(seed):
            await run.ask(backend, visitor)
    return run


@asynccontextmanager
async def serving(data_dir: Path, model: Path) -> AsyncIterator[Backend]:
    """llama.cpp's server as it comes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(model), str(port), str(PLACES), str(CONTEXT_TOKENS)]
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}")
        )

        async def ready() -> bool:
            try:
                return (await client.get("/health")).is_success
            except httpx2.TransportError:
                return False

        await stack.enter_async_context(
            supervised(
                "the server as it comes",
                [sys.executable, "-c", SERVER, *words],
                ready=ready,
                log_file=data_dir / "defaults.log",
            )
        )
        settings = ProviderSettings(
            base_url=f"http://127.0.0.1:{port}/v1", model="local", first_token_seconds=120
        )
        backend = OpenAICompatible(settings, "defaults")
        stack.push_async_callback(backend.close)
        yield backend


def table(runs: Mapping[str, Run]) -> str:
    lines = ["                 from cache   first word: turn 2   turn 10   ratio   after a restart"]
    for name, run in runs.items():
        second, last = run.first_word(2), run.first_word(TURNS)
        lines.append(
            f"{name:<16} {run.cached_share(range(1, TURNS + 1)):>10.1%} {second * 1000:>17.0f} ms"
            f" {last * 1000:>6.0f} ms {last / second:>7.2f}"
        )
        if any(turn.number > TURNS for turn in run.turns):
            after = run.first_word(TURNS + 1)
            share = run.cached_share([TURNS + 1])
            lines[-1] += f"   {share:.1%}, {after * 1000:.0f} ms, {after / second:.2f}"
    return "\n".join(lines)


async def main(seed: int, engine: str) -> None:
    with tempfile.TemporaryDirectory(prefix="troupe-bench-") as folder:
        data_dir = Path(folder)
        model = await lend_model(data_dir)
        runs = {
            "Troupe": await ours(data_dir, seed, engine),
            "server defaults": await defaults(data_dir, model, seed),
        }
        print(table(runs))  # noqa: T201


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", default="auto")
    given = parser.parse_args()
    asyncio.run(main(given.seed, given.engine))
