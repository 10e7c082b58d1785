"""Models on this machine: each in an engine process of its own, started when first asked.

A question stands in a fair line, then sits where its conversation sat before (loaded_model.py).
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

from typing_extensions import override

from bot.backends.llama_cpp.description import describe_rendered
from bot.backends.llama_cpp.engines.engine import EngineFailed, Start
from bot.backends.llama_cpp.images import encoded, marked, tokens_of_images
from bot.backends.llama_cpp.loaded_model import LoadedModel, loaded
from bot.backends.llama_cpp.sampling import output_limit
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.llama_cpp.slot_files import folder, forget_saved
from bot.backends.model_files import store as model_store
from bot.backends.model_files.projector import find_projector
from bot.chat.prompt import (
    Delta,
    Finish,
    GenerationEvent,
    Prompt,
    PromptDescription,
    PromptToken,
    ReasoningDelta,
)
from bot.errors import BackendInterrupted, BackendUnavailable, SettingsError, TemplateError
from bot.ports import (
    Backend,
    ConversationMemory,
    DescribingBackend,
    PreloadingBackend,
    TokenCountingBackend,
    TokenizingBackend,
)
from bot.runtime.subprocesses import ChildFailed
from bot.templates.renderer import RenderedPrompt, Renderer

_NOTICE = "The model on this machine cannot be used; an operator has to mend it."
_TEMPLATE_NOTICE = "This preset's template cannot be used; an operator has to mend it."
_MOST_COUNTED = 256
_ANSWER_SHARE = 4  # a quarter of the context is for an answer without a limit of its own


class LlamaCpp(
    Backend,
    TokenCountingBackend,
    TokenizingBackend,
    DescribingBackend,
    PreloadingBackend,
    ConversationMemory,
):
    """Every model in the data directory, and any GGUF named by its path."""

    def __init__(
        self,
        settings: LlamaCppSettings,
        data_dir: Path,
        renderer: Renderer,
        name: str = "local",
    ) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._states = folder(data_dir)
        self._renderer = renderer
        self._name = name
        self._models: dict[Path, LoadedModel] = {}
        # What was counted last is most likely what is asked next: it is not written twice.
        self._counted: dict[str, tuple[Prompt, RenderedPrompt]] = {}
        self._open = AsyncExitStack()
        self._one_start_at_a_time = asyncio.Lock()

    @override
    async def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
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
        self, model: LoadedModel, prompt: Prompt, rendered: RenderedPrompt, images: Sequence[str]
    ) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
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
        for model in self._started():
            await model.places.save_all()
        self._models.clear()
        await self._open.aclose()

    @override
    async def tokenize(self, prompt: Prompt) -> Sequence[PromptToken]:
        model = await self._model(prompt.model)
        rendered = await self._rendered(prompt, model)
        try:
            return await model.tokenizer.explain(rendered.spans)
        except EngineFailed as error:
            raise BackendUnavailable(f"{model.path.stem} does not tokenize: {error}") from error

    @override
    async def describe(self, prompt: Prompt) -> PromptDescription:
        try:
            path = model_store.find_model(prompt.model, self._settings, self._data_dir)
            return await describe_rendered(prompt, path, self._renderer)
        except (SettingsError, TemplateError) as error:
            raise BackendUnavailable(str(error)) from error

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        model = await self._model(prompt.model)
        rendered = await self._rendered(prompt, model)
        if len(self._counted) >= _MOST_COUNTED:
            self._counted.clear()
        self._counted[prompt.conversation] = prompt, rendered
        return len(await model.ids(rendered)) + tokens_of_images(prompt)

    @override
    async def max_prompt_tokens(self, prompt: Prompt) -> int | None:
        model = await self._model(prompt.model)
        try:
            context = await model.engine.context_tokens()
        except EngineFailed as error:
            raise BackendUnavailable(f"{model.path.stem} does not tell its context") from error
        return context - (output_limit(prompt) or context // _ANSWER_SHARE)

    @override
    async def end_session(self, conversation: str) -> None:
        for model in self._started():
            await model.places.leave(conversation)

    @override
    async def forget(self, conversation: str) -> None:
        self._counted.pop(conversation, None)
        for model in self._started():
            await model.places.forget(conversation)
        # ... and what models that are not loaded have left
        forget_saved(self._states, conversation)

    def _started(self) -> Sequence[LoadedModel]:
        """Those that are up now: another one may start while these are gone through."""
        return list(self._models.values())

    async def _rendered(self, prompt: Prompt, model: LoadedModel) -> RenderedPrompt:
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
    async def preload(self, model: str) -> None:
        await self._model(model)

    async def _model(self, word: str) -> LoadedModel:
        try:
            path = model_store.find_model(word, self._settings, self._data_dir)
            async with self._one_start_at_a_time:
                if path not in self._models:
                    start = self._start(path)
                    self._models[path] = await self._open.enter_async_context(loaded(start))
            await self._models[path].engine.wait_until_ready()
        except (SettingsError, ChildFailed, EngineFailed) as error:
            raise BackendUnavailable(str(error), _NOTICE) from error
        return self._models[path]

    def _start(self, path: Path) -> Start:
        projector = find_projector(path, self._settings, self._data_dir)
        given = (self._name, self._settings, self._data_dir, self._states)
        return Start(path, *given, projector)


def make(name: str, settings: LlamaCppSettings, data_dir: Path, renderer: Renderer) -> Backend:
    return LlamaCpp(settings, data_dir, renderer, name)
