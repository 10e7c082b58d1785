"""Test local models: load each one, and measure its prefill and generation speed."""

import asyncio
import time
from collections.abc import Awaitable, Iterator
from contextlib import aclosing
from pathlib import Path

from bot.backends.llama_cpp.backend import LlamaCpp
from bot.backends.llama_cpp.hardware import count_free_bytes
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.model_files import store as model_store
from bot.backends.model_files.gguf import PROJECTOR_ONLY_MESSAGE, ModelMetadata, read_metadata
from bot.chat.prompt import Finish, Message, Prompt
from bot.errors import BackendUnavailable, SettingsError
from bot.templates.renderer import Renderer

_TRIAL_CONVERSATION = "check:measurement"
_PROMPT_TEXT = "Name the colors of the rainbow, one after the other. " * 10  # about 100 tokens
_OUTPUT_TOKENS = 24
_TIMEOUT_SECONDS = 10.0


def model_trials(
    settings: LlamaCppSettings, data_dir: Path, renderer: Renderer
) -> Iterator[tuple[str, Awaitable[str]]]:
    for model in model_store.list_models(data_dir):
        yield model.stem, measure_model(model, settings, data_dir, renderer)


async def measure_model(
    model: Path, settings: LlamaCppSettings, data_dir: Path, renderer: Renderer
) -> str:
    """Load a model and return a line about its speed.

    Raises `SettingsError` if the model is too large, and `BackendUnavailable` if it fails.
    """
    metadata = read_metadata(model)
    if metadata.is_projector:
        return PROJECTOR_ONLY_MESSAGE
    _raise_if_too_large(metadata, settings)
    trial_settings = settings.model_copy(
        update={"model_path": model, "projector_path": None, "parallel": 1}
    )
    backend = LlamaCpp(trial_settings, data_dir, renderer)
    try:
        start_time = time.perf_counter()
        await backend.preload("default")
        report = f"loads in {time.perf_counter() - start_time:.1f} s"
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                return f"{report}, {await _measure_speed(backend)}"
        except TimeoutError:
            return f"{report}, but needs over {_TIMEOUT_SECONDS:.0f} s for {_OUTPUT_TOKENS} tokens"
    finally:
        await backend.forget(_TRIAL_CONVERSATION)
        await backend.close()


async def _measure_speed(backend: LlamaCpp) -> str:
    start_time = time.perf_counter()
    reply_time: float | None = None
    async with aclosing(backend.generate(_make_trial_prompt())) as events:
        async for event in events:
            now = time.perf_counter()
            reply_time = reply_time or now
            if isinstance(event, Finish):
                prompt_speed = event.usage.prompt_tokens / (reply_time - start_time)
                output_speed = max(0, event.usage.output_tokens - 1) / max(now - reply_time, 1e-3)
                return f"reads {prompt_speed:.0f} tokens/s, writes {output_speed:.0f} tokens/s"
    raise BackendUnavailable("the model did not answer")


def _make_trial_prompt() -> Prompt:
    return Prompt(
        messages=(Message("user", _PROMPT_TEXT),),
        model="default",
        conversation=_TRIAL_CONVERSATION,
        parameters={"temperature": 0, "ignore_eos": True},
        max_output_tokens=_OUTPUT_TOKENS,
    )


def _raise_if_too_large(metadata: ModelMetadata, settings: LlamaCppSettings) -> None:
    needed_bytes, available_bytes = metadata.estimate_memory_bytes(settings), count_free_bytes()
    if available_bytes is not None and needed_bytes > available_bytes:
        raise SettingsError(
            f"it needs about {needed_bytes / 1e9:.1f} GB of memory, but this machine has "
            f"{available_bytes / 1e9:.1f} GB free; choose a smaller model, or lower the provider's "
            "CONTEXT_TOKENS or PARALLEL"
        )
