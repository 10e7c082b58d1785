"""One model of this machine: from a rendered prompt to the pieces of an answer."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bot.backends.chat_completions.reasoning import (
    ReasoningFormat,
    detect_format,
    detect_open_tag,
    separate_reasoning,
)
from bot.backends.chat_completions.stop_strings import stop_strings_of
from bot.backends.llama_cpp.engines.engine import (
    Engine,
    EngineFailed,
    Question,
    Start,
    chosen,
    running,
)
from bot.backends.llama_cpp.fair_queue import FairQueue
from bot.backends.llama_cpp.images import check_all_stand
from bot.backends.llama_cpp.kv_slots import Places
from bot.backends.llama_cpp.sampling import output_limit, to_sampling
from bot.backends.llama_cpp.slot_files import SavedPlaces, Whose, fingerprint
from bot.backends.llama_cpp.tokenizer import Tokenizer
from bot.backends.model_files.gguf import read_special_tokens
from bot.chat.prompt import Delta, Finish, Prompt, ReasoningDelta
from bot.errors import BackendUnavailable
from bot.runtime.clock import SystemClock
from bot.templates.renderer import ModelTemplate, RenderedPrompt


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """An engine that is up, and all that is known of what it has loaded."""

    path: Path
    engine_name: str  # by the setting's word
    engine: Engine
    template: ModelTemplate
    ends: tuple[str, ...]
    reasoning: ReasoningFormat
    tokenizer: Tokenizer
    places: Places
    line: FairQueue
    projector: Path | None

    @property
    def sees(self) -> bool:
        return self.projector is not None

    async def ids(self, rendered: RenderedPrompt) -> list[int]:
        """The ids of a rendered prompt; raises `BackendUnavailable` when the engine does not."""
        deaths = self.engine.deaths
        try:
            try:
                return await self.tokenizer.ids(rendered.spans)
            except EngineFailed:
                if not await self.engine.died(deaths):
                    raise
                await self.engine.wait_until_ready()
                return await self.tokenizer.ids(rendered.spans)
        except EngineFailed as error:
            raise BackendUnavailable(f"{self.path.stem} does not tokenize: {error}") from error

    async def answer(
        self, prompt: Prompt, rendered: RenderedPrompt, images: Sequence[str]
    ) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
        """Ask at the conversation's place; behaves as `Backend.generate`."""
        stop = self._stops(prompt, rendered)
        ends = self._ends(rendered) if self.reasoning.special_tokens else stop
        answer = self._answer(prompt, rendered, ends, images)
        reasoning = detect_open_tag(self.reasoning, rendered.spans)
        async with aclosing(separate_reasoning(answer, reasoning, stop)) as pieces:
            async for piece in pieces:
                yield piece

    async def _answer(
        self, prompt: Prompt, rendered: RenderedPrompt, ends: Sequence[str], images: Sequence[str]
    ) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
        sampling, limit = to_sampling(prompt, self.engine_name), output_limit(prompt)
        whose = Whose(prompt.conversation, prompt.character)
        ids = await self.ids(rendered)  # with images: near enough to tell prompts apart
        try:
            text = await self.tokenizer.text(rendered.spans) if images else ""
            check_all_stand(text, images, self.path.stem)
            async with self.places.seat(whose, ids) as seat:
                own = seat.own and not self.sees  # llama.cpp moves nothing up where images may be
                given = (seat.place, own, self.reasoning.special_tokens, text, images)
                question = Question(ids, ends, sampling, limit, *given)
                async with aclosing(self.engine.generate(question)) as pieces:
                    async for piece in pieces:
                        yield piece
        except EngineFailed as error:
            raise BackendUnavailable(f"{self.path.stem} failed: {error}") from error

    def _stops(self, prompt: Prompt, rendered: RenderedPrompt) -> tuple[str, ...]:
        """Every word that ends an answer."""
        found = (*stop_strings_of(prompt), *rendered.stop, *self.ends)
        return tuple(dict.fromkeys(word for word in found if word))

    def _ends(self, rendered: RenderedPrompt) -> tuple[str, ...]:
        """What alone ends the engine's work for a model that thinks.

        It would find a speaker's tag in a thought as well, and what closes one.
        """
        closing = {end_tag for _, end_tag in self.reasoning.tags}
        ends = dict.fromkeys((*rendered.stop, *self.ends))
        return tuple(word for word in ends if word and word not in closing)


@asynccontextmanager
async def loaded(start: Start) -> AsyncIterator[LoadedModel]:
    """Keep an engine for a model up.

    Raises:
        ChildFailed: it does not start.
        SettingsError: the file is no model, or nothing installed can run it.
    """
    settings, clock = start.settings, SystemClock()
    start.states.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with running(start) as engine:
        tokens = await asyncio.to_thread(read_special_tokens, start.model)
        special = (*tokens.control.values(), *tokens.added.values())
        saved = SavedPlaces(
            start.states,
            await asyncio.to_thread(_written_by, start, engine.version),
            clock,
            limit_bytes=settings.saved_mib * 2**20,
            limit_seconds=settings.saved_days * 86_400,
        )
        await asyncio.to_thread(saved.open)
        yield LoadedModel(
            start.model,
            chosen(settings) or settings.engine,
            engine,
            ModelTemplate(tokens.chat_template, tokens.bos_token, tokens.eos_token),
            tokens.ends,
            detect_format(tokens.chat_template, special),
            Tokenizer(engine, tokens),
            Places(engine, saved),
            FairQueue(engine.places, settings.most_waiting, clock),
            start.projector,
        )


def _written_by(start: Start, engine: str) -> str:
    """What saved places belong to; what was seen through another projector is another thing."""
    if start.projector is not None:
        engine = f"{engine} {fingerprint(start.projector, engine)}"
    return fingerprint(start.model, engine)
