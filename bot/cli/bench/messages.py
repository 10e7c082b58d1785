"""`troupe bench messages`: what one message costs in CPU, in a unit that machines share.

The whole service runs in this process over a new SQLite file, with a platform and a scripted model
in memory: neither the libraries of the platforms nor HTTP are counted. Times of CPU differ between
machines, and on a busy one they double; their quotient by a fixed piece of work, sampled meanwhile,
hardly does. Compare that.
"""

import asyncio
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from typing_extensions import override

from bot.chat.incoming import Address, Person, Said, WakeReason
from bot.chat.outgoing import Limits, MessageContent, OutgoingMessage
from bot.chat.rate import CallWindow
from bot.cli.text_io import print_line
from bot.cli.typer_apps import command_app
from bot.frozen_dataclass import frozen_dataclass
from bot.platforms.local_platform import LocalPlatform
from bot.platforms.spec import PlatformContext, PlatformSpec
from bot.ports import Intake, Platform, Surface
from bot.service.run_options import RunOptions
from bot.service.service import running
from bot.settings import Settings

_END = "and that is the end."
_ANSWER = " ".join(["the quick brown fox jumps over a lazy dog"] * 4 + [_END])
_CHUNKS, _SECONDS_BETWEEN_CHUNKS = 40, 0.0125
_LIMITS = Limits(
    max_units=4096,
    unit="utf16",
    seconds_between_edits=1.0,
    typing_seconds=4,
    can_repeat_sends=False,
    chat_calls=(CallWindow(1000, 10.0),),
)
_PRESET = {
    "name": "bench",
    "provider": "bench",
    "model": "gpt-4o",
    "system": "You are a helpful assistant.",
    "parameters": {
        "echo_answer": _ANSWER,
        "echo_chunks": _CHUNKS,
        "echo_delay_seconds": _SECONDS_BETWEEN_CHUNKS,
    },
}
_WORK = [
    {"id": i, "text": "the weather and the river today " * 3, "n": [i, i + 1, None]}
    for i in range(150)
]
_SECONDS_BETWEEN_PROBES = 0.25

app = command_app()


@app.command("messages")
def bench_messages(
    chats: Annotated[int, typer.Option(help="Chats that write at the same time.", min=1)] = 40,
    messages: Annotated[int, typer.Option(help="Messages of each, one by one.", min=1)] = 10,
) -> None:
    """Measure the CPU of a message in units of a fixed piece of work."""
    with tempfile.TemporaryDirectory() as folder:
        cost = uvloop.run(measure(Path(folder), chats, messages))
    print_line(f"messages          {cost.messages}")
    print_line(f"CPU a message     {cost.milliseconds:.3f} ms")
    print_line(f"probe             {cost.probe_milliseconds:.3f} ms")
    print_line(f"cpu_per_probe     {cost.cpu_per_probe:.3f}")


@frozen_dataclass
class MessageCost:
    """What the messages of a run cost."""

    messages: int
    milliseconds: float
    """CPU of this process for each."""
    probe_milliseconds: float
    """CPU of the fixed piece of work, the median of the run."""

    @property
    def cpu_per_probe(self) -> float:
        return self.milliseconds / self.probe_milliseconds


async def measure(folder: Path, chats: int, messages: int) -> MessageCost:
    """Run the service in an empty folder until every chat has its answers."""
    presets = folder / "presets"
    presets.mkdir()
    (presets / "bench.json").write_text(json.dumps(_PRESET))
    settings = Settings(
        data_dir=folder,
        presets_dir=presets,
        default_preset="bench",
        database_url=None,
        redis_url=None,
        providers={"bench": {"kind": "echo"}},
        limits={"answers_per_person": 0, "answers_per_channel": 0},
    )
    platform = _MeasuringPlatform(chats, messages)
    with _platform_in_use(platform):
        async with running(settings, _say_nothing, [_SPEC], RunOptions(has_port=False)) as service:
            await service.serve()
    return platform.cost()


