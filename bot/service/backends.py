"""Build the backends that the presets name, and check the presets against them."""

from collections.abc import Iterable, Mapping, Sequence

from bot.backends.factory import make_backend, parameter_problems
from bot.backends.registry import backend_spec
from bot.errors import PresetError, SettingsError
from bot.ports import Backend, SessionAffineBackend
from bot.prompting.presets.preset import Preset
from bot.settings import Settings
from bot.templates.renderer import Renderer
from bot.texts.text import joined, translatable


def make_backends(
    settings: Settings,
    presets: Mapping[str, Preset],
    renderer: Renderer,
    session_key: bytes = b"",
) -> dict[str, Backend]:
    """Build one backend for each provider that a preset names.

    Args:
        settings: the providers.
        presets: what names them.
        renderer: writes prompts for backends that take text.
        session_key: what conversations are hashed with for routers of model servers.

    Raises:
        SettingsError: a preset's provider is not set up, or what a budget limits has no price.
        PresetError: providers do not support some parameters or tools; the text lists them all.
    """
    backends: dict[str, Backend] = {}
    add_backends(backends, settings, presets.values(), renderer, session_key)
    return backends


def add_backends(
    backends: dict[str, Backend],
    settings: Settings,
    presets: Iterable[Preset],
    renderer: Renderer,
    session_key: bytes = b"",
) -> None:
    """Build the backends that presets name and that are not there yet; raises as above."""
    presets = list(presets)
    _require_prices(settings, presets)
    problems: list[str] = []
    for preset in presets:
        for name, _ in used_models(preset):
            provider = settings.providers.get(name)
            if provider is None:
                raise SettingsError(
                    translatable(
                        "preset {preset} uses the provider {provider}, which is not set up; set"
                        " TROUPE_PROVIDERS__{setting}__API_KEY or __BASE_URL",
                        preset=repr(preset.name),
                        provider=repr(name),
                        setting=name.upper(),
                    )
                )
            if name not in backends:
                made = make_backend(name, provider, settings.data_dir, renderer)
                if isinstance(made, SessionAffineBackend):
                    made.use_session_key(session_key)
                backends[name] = made
        unsupported = preset_problems(preset, settings)
        problems += [
            translatable("preset {preset}: {problem}", preset=repr(preset.name), problem=problem)
            for problem in unsupported
        ]
    if problems:
        raise PresetError(joined(problems))


def preset_problems(preset: Preset, settings: Settings) -> Sequence[str]:
    """List what keeps the configured providers from answering for a preset."""
    return [*unsupported_parameters(preset, settings), *tool_problems(preset, settings)]


def unsupported_parameters(preset: Preset, settings: Settings) -> Sequence[str]:
    """List the preset's parameters that one of its configured providers does not support."""
    names = dict.fromkeys(one.provider for one in preset.with_fallbacks)
    providers = [settings.providers[name] for name in names if name in settings.providers]
    problems = (
        problem
        for provider in providers
        for problem in parameter_problems(provider, preset.parameters)
    )
    return list(dict.fromkeys(problems))


def tool_problems(preset: Preset, settings: Settings) -> Sequence[str]:
    """List what keeps the preset's model from calling its tools.

    A fallback whose provider has no tools answers without them.
    """
    problems = []
    for name in preset.mcp_servers:
        if name not in settings.mcp_servers:
            known = ", ".join(sorted(settings.mcp_servers)) or translatable("none")
            problems.append(
                translatable(
                    "mcp_servers: the operator allows no MCP server {name} (known: {known}); set"
                    " TROUPE_MCP_SERVERS__{setting}__COMMAND or __URL",
                    name=repr(name),
                    known=known,
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


def used_models(preset: Preset) -> list[tuple[str, str]]:
    """Return the provider and the model of a preset, of its fallbacks and of its summaries."""
    models = [(one.provider, one.model) for one in preset.with_fallbacks]
    summary = preset.summary
    if summary and (summary.provider or summary.model):
        models.append((summary.provider or preset.provider, summary.model or preset.model))
    return models


def _require_prices(settings: Settings, presets: Iterable[Preset]) -> None:
    """Check that the price of every model is known that a budget limits.

    Raises:
        SettingsError: one is not; a line for each names the setting.
    """
    unpriced = {
        (provider, model)
        for preset in presets
        if settings.budgets.has_any or preset.budget is not None
        for provider, model in used_models(preset)
        if not _has_price(settings, provider, model)
    }
    if unpriced:
        raise SettingsError(
            "\n".join(
                f"a budget is set, but the price of {model!r} is not known; set"
                f" TROUPE_PROVIDERS__{provider.upper()}__PRICES"
                for provider, model in sorted(unpriced)
            )
        )


def _has_price(settings: Settings, provider: str, model: str) -> bool:
    given = settings.providers.get(provider)
    if given is None:
        return True  # the missing provider is reported by itself
    name = given.model or model if model == "default" else model
    return given.price_of(name) is not None
