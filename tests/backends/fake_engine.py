"""A fake engine that keeps its slots as lists of token ids and counts saves."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from typing_extensions import override

from bot.backends.llama_cpp.engine import (
    Engine,
    EngineConfig,
    EngineFailed,
    EngineRefused,
    GenerationRequest,
)
from bot.chat.prompt import Delta, Finish, FinishReason, Usage


class FakeEngine(Engine):
    def __init__(self, slot_count: int, folder: Path) -> None:
        self.slot_count = slot_count
        self.version = "fake 1"
        self.held: list[list[int]] = [[] for _ in range(slot_count)]
        self.saves = 0
        self.erased: list[int] = []
        self.broken_saves = False
        self.is_dead = False
        self._folder = folder
        self._restarts = 0

    @property
    @override
    def restart_count(self) -> int:
        return self._restarts

    def crash(self) -> None:
        """Restart with empty slots."""
        self._restarts += 1
        self.held = [[] for _ in self.held]

    def count_cached(self, request: GenerationRequest) -> int:
        """Return how many leading ids of a prompt are already in its slot, as a server would."""
        assert request.slot_number is not None
        pairs = zip(self.held[request.slot_number], request.prompt_ids, strict=False)
        return next(
            (index for index, (one, other) in enumerate(pairs) if one != other),
            min(len(self.held[request.slot_number]), len(request.prompt_ids)),
        )

    @override
    async def fetch_context_tokens(self) -> int:
        return 4096

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta | Finish, None]:
        assert request.slot_number is not None
        cached = self.count_cached(request)
        self.held[request.slot_number] = list(request.prompt_ids)
        await asyncio.sleep(0)
        yield Delta("yes")
        yield Finish(FinishReason.STOP, Usage(len(request.prompt_ids), cached, 1))

    @override
    async def tokenize(
        self, texts: Sequence[str], *, parse_special: bool, add_special: bool = False
    ) -> list[list[int]]:
        return [[ord(letter) for letter in text] for text in texts]

    @override
    async def detokenize(self, token: int) -> str:
        return chr(token)

    @override
    async def save_slot(self, slot: int, file: str) -> int:
        if self.broken_saves:
            raise EngineFailed("the disk is full")
        self.saves += 1
        text = ",".join(str(token) for token in self.held[slot])
        (self._folder / file).touch(mode=0o600)
        (self._folder / file).write_text(text, encoding="ascii")
        return len(self.held[slot])

    @override
    async def restore_slot(self, slot: int, file: str) -> int:
        if self.is_dead:
            raise EngineFailed("nobody answers")
        with suppress(OSError, ValueError):
            text = (self._folder / file).read_text(encoding="ascii")
            self.held[slot] = [int(token) for token in text.split(",")]
            return len(self.held[slot])
        raise EngineRefused(f"{file} is no saved slot")

    @override
    async def erase_slot(self, slot: int) -> None:
        self.erased.append(slot)
        self.held[slot] = []

    @override
    async def wait_until_ready(self) -> None:
        pass

    @override
    async def has_crashed(self, restarts: int) -> bool:
        return self._restarts != restarts


@asynccontextmanager
async def running_fake_engine(start: EngineConfig) -> AsyncIterator[FakeEngine]:
    yield FakeEngine(1, start.slots_folder)
