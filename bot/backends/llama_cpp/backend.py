"""Answer prompts with models that run on this machine."""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import structlog
from typing_extensions import override

from bot.backends.chat_completions.stop_strings import collect_stop_strings
from bot.backends.chat_completions.wire import build_request_parameters
from bot.backends.llama_cpp.engine import EngineConfig, EngineFailed, setting_prefix
from bot.backends.llama_cpp.images import (
    UNUSABLE_TEMPLATE_NOTICE,
    count_image_tokens,
    encode_images,
    find_projector,
    insert_image_placeholders,
)
from bot.backends.llama_cpp.loaded_model import LoadedModel, load_model
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.llama_cpp.slots import delete_saved_slots
from bot.backends.llama_cpp.tool_calls import RESULTS_DIVISOR, fit_tools
from bot.backends.model_files import store as model_store
from bot.backends.model_files.gguf import read_special_tokens
from bot.chat.operation import ModelInMemory
from bot.chat.prompt import GenerationEvent, Prompt, PromptDescription, PromptToken, TemplateChoice
from bot.errors import BackendInterrupted, BackendUnavailable, SettingsError, TemplateError
from bot.ports import Backend, ConversationMemory, TextTokenCounter
from bot.prompting.text.tokens import get_counter_for_model
from bot.runtime.subprocesses import ChildProcessFailed
from bot.templates.registry import detect_family
from bot.templates.renderer import (
    FALLBACK_TEMPLATE,
    ModelTemplate,
    RenderedPrompt,
    Renderer,
    find_added_text,
)
from bot.texts.text import translatable

_UNUSABLE_MODEL_NOTICE = translatable(
    "The model on this machine cannot be used; the bot's operator has to fix it."
)
_MAX_CACHED_PROMPTS = 256
_CONTEXT_TO_ANSWER_RATIO = 4  # a quarter of the context, for an answer without a limit
_log = structlog.get_logger(__name__)
_MAX_LOGGED_TEXT_CHARS = 300


