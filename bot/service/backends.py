"""Create the backends that presets use, and check presets against providers and settings."""

import re
from collections.abc import Iterable, Mapping, Sequence

from bot.backends.factory import make_backend, parameter_problems
from bot.backends.model_files.store import find_model, is_pulled_at_start
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.backends.registry import backend_spec
from bot.backends.spec import ModelFileSettings, ProviderSettings
from bot.errors import PresetError, SettingsError
from bot.ports import Backend
from bot.prompting.presets.preset import Preset
from bot.settings import Settings
from bot.templates.renderer import Renderer
from bot.texts.text import join_texts, translatable

_MODEL_FILE_PATTERN = re.compile(r"^(/|~|\.{1,2}[/\\]|[a-z]:[/\\])|\.gguf$", re.IGNORECASE)
"""Matches a model file's path, as opposed to the name of a model on a server."""


def add_backends(
    backends: dict[str, Backend],
    settings: Settings,
    presets: Iterable[Preset],
    renderer: Renderer,
    id_hashing_key: bytes = b"",
) -> None:
    """Add the backends that presets need and that are missing; raises `PresetError`."""
    presets = list(presets)
    if refusals := find_refused_presets(presets, settings):
        raise PresetError(join_texts(describe_refused_presets(refusals)))
    used_providers = [name for preset in presets for name, _ in list_used_models(preset)]
    for name, one in settings.providers.items():
        if isinstance(one, OpenAISettings) and one.moderation_model:  # moderates all answers
            used_providers.append(name)
    for name in dict.fromkeys(used_providers):
        if name not in backends:
            backend = make_backend(name, settings.providers[name], settings.data_dir, renderer)
            backend.use_session_key(id_hashing_key)
            backends[name] = backend


def find_refused_presets(presets: Iterable[Preset], settings: Settings) -> dict[str, str]:
    """Return the reasons why presets cannot run with these settings, by preset name."""
    refusals = {preset.name: find_preset_refusals(preset, settings) for preset in presets}
    return {name: join_texts(reasons) for name, reasons in refusals.items() if reasons}


def describe_refused_presets(reasons_by_preset: Mapping[str, str]) -> Sequence[str]:
    """Return one line per unusable preset, with the reasons."""
    return [
        translatable("preset {preset}: {problem}", preset=repr(name), problem=reason)
        for name, reason in reasons_by_preset.items()
    ]


def find_preset_refusals(preset: Preset, settings: Settings) -> Sequence[str]:
    """Return a preset's problems: missing providers or prices, unsupported parameters or tools."""
    is_limited = settings.budgets.has_any_budget or preset.budget is not None
    missing_providers: dict[str, str] = {}
    price_problems = []
    for name, model in dict.fromkeys(list_used_models(preset)):
        provider = settings.providers.get(name)
        if provider is None:
            missing_providers[name] = translatable(
                "the provider {provider} is not set up; set TROUPE_PROVIDERS__{setting}__API_KEY or"
                " TROUPE_PROVIDERS__{setting}__BASE_URL",
                provider=repr(name),
                setting=name.upper(),
            )
        elif is_limited and not _has_price(provider, model):
            price_problems.append(
                translatable(
                    "a budget is set, but the price of {model} is not known; set"
                    " TROUPE_PROVIDERS__{setting}__PRICES",
                    model=repr(model),
                    setting=name.upper(),
                )
            )
    return [*missing_providers.values(), *price_problems, *find_preset_problems(preset, settings)]


def describe_missing_setup(preset: Preset, settings: Settings) -> Sequence[str]:
    """Return what still has to be set up before a preset can answer, including model files."""
    problems = list(find_preset_refusals(preset, settings))
    for name, model in list_used_models(preset):
        provider = settings.providers.get(name)
        try:
            if isinstance(provider, ModelFileSettings):
                if not is_pulled_at_start(model, provider, settings.data_dir):
                    find_model(model, provider, settings.data_dir)
            elif provider is not None and _MODEL_FILE_PATTERN.search(model):
                problems.append(
                    f"the model {model!r} is a file, but the provider {name!r} is a server and"
                    " needs a name; change `model` to a name that the server lists, or import the"
                    " file with `troupe model pull` and use a provider of the kind llama_cpp"
                )
        except SettingsError as error:
            problems.append(str(error))
    return problems


def find_preset_problems(preset: Preset, settings: Settings) -> Sequence[str]:
    """Return the parameters and tools of a preset that its providers do not support."""
    unsupported_parameters = [
        problem
        for one in preset.self_and_fallbacks
        if one.provider in settings.providers
        for problem in parameter_problems(settings.providers[one.provider], preset.parameters)
    ]
    return [*dict.fromkeys(unsupported_parameters), *find_tool_problems(preset, settings)]


def find_tool_problems(preset: Preset, settings: Settings) -> Sequence[str]:
    """Return why a preset's model cannot call its tools; fallback models are not checked."""
    problems = []
    for name in preset.mcp_servers:
        if name not in settings.mcp_servers:
            problems.append(
                translatable(
                    "mcp_servers: no MCP server {name} is set up (known: {known}); set"
                    " TROUPE_MCP_SERVERS__{setting}__COMMAND or"
                    " TROUPE_MCP_SERVERS__{setting}__URL",
                    name=repr(name),
                    known=", ".join(sorted(settings.mcp_servers)) or translatable("none"),
                    setting=name.upper(),
                )
            )
    provider = settings.providers.get(preset.provider)
    if preset.calls_tools and provider and not backend_spec(provider.kind).calls_tools:
        problems.append(
            translatable(
                "tools: models of the provider {provider} (kind {kind}) cannot call tools; use a"
                " provider of the kind openai, anthropic or llama_cpp, or remove tools and"
                " mcp_servers",
                provider=repr(preset.provider),
                kind=provider.kind,
            )
        )
    return problems


def list_used_models(preset: Preset) -> list[tuple[str, str]]:
    """Return the pairs (provider, model) of a preset, its fallbacks and its summaries."""
    models = [(one.provider, one.model) for one in preset.self_and_fallbacks]
    summary = preset.summary
    if summary and (summary.provider or summary.model):
        models.append((summary.provider or preset.provider, summary.model or preset.model))
    return models


def _has_price(provider: ProviderSettings, model: str) -> bool:
    name = provider.model or model if model == "default" else model
    return provider.find_price(name) is not None
