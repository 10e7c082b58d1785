"""`troupe bench slots`: measure KV cache reuse with more conversations than slots.

8 conversations share 4 slots, 10 turns each in random order, all with one system text of about
500 tokens; then the model restarts, and each conversation has one more turn. llama.cpp's server
with its own defaults (llama_server_child.py) is asked the same in the same run.
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
from typing import Annotated

import typer
import uvloop

from bot.backends.factory import make_backend
from bot.backends.llama_cpp.settings import LlamaCppSettings, local_settings
from bot.backends.model_files.store import find_model
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.prompt import (
    Delta,
    Finish,
    Message,
    Prompt,
    QueuePosition,
    RateLimitWait,
    ReasoningDelta,
    Retraction,
    Usage,
)
from bot.cli.text_io import print_line, print_progress
from bot.cli.typer_apps import command_app
from bot.errors import BackendUnavailable
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Backend
from bot.runtime.subprocesses import supervised
from bot.settings import read_settings
from bot.templates.renderer import Renderer

_CONVERSATIONS, _SLOTS, _TURNS = 8, 4, 10
_CONTEXT_TOKENS = 2560
_SYSTEM = "You are Nora, the keeper of a small library by the sea. " + " ".join(
    f"Rule {number}: you answer kindly, you name the section, and you never invent a book."
    for number in range(1, 25)
)
_QUESTION = (
    "This is question {turn} from visitor {visitor}. I was at the harbour this morning and met "
    "the lamp keeper and his dog, and they told me about a book on ships and storms with a blue "
    "cover that somebody left on the third table near the window last {day}. Do you know which one "
    "they mean, and in which section I should look for it, please? I come back after lunch."
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


app = command_app()


@app.command("slots")
def bench_slots(
    seed: Annotated[int, typer.Option(help="Decides who speaks when, for both servers.")] = 1,
) -> None:
    """Compare KV slot reuse with llama.cpp's own server.

    8 conversations share 4 slots of the local model; that takes some minutes.
    """
    settings = read_settings()
    local = local_settings(settings.providers)
    model = find_model("default", local, settings.data_dir)
    print_progress("generating 168 answers; this takes some minutes ...")
    print_line(uvloop.run(compare_slot_reuse(model, local, seed)))


@frozen_dataclass
class _TurnCost:
    number: int
    first_token_seconds: float
    usage: Usage


@dataclass(slots=True)
class _BenchRun:
    """The conversations with one server, and what each turn cost."""

    histories: list[list[Message]] = field(
        default_factory=lambda: [[Message("system", _SYSTEM)] for _ in range(_CONVERSATIONS)]
    )
    turns: list[_TurnCost] = field(default_factory=list)

    async def ask(self, backend: Backend, visitor: int) -> None:
        history = self.histories[visitor]
        number = len(history) // 2 + 1
        question = _QUESTION.format(turn=number, visitor=visitor, day=_DAYS[(number + visitor) % 7])
        history.append(Message("user", question))
        prompt = Prompt(
            tuple(history),
            "default",
            f"bench:{visitor}",
            parameters={"temperature": 0},
            max_output_tokens=32,
        )
        answer: list[str] = []
        began, first = time.perf_counter(), 0.0
        async with aclosing(backend.generate(prompt)) as events:
            async for event in events:
                match event:
                    case Delta(text):
                        first = first or time.perf_counter() - began
                        answer.append(text)
                    case Finish(_, usage):
                        self.turns.append(_TurnCost(number, first, usage))
                    case Retraction():
                        answer.clear()
                    case QueuePosition() | RateLimitWait() | ReasoningDelta():
                        pass
        history.append(Message("assistant", "".join(answer)))
        # The server closes the connection after each answer; give our client time to notice.
        await asyncio.sleep(0.05)

    def cached_share(self, numbers: Sequence[int]) -> float:
        counted = [turn.usage for turn in self.turns if turn.number in numbers]
        return sum(each.cached_tokens for each in counted) / sum(
            each.prompt_tokens for each in counted
        )

    def first_token(self, number: int) -> float:
        return median(turn.first_token_seconds for turn in self.turns if turn.number == number)


def _visitor_order(seed: int) -> list[int]:
    """Return who speaks when: every visitor `_TURNS` times, shuffled."""
    visitors = [visitor for visitor in range(_CONVERSATIONS) for _ in range(_TURNS)]
    random.Random(seed).shuffle(visitors)  # noqa: S311 # the same order for both servers
    return visitors


async def compare_slot_reuse(model: Path, settings: LlamaCppSettings, seed: int = 1) -> str:
    """Ask both servers the same for some minutes, and return a table.

    Args:
        model: a GGUF file.
        settings: of the provider whose engine runs the model.
        seed: decides the order of the visitors.

    Raises:
        BackendError: one of the servers does not answer.
        ChildFailed: the server does not start.
    """
    with tempfile.TemporaryDirectory(prefix="troupe-bench-") as folder:
        data_dir = Path(folder)
        async with Renderer() as renderer:
            runs = {
                "Troupe": await _run_troupe(model, settings, data_dir, renderer, seed),
                "server defaults": await _run_llama_server(model, data_dir, renderer, seed),
            }
    return _format_table(runs)


async def _run_troupe(
    model: Path, given: LlamaCppSettings, data_dir: Path, renderer: Renderer, seed: int
) -> _BenchRun:
    settings = given.model_copy(
        update={
            "model_path": model,
            "projector_path": None,
            "parallel": _SLOTS,
            "context_tokens": _CONTEXT_TOKENS,
        }
    )
    run = _BenchRun()
    for visitors in (
        _visitor_order(seed),
        list(range(_CONVERSATIONS)),
    ):  # the second after a restart
        backend = make_backend("local", settings, data_dir, renderer)
        try:
            await backend.check()  # loads the model, which must not count for the first turn
            for visitor in visitors:
                await run.ask(backend, visitor)
        finally:
            await backend.close()
    return run


async def _run_llama_server(
    model: Path, data_dir: Path, renderer: Renderer, seed: int
) -> _BenchRun:
    run = _BenchRun()
    async with _llama_server(model, data_dir, renderer) as backend:
        for visitor in _visitor_order(seed):
            await run.ask(backend, visitor)
    return run


@asynccontextmanager
async def _llama_server(model: Path, data_dir: Path, renderer: Renderer) -> AsyncIterator[Backend]:
    """Run llama.cpp's server with its defaults on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = "bot.cli.bench.llama_server_child"
    arguments = [str(model), str(port), str(_SLOTS), str(_CONTEXT_TOKENS)]
    settings = OpenAISettings(
        base_url=f"http://127.0.0.1:{port}/v1", model="local", first_token_seconds=120
    )
    backend = make_backend("llama_server", settings, data_dir, renderer)

    async def ready() -> bool:
        try:
            await backend.check()
        except BackendUnavailable:
            return False
        return True

    try:
        async with supervised(
            "llama.cpp's server",
            [sys.executable, "-m", server, *arguments],
            ready=ready,
            log_file=data_dir / "llama_server.log",
        ):
            yield backend
    finally:
        await backend.close()


def _format_table(runs: Mapping[str, _BenchRun]) -> str:
    columns = f"from cache   first token: turn 2   turn {_TURNS}   ratio   after a restart"
    lines = [f"{'':<16} {columns}"]
    for name, run in runs.items():
        second, last = run.first_token(2), run.first_token(_TURNS)
        lines.append(
            f"{name:<16} {run.cached_share(range(1, _TURNS + 1)):>10.1%} {second * 1000:>18.0f} ms"
            f" {last * 1000:>6.0f} ms {last / second:>7.2f}"
        )
        if any(turn.number > _TURNS for turn in run.turns):
            after = run.first_token(_TURNS + 1)
            share = run.cached_share([_TURNS + 1])
            lines[-1] += f"   {share:.1%}, {after * 1000:.0f} ms, {after / second:.2f}"
    return "\n".join(lines)
