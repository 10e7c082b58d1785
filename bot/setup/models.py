"""Choose the model that every shipped preset answers with, and try it before it is written.

The presets that come with Troupe name the provider `local`; its settings may point to a file on
this machine or to any service, so that one choice is enough for all of them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

from pydantic import ValidationError

from bot.backends.factory import make_backend
from bot.backends.openai_compatible.services import KEYLESS, SERVICES, WELL_KNOWN
from bot.backends.registry import backend_spec, backend_specs, default_spec
from bot.backends.spec import ProviderSettings
from bot.chat.prompt import Delta, Message, Prompt
from bot.errors import BackendUnavailable, SettingsError, TroupeError
from bot.ports import Backend
from bot.runtime.validation_errors import describe_problem
from bot.templates.renderer import Renderer
from bot.value_class import value_class

INCLUDED = "included"
"""What stands for the model that comes with Troupe, among the providers."""

_PREFIX = "TROUPE_PROVIDERS__LOCAL__"
_PARTS = ("KIND", "BASE_URL", "API_KEY", "MODEL", "MODEL_PATH")
_QUESTION = "Say hello in one short sentence."
_MAX_ANSWER_TOKENS = 64
_FIND_SECONDS = 2.0
_TRY_SECONDS = 60.0


@value_class
class ModelChoice:
    """What answers: a service's or a file's model by name; without anything, the included one."""

    provider: str | None = None
    """The id of a provider that Troupe knows, or None."""
    base_url: str | None = None
    api_key: str | None = None
    model: str | None = None
    """A name at the service, or of a file in the models folder."""
    model_path: Path | None = None

    @property
    def is_service(self) -> bool:
        """Whether it is reached by an address."""
        return self.provider is not None or self.base_url is not None

    @property
    def variables(self) -> Mapping[str, str | None]:
        """The settings to write; what an earlier choice left behind is removed."""
        chosen = {
            "KIND": self._kind,
            "BASE_URL": self._address,
            "API_KEY": self.api_key,
            "MODEL": self.model,
            "MODEL_PATH": str(self.model_path) if self.model_path else None,
        }
        return {f"{_PREFIX}{part}": chosen[part] for part in _PARTS}

    @property
    def _address(self) -> str | None:
        return self.base_url or WELL_KNOWN.get(self.provider or "")

    @property
    def _kind(self) -> str | None:
        """The kind of backend, where the provider `local` would not imply it."""
        implied = default_spec(self.provider).kind if self.provider else None
        return implied if implied != default_spec("").kind else None


@value_class
class FoundService:
    """A service on this machine that answers, and its models."""

    provider: str
    base_url: str
    models: Sequence[str]


@value_class
class SuggestedModel:
    """A model worth downloading."""

    source: str
    """What `troupe model pull` takes."""
    size_gb: float
    words: str


SUGGESTED: Sequence[SuggestedModel] = (
    SuggestedModel("Qwen/Qwen3-4B-GGUF:Q4_K_M", 2.5, "good answers; 6 GB of memory"),
    SuggestedModel("Qwen/Qwen3-8B-GGUF:Q4_K_M", 5.0, "better ones; 9 GB of memory"),
)


_TITLES = {
    "anthropic": "Anthropic (Claude)",
    "anthropic_openai": "Anthropic, by OpenAI's API",
    "azure_openai": "Azure OpenAI",
    "cohere": "Cohere",
    "dash_scope": "Alibaba DashScope (Qwen)",
    "deepseek": "DeepSeek",
    "deepseek_beta": "DeepSeek, beta",
    "gemini": "Google Gemini",
    "groq": "Groq",
    "litellm": "LiteLLM",
    "llama_server": "llama-server (llama.cpp)",
    "lmstudio": "LM Studio",
    "mistral_ai": "Mistral AI",
    "moonshot": "Moonshot (Kimi)",
    "ollama": "Ollama",
    "open_router": "OpenRouter",
    "openai": "OpenAI",
    "sglang": "SGLang",
    "silicon_flow": "SiliconFlow",
    "together_ai": "Together AI",
    "vllm": "vLLM",
    "x_ai": "xAI (Grok)",
    "zhipu": "Zhipu (GLM)",
}


def service_title(provider: str) -> str:
    """Return the name under which people know a service."""
    return _TITLES.get(provider, provider)


def find_service(words: str) -> str | None:
    """Return the id of the service that somebody names: "OpenRouter", "claude", "open_router"."""
    wanted = _letters(words)
    names = {name: (_letters(name), _letters(service_title(name))) for name in known_providers()}
    exact = [name for name, known in names.items() if wanted in known]
    part = [name for name, (_, title) in names.items() if wanted and wanted in title]
    found = exact or part
    return min(found, key=lambda name: len(service_title(name))) if found else None


def _letters(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())


def known_services() -> Sequence[str]:
    """Return the ids of the online services that need a key only."""
    elsewhere = [name for name in SERVICES if name not in KEYLESS]
    return sorted({*elsewhere, *_services_of_other_kinds()})


def known_providers() -> Sequence[str]:
    """Return every provider that can be chosen by its id."""
    return sorted({INCLUDED, *KEYLESS, *known_services()})


async def find_local_services() -> Sequence[FoundService]:
    """Ask the usual ports of this machine which services with models are there."""
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(_ask_service(name)) for name in sorted(KEYLESS)]
    return [found for task in asked if (found := task.result()) is not None]


async def list_models(choice: ModelChoice) -> Sequence[str]:
    """Return the models that a service lists; none if it has no list.

    Raises:
        SettingsError: the choice is incomplete.
        BackendUnavailable: nothing answers, or the key is wrong.
    """
    async with Renderer() as renderer:
        backend = _backend(choice, renderer)
        try:
            return await backend.list_models()
        finally:
            await backend.close()


async def try_model(choice: ModelChoice) -> str:
    """Ask the model one short question and return its answer.

    Raises:
        SettingsError: the choice is incomplete.
        BackendUnavailable: it does not answer; the text says why.
    """
    prompt = Prompt(
        messages=(Message("user", _QUESTION),),
        model=choice.model or "default",
        conversation="init:check",
        max_output_tokens=_MAX_ANSWER_TOKENS,
    )
    async with Renderer() as renderer:
        backend = _backend(choice, renderer)
        try:
            async with asyncio.timeout(_TRY_SECONDS), aclosing(backend.generate(prompt)) as events:
                texts = [event.text async for event in events if isinstance(event, Delta)]
        except TimeoutError:
            raise BackendUnavailable(f"no answer within {_TRY_SECONDS:g} s") from None
        finally:
            await backend.close()
    return " ".join("".join(texts).split())


async def _ask_service(name: str) -> FoundService | None:
    address = WELL_KNOWN[name]
    try:
        async with asyncio.timeout(_FIND_SECONDS):
            models = await list_models(ModelChoice(provider=name))
    except (TroupeError, TimeoutError):
        return None
    return FoundService(name, address, models) if models else None


def _backend(choice: ModelChoice, renderer: Renderer) -> Backend:
    name = choice.provider or "local"
    settings = _provider_settings(name, choice)
    return make_backend(name, settings, Path(), renderer)


def _provider_settings(name: str, choice: ModelChoice) -> ProviderSettings:
    given = {
        "base_url": choice.base_url,
        "api_key": choice.api_key,
        "model": choice.model,
        "first_token_seconds": _TRY_SECONDS,  # it may have to be loaded first
    }
    kind = default_spec(name).kind if choice.provider else default_spec("").kind
    fields = {key: value for key, value in given.items() if value is not None}
    try:
        settings = backend_spec(kind).settings.model_validate({"kind": kind, **fields})
        return settings.completed(name)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = "".join(str(part) for part in problem["loc"]).upper()
        raise SettingsError(f"{where}: {describe_problem(problem)}") from None
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _services_of_other_kinds() -> Sequence[str]:
    """Return the providers whose kind takes a key and has an address of its own."""
    default = default_spec("").kind
    return [
        name
        for spec in backend_specs()
        if spec.kind != default and "api_key" in spec.settings.model_fields
        for name in spec.provider_ids
    ]
