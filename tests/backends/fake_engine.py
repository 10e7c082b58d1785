"""An engine that keeps its places as lists of ids, and counts what it reads."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path

from typing_extensions import override

from bot.backends.llama_cpp.engines.engine import Engine, EngineFailed, EngineRefused, Question
from bot.chat.prompt import Delta, Finish, FinishReason, Usage


class FakeEngine(Engine):
    def __init__(self, places: int, folder: Path) -> None:
        self.held: list[list[int]] = [[] for _ in range(places)]
        self.saves = 0
        self.erased: list[int] = []
        self.broken_saves = False
        self.dead = False
        self._folder = folder
        self._deaths = 0

    @property
    @override
    def places(self) -> int:
        return len(self.held)

    @property
    @override
    def version(self) -> str:
        return "fake 1"

    @property
    @override
    def deaths(self) -> int:
        return self._deaths

    def die(self) -> None:
        """Be started again, with nothing in any place."""
        self._deaths += 1
        self.held = [[] for _ in self.held]

    def cached(self, question: Question) -> int:
        """How many ids of a prompt its place holds, as a server compares them."""
        assert question.place is not None
        pairs = zip(self.held[question.place], question.ids, strict=False)
        return next(
            (index for index, (one, other) in enumerate(pairs) if one != other),
            min(len(self.held[question.place]), len(question.ids)),
        )

    @override
    async def context_tokens(self) -> int:
        return 4096

    @override
    async def generate(self, question: Question) -> AsyncGenerator[Delta | Finish, None]:
        assert question.place is not None
        cached = self.cached(question)
        self.held[question.place] = list(question.ids)
        await asyncio.sleep(0)
        yield Delta("yes")
        yield Finish(FinishReason.STOP, Usage(len(question.ids), cached, 1))

    @override
    async def tokenize(
        self, texts: Sequence[str], *, special: bool, begun: bool = False
    ) -> list[list[int]]:
        return [[ord(letter) for letter in text] for text in texts]

    @override
    async def text_of(self, token: int) -> str:
        return chr(token)

    @override
    async def save(self, place: int, file: str) -> int:
        if self.broken_saves:
            raise EngineFailed("the disk is full")
        self.saves += 1
        text = ",".join(str(token) for token in self.held[place])
        (self._folder / file).touch(mode=0o600)
        (self._folder / file).write_text(text, encoding="ascii")
        return len(self.held[place])

    @override
    async def restore(self, place: int, file: str) -> int:
        if self.dead:
            raise EngineFailed("nobody answers")
        with suppress(OSError, ValueError):
            text = (self._folder / file).read_text(encoding="ascii")
            self.held[place] = [int(token) for token in text.split(",")]
            return len(self.held[place])
        raise EngineRefused(f"{file} is no state")

    @override
    async def erase(self, place: int) -> None:
        self.erased.append(place)
        self.held[place] = []

    @override
    async def wait_until_ready(self) -> None:
        pass

    @override
    async def died(self, deaths: int) -> bool:
        return self._deaths != deaths