class LlamaCpp(Backend, ConversationMemory):
    """Generates answers with models in the data directory, or any GGUF file given by path."""

    def __init__(
        self, settings: LlamaCppSettings, data_dir: Path, renderer: Renderer, name: str = "local"
    ) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._slots_folder = data_dir / "slots"
        self._renderer = renderer
        self._provider = name
        self._models: dict[Path, LoadedModel] = {}
        # By conversation: the last counted prompt and its rendering. It is usually sent next.
        self._rendered_prompts: dict[str, tuple[Prompt, RenderedPrompt]] = {}
        self._exit_stack = AsyncExitStack()
        self._load_lock = asyncio.Lock()

    @override
    async def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        model = await self._load_model(prompt.model)
        encoded_images = encode_images(prompt, model.path.stem, has_vision=model.has_vision)
        rendering = await self._render(prompt, model)
        with model.queue.hold_ticket(prompt.conversation, prompt.asked_by) as ticket:
            async for position in model.queue.wait_for_admission(ticket):
                yield position
            async with aclosing(self._generate(model, prompt, rendering, encoded_images)) as events:
                async for event in events:
                    yield event

    async def _generate(
        self,
        model: LoadedModel,
        prompt: Prompt,
        rendering: RenderedPrompt,
        encoded_images: Sequence[str],
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Generate an answer; retry once if the engine crashes before the first token."""
        for tries_left in (1, 0):
            restart_count = model.engine.restart_count
            try:
                async with aclosing(model.generate(prompt, rendering, encoded_images)) as events:
                    async for event in events:
                        yield event
            except BackendUnavailable:
                if not (await model.engine.has_crashed(restart_count) and tries_left):
                    raise
                await self._load_model(prompt.model)
            except BackendInterrupted:
                await model.engine.has_crashed(restart_count)
                raise
            else:
                return

    @override
    def sees_images(self, model: str) -> bool:
        try:
            return (
                find_projector(self._find_model_file(model), self._settings, self._data_dir)
                is not None
            )
        except SettingsError:
            return False

    @override
    def is_sample_model(self, model: str) -> bool:
        try:
            return self._find_model_file(model).name == model_store.DEFAULT_MODEL_FILE
        except SettingsError:
            return False

    @override
    async def calls_tools(self, model: str, template: TemplateChoice) -> bool:
        try:
            path = self._find_model_file(model)
            loaded_model = self._models.get(path)
            model_template = (
                loaded_model.tokens.template if loaded_model else await read_model_template(path)
            )
            return await self._renderer.find_tool_call_format(template, model_template) is not None
        except (SettingsError, TemplateError):  # the request itself will report the error
            return False

    @override
    def models_in_memory(self) -> Sequence[ModelInMemory]:
        return [
            ModelInMemory(
                one.path.stem,
                one.engine.slot_count,
                one.slots.busy_slot_count,
                one.slots.owned_slot_count,
                one.queue.waiting_count,
            )
            for one in self._loaded_models()
        ]

    @override
    async def check(self) -> str:
        await self._load_model("default")
        return self._describe_model_file("default")

    @override
    async def list_models(self) -> Sequence[str]:
        return [model.stem for model in model_store.list_models(self._data_dir)]

    @override
    async def check_models(self, models: Sequence[str]) -> str:
        model_descriptions: list[str] = []
        problems: list[str] = []
        for name in models:
            try:
                model_descriptions.append(self._describe_model_file(name))
            except SettingsError as error:
                problems.append(str(error))
        if problems:
            raise BackendUnavailable("\n".join(problems), _UNUSABLE_MODEL_NOTICE)
        return ", ".join(dict.fromkeys(model_descriptions))

    def _describe_model_file(self, name: str) -> str:
        if model_store.is_pulled_at_start(name, self._settings, self._data_dir):
            return "the default model, downloaded at the first start"
        path = self._find_model_file(name)
        projector = find_projector(path, self._settings, self._data_dir)
        description = f"{path.stem} on this machine"
        return f"{description}, with the projector {projector.stem}" if projector else description

    @override
    async def close(self) -> None:
        for model in self._loaded_models():
            await model.slots.save_all()
        self._models.clear()
        await self._exit_stack.aclose()

    @property
    @override
    def can_tokenize(self) -> bool:
        return True

    @override
    async def tokenize(self, prompt: Prompt) -> Sequence[PromptToken]:
        model = await self._load_model(prompt.model)
        rendering = await self._render(prompt, model)
        try:
            return await model.tokenizer.explain_tokens(rendering.spans)
        except EngineFailed as error:
            raise BackendUnavailable(f"{model.path.stem} cannot tokenize: {error}") from error

    @override
    async def describe(self, prompt: Prompt) -> PromptDescription:
        try:
            path = self._find_model_file(prompt.model)
            return await render_and_describe(prompt, path, self._renderer)
        except (SettingsError, TemplateError) as error:
            raise BackendUnavailable(str(error)) from error

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        model = await self._load_model(prompt.model)
        rendering = await self._render(prompt, model)
        if len(self._rendered_prompts) >= _MAX_CACHED_PROMPTS:
            self._rendered_prompts.clear()
        self._rendered_prompts[prompt.conversation] = prompt, rendering
        return len(await model.tokenize_prompt(rendering)) + count_image_tokens(prompt)

    @override
    async def text_counter(self, prompt: Prompt) -> TextTokenCounter:
        # Asking the engine about each text takes longer than tokenizing the whole prompt.
        token_counter = get_counter_for_model(prompt.model)
        await token_counter.load()
        return token_counter

    @override
    async def max_prompt_tokens(self, prompt: Prompt) -> int | None:
        model = await self._load_model(prompt.model)
        try:
            context = await model.engine.fetch_context_tokens()
        except EngineFailed as error:
            message = f"{model.path.stem} does not report its context length"
            raise BackendUnavailable(message) from error
        tool_tokens = context // RESULTS_DIVISOR if prompt.tools else 0
        return context - tool_tokens - (prompt.output_limit or context // _CONTEXT_TO_ANSWER_RATIO)

    @override
    async def end_session(self, conversation: str) -> None:
        for model in self._loaded_models():
            await model.slots.end_session(conversation)

    @override
    async def forget(self, conversation: str) -> None:
        self._rendered_prompts.pop(conversation, None)
        for model in self._loaded_models():
            await model.slots.forget(conversation)
        # models that are not loaded may have saved slots, too
        delete_saved_slots(self._slots_folder, conversation)

    def _find_model_file(self, model: str) -> Path:
        return model_store.find_model(model, self._settings, self._data_dir)

    def _loaded_models(self) -> Sequence[LoadedModel]:
        """Return a copy of the list of loaded models, since it may change during iteration."""
        return list(self._models.values())

    async def _render(self, prompt: Prompt, model: LoadedModel) -> RenderedPrompt:
        cached_prompt, rendering = self._rendered_prompts.pop(prompt.conversation, (None, None))
        if cached_prompt is prompt and rendering is not None:
            return rendering
        messages = (
            insert_image_placeholders(prompt.messages) if model.has_vision else prompt.messages
        )
        try:
            tools = None
            if prompt.tools or prompt.tool_exchanges:
                tools = fit_tools(
                    prompt, await model.engine.fetch_context_tokens(), model.tokens.token_texts
                )
            return await self._renderer.render(
                messages, prompt.template, model.tokens.template, tools, has_prefill=True
            )
        except EngineFailed as error:
            raise BackendUnavailable(f"{model.path.stem} failed: {error}") from error
        except TemplateError as error:
            message = f"the template for {model.path.stem} cannot be used: {error}"
            raise BackendUnavailable(message, UNUSABLE_TEMPLATE_NOTICE) from error

    @override
    async def preload(self, model: str) -> None:
        await self._load_model(model)

    async def _load_model(self, name: str) -> LoadedModel:
        try:
            path = self._find_model_file(name)
            async with self._load_lock:
                if path not in self._models:
                    engine_config = self._make_engine_config(path)
                    check_template_pin(path, self._settings, self._provider)
                    model = await self._exit_stack.enter_async_context(load_model(engine_config))
                    await warn_of_added_text(
                        path, model.tokens.template, self._renderer, self._settings, self._provider
                    )
                    self._models[path] = model
            await self._models[path].engine.wait_until_ready()
        except (SettingsError, ChildProcessFailed, EngineFailed) as error:
            raise BackendUnavailable(str(error), _UNUSABLE_MODEL_NOTICE) from error
        return self._models[path]

    def _make_engine_config(self, path: Path) -> EngineConfig:
        projector = find_projector(path, self._settings, self._data_dir)
        return EngineConfig(
            path, self._provider, self._settings, self._data_dir, self._slots_folder, projector
        )


def make(name: str, settings: LlamaCppSettings, data_dir: Path, renderer: Renderer) -> Backend:
    return LlamaCpp(settings, data_dir, renderer, name)


def check_template_pin(model_file: Path, settings: LlamaCppSettings, provider: str) -> None:
    """Raise `SettingsError` if the model's template is not the one pinned in the settings."""
    if settings.template_sha256 is None:
        return
    sha256 = _sha256(read_special_tokens(model_file).chat_template or "")
    if sha256 != settings.template_sha256:
        raise SettingsError(
            f"the chat template in {model_file.name} has the SHA-256 {sha256}, which is not the one"
            f" pinned in {setting_prefix(provider)}TEMPLATE_SHA256; use a file with the pinned"
            " template, or pin this hash"
        )


async def warn_of_added_text(
    model_file: Path,
    template: ModelTemplate,
    renderer: Renderer,
    settings: LlamaCppSettings,
    provider: str,
) -> None:
    """Log a warning if a template that is not pinned in the settings adds text to every prompt."""
    if settings.template_sha256 is not None:
        return
    try:
        added_text = await find_added_text(template, renderer)
    except TemplateError as error:  # the first prompt will report the error
        _log.info("model_template_unchecked", model=model_file.name, reason=str(error))
        return
    if added_text:
        _log.warning(
            "model_template_adds_text",
            model=model_file.name,
            text=added_text[:_MAX_LOGGED_TEXT_CHARS],
            sha256=_sha256(template.source or ""),
            remedy="choose another `template` in the preset, or accept this one by pinning it in"
            f" {setting_prefix(provider)}TEMPLATE_SHA256",
        )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


async def render_and_describe(
    prompt: Prompt, model_file: Path, renderer: Renderer
) -> PromptDescription:
    """Render a prompt without loading its model; raise `SettingsError` or `TemplateError`."""
    file_template = await read_model_template(model_file)
    rendering = await renderer.render(
        insert_image_placeholders(prompt.messages), prompt.template, file_template, has_prefill=True
    )
    stop_strings = list(dict.fromkeys([*collect_stop_strings(prompt), *rendering.stop]))
    limit = {} if prompt.max_output_tokens is None else {"max_tokens": prompt.max_output_tokens}
    template_description = describe_template(prompt.template, file_template)
    template_source = prompt.template.source or file_template.source or ""
    date_note = "; the date in it is today's" if "strftime_now" in template_source else ""
    details = {
        "template": f"{template_description}; people's text is treated as plain text{date_note}",
        "parameters": json.dumps({**build_request_parameters(prompt), **limit}, ensure_ascii=False),
        "stop": json.dumps(stop_strings, ensure_ascii=False),
    }
    return PromptDescription(model_file.stem, details, rendering.text, is_rendered=True)


async def read_model_template(model_file: Path) -> ModelTemplate:
    """Read the chat template in a model file; raise `SettingsError` if it is not a GGUF file."""
    return (await asyncio.to_thread(read_special_tokens, model_file)).template


def describe_template(choice: TemplateChoice, model_template: ModelTemplate) -> str:
    """Return a short description of the template that renders a prompt."""
    if choice.named is not None:
        return f"{choice.named}, named by the preset"
    if choice.strings is not None:
        return "the preset's own string templates"
    if choice.role_texts is not None:
        return "the preset's own text around each role"
    if choice.source is not None:
        return "the preset's own Jinja template"
    if model_template.source is None:
        return f"{FALLBACK_TEMPLATE}, because the model has none"
    template_family = detect_family(model_template.source)
    return f"the model's own ({template_family})" if template_family else "the model's own"
