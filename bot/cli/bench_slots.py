"""What a turn pays for when more conversations are held than there are places in the model.

`troupe bench places`: 8 conversations on 4 places, 10 turns each in random order, all with
one system text of about 500 tokens; then a restart, and one more turn of each. Beside it, in the
same run, llama.cpp's server with its own defaults (bench_server.py), which is asked the same.
"""

import asyncio
import random
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bot.backends.registry import make_backend
from bot.chat.prompt import Delta, Finish, Message, Prompt, QueuePosition, ReasoningDelta, Usage
from bot.errors import BackendUnavailable
from bot.ports import Backend
from bot.runtime.subprocesses import supervised
from bot.settings import ProviderSettings
from bot.templates.renderer import Renderer

_CONVERSATIONS, _PLACES, _TURNS = 8, 4, 10
_CONTEXT_TOKENS = 2560
_SYSTEM = "You are Nora, the keeper of a small library by the sea. " + " ".join(
    f"Rule {number}: you answer kindly, you name the shelf, and you never invent a book."
    for number in range(1, 25)
)
_ASKED = (
    "This is question {turn} from visitor {visitor}. I was at the harbour this morning and met "
    "the lamp keeper and his dog, and they told me about a book on ships and storms with a blue "
    "cover that somebody left on the third table near the window last {day}. Do you know which one "
    "they mean, and on which shelf I should look for it, please? I come back after my walk."
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, slots=True)
class _Turn:
    number: int
    first_word_seconds: float
    usage: Usage


@dataclass(slots=True)
class _Run:
    """One side's conversations and what their turns cost."""

    histories: list[list[Message]] = field(
        default_factory=lambda: [[Message("system", _SYSTEM)] for _ in range(_CONVERSATIONS)]
    )
    turns: list[_Turn] = field(default_factory=list)

    async def ask(self, backend: Backend, visitor: int) -> None:
        history = self.histories[visitor]
        number = len(history) // 2 + 1
        text = _ASKED.format(turn=number, visitor=visitor, day=_DAYS[(number + visitor) % 7])
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
                        self.turns.append(_Turn(number, first, usage))
                    case QueuePosition() | ReasoningDelta():
                        pass
        history.append(Message("assistant", "".join(said)))
        # The server closes a connection after each answer: time for our client to notice.
        await asyncio.sleep(0.05)

    def cached_share(self, numbers: Sequence[int]) -> float:
        counted = [turn.usage for turn in self.turns if turn.number in numbers]
        return sum(each.cached_tokens for each in counted) / sum(
            each.prompt_tokens for each in counted
        )

    def first_word(self, number: int) -> float:
        return median(turn.first_word_seconds for turn in self.turns if turn.number == number)


def _order(seed: int) -> list[int]:
    """Who speaks when: everybody `_TURNS` times."""
    visitors = [visitor for visitor in range(_CONVERSATIONS) for _ in range(_TURNS)]
    random.Random(seed).shuffle(visitors)  # noqa: S311 # the same order for both sides
    return visitors


async def compare_places(model: Path, settings: ProviderSettings, seed: int = 1) -> str:
    """Ask both sides the same, for some minutes; gives a table.

    `settings` are those of the provider whose engine runs the model.

    Raises:
        BackendError: one of them does not answer.
        ChildFailed: the server does not start.
    """
    with tempfile.TemporaryDirectory(prefix="troupe-bench-") as folder:
        data_dir = Path(folder)
        async with Renderer() as renderer:
            runs = {
                "Troupe": await _ours(model, settings, data_dir, renderer, seed),
                "server defaults": await _defaults(model, data_dir, renderer, seed),
            }
    return _table(runs)


async def _ours(
    model: Path, given: ProviderSettings, data_dir: Path, renderer: Renderer, seed: int
) -> _Run:
    settings = given.model_copy(
        update={
            "model_path": model,
            "projector_path": None,
            "parallel": _PLACES,
            "context_tokens": _CONTEXT_TOKENS,
        }
    )
    run = _Run()
    for visitors in (_order(seed), list(range(_CONVERSATIONS))):  # the latter after a restart
        backend = make_backend("local", settings, data_dir, renderer)
        try:
            await backend.check()  # loads the model, which is no part of the first turn
            for visitor in visitors:
                await run.ask(backend, visitor)
        finally:
            await backend.close()
    return run


async def _defaults(model: Path, data_dir: Path, renderer: Renderer, seed: int) -> _Run:
    run = _Run()
    async with _serving(model, data_dir, renderer) as backend:
        for visitor in _order(seed):
            await run.ask(backend, visitor)
    return run


@asynccontextmanager
async def _serving(model: Path, data_dir: Path, renderer: Renderer) -> AsyncIterator[Backend]:
    """llama.cpp's server as it comes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = "bot.cli.bench_server"
    words = [str(model), str(port), str(_PLACES), str(_CONTEXT_TOKENS)]
    settings = ProviderSettings(
        base_url=f"http://127.0.0.1:{port}/v1", model="local", first_token_seconds=120
    )
    backend = make_backend("defaults", settings, data_dir, renderer)

    async def ready() -> bool:
        try:
            await backend.check()
        except BackendUnavailable:
            return False
        return True

    try:
        async with supervised(
            "the server as it comes",
            [sys.executable, "-m", server, *words],
            ready=ready,
            log_file=data_dir / "defaults.log",
        ):
            yield backend
    finally:
        await backend.close()


def _table(runs: Mapping[str, _Run]) -> str:
    columns = f"from cache   first word: turn 2   turn {_TURNS}   ratio   after a restart"
    lines = [f"{'':<16} {columns}"]
    for name, run in runs.items():
        second, last = run.first_word(2), run.first_word(_TURNS)
        lines.append(
            f"{name:<16} {run.cached_share(range(1, _TURNS + 1)):>10.1%} {second * 1000:>17.0f} ms"
            f" {last * 1000:>6.0f} ms {last / second:>7.2f}"
        )
        if any(turn.number > _TURNS for turn in run.turns):
            after = run.first_word(_TURNS + 1)
            share = run.cached_share([_TURNS + 1])
            lines[-1] += f"   {share:.1%}, {after * 1000:.0f} ms, {after / second:.2f}"
    return "\n".join(lines)
