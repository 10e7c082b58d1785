"""Models on this machine: each in an engine process of its own, started when first asked.

A question stands in a fair line, then sits where its conversation sat before (places.py).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from bot.backends import models
from bot.backends.engines import Engine, EngineFailed, Question, Start, chosen, running
from bot.backends.fair_queue import FairQueue
from bot.backends.gguf import read_tokens
from bot.backends.llama_tokens import Tokenizer
from bot.backends.local_images import check_all_stand, encoded, marked, tokens_of_images
from bot.backends.places import Places
from bot.backends.sampling import output_limit, stops, to_sampling
from bot.backends.saved_places import SavedPlaces, Whose, fingerprint, folder, forget_saved
from bot.backends.thoughts import Thinking, opened_by, separated, thinking_of
from bot.chat.prompt import Delta, Event, Finish, Prompt, Thought, Token
from bot.children import ChildFailed
from bot.clock import SystemClock
from bot.errors import BackendInterrupted, BackendUnavailable, SettingsError, TemplateError
from bot.ports import Backend, Counts, Remembers, Tokenizes, Warms
from bot.settings import ProviderSettings
from bot.templates.rendering import OwnTemplate, Rendered, Renderer

_NOTICE = "The model on this machine cannot be used; an operator has to mend it."
_TEMPLATE_NOTICE = "This preset's template cannot be used; an operator has to mend it."
_MOST_COUNTED = 256
_ANSWER_SHARE = 4  # a quarter of the context is for an answer without a limit of its own


class LlamaCpp(Backend, Counts, Tokenizes, Warms, Remembers):
    """Every model in the data directory, and any GGUF named by its path."""

    def __init__(
        self,
        settings: ProviderSettings,
        data_dir: Path,
        renderer: Renderer,
        name: str = "local",
    ) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._states = folder(data_dir)
        self._renderer = renderer
        self._name = name
        self._models: dict[Path, _Model] = {}
        # What was counted last is most likely what is asked next: it is not written twice.
        self._counted: dict[str, tuple[Prompt, Rendered]] = {}
        self._open = AsyncExitStack()
        self._one_start_at_a_time = asyncio.Lock()

    @override
    async def generate(self, prompt: Prompt) -> AsyncGenerator[Event, None]:
        model = await self._model(prompt.model)
        images = encoded(prompt, model.path.stem, sees=model.sees)
        rendered = await self._rendered(prompt, model)
        with model.line.ticket(prompt.conversation, prompt.asked_by) as ticket:
            async for waiting in model.line.until_called(ticket):
                yield waiting
            async with aclosing(self._answer(model, prompt, rendered, images)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _answer(
        self, model: "_Model", prompt: Prompt, rendered: Rendered, images: Sequence[str]
    ) -> AsyncGenerator[Delta | Thought | Finish, None]:
        """Ask, and once more if the engine dies before the first word."""
        for tries_left in (1, 0):
            deaths = model.engine.deaths
            try:
                async with aclosing(model.answer(prompt, rendered, images)) as pieces:
                    async for piece in pieces:
                        yield piece
            except BackendUnavailable:
                if not (await model.engine.died(deaths) and tries_left):
                    raise
                await self._model(prompt.model)
            except BackendInterrupted:
                await model.engine.died(deaths)
                raise
            else:
                return

    @override
    async def check(self) -> str:
        model = await self._model("default")
        seeing = f", seeing through {model.projector.stem}" if model.projector else ""
        return f"{model.path.stem} on this machine{seeing}"

    @override
    async def close(self) -> None:
        for model in self._models.values():
            await model.places.save_all()
        self._models.clear()
        await self._open.aclose()

    @override
    async def explain(self, prompt: Prompt) -> Sequence[Token]:
        model = await self._model(prompt.model)
        rendered = await self._rendered(prompt, model)
        try:
            return await model.tokenizer.explain(rendered.pieces)
        except EngineFailed as error:
            raise BackendUnavailable(f"{model.path.stem} does not tokenize: {error}") from error

    @override
    async def count(self, prompt: Prompt) -> int:
        model = await self._model(prompt.model)
        rendered = await self._rendered(prompt, model)
        if len(self._counted) >= _MOST_COUNTED:
            self._counted.clear()
        self._counted[prompt.conversation] = prompt, rendered
        return len(await model.ids(rendered)) + tokens_of_images(prompt)

    @override
    async def room(self, prompt: Prompt) -> int | None:
        model = await self._model(prompt.model)
        try:
            context = await model.engine.context_tokens()
        except EngineFailed as error:
            raise BackendUnavailable(f"{model.path.stem} does not tell its context") from error
        return context - (output_limit(prompt) or context // _ANSWER_SHARE)

    @override
    async def leave(self, conversation: str) -> None:
        for model in self._models.values():
            await model.places.leave(conversation)

    @override
    async def forget(self, conversation: str) -> None:
        self._counted.pop(conversation, None)
        for model in self._models.values():
            await model.places.forget(conversation)
        # ... and what models that are not loaded have left
        forget_saved(self._states, conversation)

    async def _rendered(self, prompt: Prompt, model: "_Model") -> Rendered:
        counted, rendered = self._counted.pop(prompt.conversation, (None, None))
        if counted is prompt and rendered is not None:
            return rendered
        messages = marked(prompt.messages) if model.sees else prompt.messages
        try:
            return await self._renderer.render(messages, prompt.template, model.template)
        except TemplateError as error:
            what = f"the template for {model.path.stem} cannot be used: {error}"
            raise BackendUnavailable(what, _TEMPLATE_NOTICE) from error

    @override
    async def warm(self, model: str) -> None:
        await self._model(model)

    async def _model(self, word: str) -> "_Model":
        try:
            path = models.find(word, self._settings, self._data_dir)
            async with self._one_start_at_a_time:
                if path not in self._models:
                    start = self._start(path)
                    self._models[path] = await self._open.enter_async_context(_loaded(start))
            await self._models[path].engine.wait_serving()
        except (SettingsError, ChildFailed, EngineFailed) as error:
            raise BackendUnavailable(str(error), _NOTICE) from error
        return self._models[path]

    def _start(self, path: Path) -> Start:
        projector = models.projector_of(path, self._settings, self._data_dir)
        given = (self._name, self._settings, self._data_dir, self._states)
        return Start(path, *given, projector)


def make(name: str, settings: ProviderSettings, data_dir: Path, renderer: Renderer) -> Backend:
    return LlamaCpp(settings, data_dir, renderer, name)


@dataclass(frozen=True, slots=True)
class _Model:
    path: Path
    engine_name: str  # by the setting's word
    engine: Engine
    template: OwnTemplate
    ends: tuple[str, ...]
    thinking: Thinking
    tokenizer: Tokenizer
    places: Places
    line: FairQueue
    projector: Path | None

    @property
    def sees(self) -> bool:
        return self.projector is not None

    async def ids(self, rendered: Rendered) -> list[int]:
        """The ids of a rendered prompt; raises `BackendUnavailable` when the engine does not."""
        deaths = self.engine.deaths
        try:
            try:
                return await self.tokenizer.ids(rendered.pieces)
            except EngineFailed:
                if not await self.engine.died(deaths):
                    raise
                await self.engine.wait_serving()
                return await self.tokenizer.ids(rendered.pieces)
        except EngineFailed as error:
            raise BackendUnavailable(f"{self.path.stem} does not tokenize: {error}") from error

    async def answer(
        self, prompt: Prompt, rendered: Rendered, images: Sequence[str]
    ) -> AsyncGenerator[Delta | Thought | Finish, None]:
        """Ask at the conversation's place; behaves as `Backend.generate`."""
        stop = self._stops(prompt, rendered)
        ends = self._ends(rendered) if self.thinking.words else stop
        answer = self._answer(prompt, rendered, ends, images)
        thinking = opened_by(self.thinking, rendered.pieces)
        async with aclosing(separated(answer, thinking, stop)) as pieces:
            async for piece in pieces:
                yield piece

    async def _answer(
        self, prompt: Prompt, rendered: Rendered, ends: Sequence[str], images: Sequence[str]
    ) -> AsyncGenerator[Delta | Thought | Finish, None]:
        sampling, limit = to_sampling(prompt, self.engine_name), output_limit(prompt)
        whose = Whose(prompt.conversation, prompt.character)
        ids = await self.ids(rendered)  # with images: near enough to tell prompts apart
        try:
            text = await self.tokenizer.text(rendered.pieces) if images else ""
            check_all_stand(text, images, self.path.stem)
            async with self.places.seat(whose, ids) as seat:
                own = seat.own and not self.sees  # llama.cpp moves nothing up where images may be
                given = (seat.place, own, self.thinking.words, text, images)
                question = Question(ids, ends, sampling, limit, *given)
                async with aclosing(self.engine.generate(question)) as pieces:
                    async for piece in pieces:
                        yield piece
        except EngineFailed as error:
            raise BackendUnavailable(f"{self.path.stem} failed: {error}") from error

    def _stops(self, prompt: Prompt, rendered: Rendered) -> tuple[str, ...]:
        """Every word that ends an answer."""
        found = (*stops(prompt), *rendered.stop, *self.ends)
        return tuple(dict.fromkeys(word for word in found if word))

    def _ends(self, rendered: Rendered) -> tuple[str, ...]:
        """What alone ends the engine's work for a model that thinks.

        It would find a speaker's tag in a thought as well, and what closes one.
        """
        closing = {closes for _, closes in self.thinking.marks}
        ends = dict.fromkeys((*rendered.stop, *self.ends))
        return tuple(word for word in ends if word and word not in closing)


@asynccontextmanager
async def _loaded(start: Start) -> AsyncIterator[_Model]:
    """Keep an engine for a model up.

    Raises:
        ChildFailed: it does not start.
        SettingsError: the file is no model, or nothing installed can run it.
    """
    settings, clock = start.settings, SystemClock()
    start.states.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with running(start) as engine:
        tokens = await asyncio.to_thread(read_tokens, start.model)
        special = (*tokens.control.values(), *tokens.added.values())
        saved = SavedPlaces(
            start.states,
            await asyncio.to_thread(_written_by, start, engine.version),
            clock,
            limit_bytes=settings.saved_mib * 2**20,
            limit_seconds=settings.saved_days * 86_400,
        )
        await asyncio.to_thread(saved.open)
        yield _Model(
            start.model,
            chosen(settings) or settings.engine,
            engine,
            OwnTemplate(tokens.chat_template, tokens.bos_token, tokens.eos_token),
            tokens.ends,
            thinking_of(tokens.chat_template, special),
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