class _MeasuringPlatform(LocalPlatform):
    """Chats in memory that ask one question after the other; ends when all are answered."""

    kind = "bench"
    account = "a benchmark"
    is_operators = False

    def __init__(self, chats: int, messages: int) -> None:
        self._messages = messages
        self._chats = [Address("bench", str(number)) for number in range(chats)]
        self._surface = _MemorySurface()
        self._cpu_seconds = 0.0
        self._probes: list[float] = []

    @property
    @override
    def surface(self) -> Surface:
        return self._surface

    @override
    async def run(self, intake: Intake) -> None:
        await self._ask_in_all_chats(intake, range(1))  # what is loaded once is not counted
        before = time.process_time()
        probing = asyncio.create_task(self._probe())
        await self._ask_in_all_chats(intake, range(1, 1 + self._messages))
        probing.cancel()
        self._probes.append(_probe_milliseconds())
        self._cpu_seconds = time.process_time() - before - sum(self._probes) / 1e3

    def cost(self) -> MessageCost:
        """Return what the messages cost, after the run."""
        messages = self._messages * len(self._chats)
        probe = statistics.median(self._probes)
        return MessageCost(messages, self._cpu_seconds / messages * 1e3, probe)

    async def _ask_in_all_chats(self, intake: Intake, numbers: range) -> None:
        async with asyncio.TaskGroup() as group:
            for chat in self._chats:
                group.create_task(self._ask(intake, chat, numbers))

    async def _ask(self, intake: Intake, chat: Address, numbers: range) -> None:
        author = Person(f"bench:{chat.chat}", f"Person {chat.chat}")
        for number in numbers:
            answered = self._surface.expect_end(chat)
            question = Said(
                address=chat,
                external_key=f"{chat.chat}:{number}",
                message_id=str(number),
                author=author,
                text=f"Question {number}: what about the weather, the river and the birds?",
                at=datetime.now(UTC),
                wake=WakeReason.DM,
                scopes=(chat.lane,),
                author_is_admin=False,
            )
            await intake.receive([question], {})
            await answered.wait()

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_PROBES)
            self._probes.append(_probe_milliseconds())


class _MemorySurface(Surface):
    """Takes every call at once."""

    def __init__(self) -> None:
        self._expected: dict[str, asyncio.Event] = {}
        self._sent: Counter[str] = Counter()

    def expect_end(self, chat: Address) -> asyncio.Event:
        """Return what is set once the chat reads the end of an answer."""
        self._expected[chat.chat] = asyncio.Event()
        return self._expected[chat.chat]

    @override
    def limits(self, address: Address) -> Limits:
        return _LIMITS

    @override
    async def send(self, message: OutgoingMessage) -> str:
        self._sent[message.address.chat] += 1
        self._show(message.address, message.text)
        return str(self._sent[message.address.chat])

    @override
    async def edit(
        self,
        address: Address,
        message_id: str,
        content: MessageContent,
        *,
        interaction: str | None = None,
    ) -> None:
        self._show(address, content.text)

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        """Nobody looks at it again."""

    @override
    async def typing(self, address: Address) -> None:
        """Nobody looks at it."""

    @override
    async def find(
        self,
        message: OutgoingMessage,
        *,
        after: str | None,
        known: Set[str],
        duplicate_of: str | None = None,
    ) -> str | None:
        return None

    def _show(self, address: Address, text: str) -> None:
        if text.endswith(_END):
            self._expected[address.chat].set()


_in_use: ContextVar[_MeasuringPlatform] = ContextVar("_in_use")


@contextmanager
def _platform_in_use(platform: _MeasuringPlatform) -> Iterator[None]:
    token = _in_use.set(platform)
    try:
        yield
    finally:
        _in_use.reset(token)


def make(_settings: Mapping[str, object] | None, _context: PlatformContext) -> Platform:
    """Return the platform of the benchmark that runs."""
    return _in_use.get()


_SPEC = PlatformSpec(kind="bench", factory=f"{__name__}:make")


def _probe_milliseconds() -> float:
    """Do a fixed piece of work: the same as the load harness's, so that figures can be compared."""
    begun = time.thread_time()
    for _ in range(3):
        rows = json.loads(json.dumps(_WORK))
        sum(len(row["text"]) + row["id"] for row in rows)
    return (time.thread_time() - begun) * 1e3


def _say_nothing(_text: str) -> None:
    """Keep the service's notices out of the figures."""
