"""Import a backend's code to create the backend, check parameters, or prepare models."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from pkgutil import resolve_name

from bot.backends.registry import backend_spec
from bot.backends.spec import ProviderSettings
from bot.chat.prompt import GenerationEvent, Prompt
from bot.errors import BackendError, BackendUnavailable
from bot.ports import Backend
from bot.runtime.plugin_threads import PluginThread, wrap_for_plugin, wrap_plugin
from bot.runtime.plugins import plugin_name
from bot.templates.renderer import Renderer


def make_backend(
    provider: str, settings: ProviderSettings, data_dir: Path, renderer: Renderer
) -> Backend:
    """Create a provider's backend without starting it; it must be closed before the renderer.

    Raises `SettingsError` if a package or setting is missing, or if the plug-in fails.
    """
    spec = backend_spec(settings.kind)
    factory_arguments = (provider, settings, data_dir)
    if (plugin := plugin_name("backends", spec)) is None:
        backend: Backend = resolve_name(spec.factory)(*factory_arguments, renderer)
        return backend
    timeout_seconds, renderer = settings.first_token_seconds, wrap_for_plugin(renderer)
    plugin_thread = PluginThread(plugin, timeout_seconds, BackendUnavailable, (BackendError,))
    plugin_backend: Backend = plugin_thread.call_factory(
        lambda: resolve_name(spec.factory)(*factory_arguments, renderer)
    )

    def generate(_wrapper: object, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        return plugin_thread.stream(lambda: plugin_backend.generate(prompt), settings.idle_seconds)

    plugin_wrapper: Backend = wrap_plugin(plugin_backend, Backend, plugin_thread, generate=generate)
    return plugin_wrapper


def parameter_problems(settings: ProviderSettings, parameters: Mapping[str, object]) -> list[str]:
    """Return an error line for each preset parameter that the provider does not support."""
    import_path = backend_spec(settings.kind).parameter_check
    problems: list[str] = (
        [] if import_path is None else resolve_name(import_path)(settings, parameters)
    )
    return problems


async def prepare_model(
    provider: str,
    model: str,
    settings: ProviderSettings,
    data_dir: Path,
    report_progress: Callable[[str], None],
) -> None:
    """Download what a model needs; raise `SettingsError` if that fails."""
    preparation_import_path = backend_spec(settings.kind).preparation
    if preparation_import_path is not None:
        await resolve_name(preparation_import_path)(
            provider, model, settings, data_dir, report_progress
        )


def model_trials(
    providers: Iterable[ProviderSettings], data_dir: Path, renderer: Renderer
) -> Iterator[tuple[str, Awaitable[str]]]:
    """Yield the name of each local model and a coroutine that tests it and reports its speed."""
    settings_by_kind: dict[str, ProviderSettings] = {}
    for settings in providers:
        settings_by_kind.setdefault(settings.kind, settings)
    for kind, settings in settings_by_kind.items():
        trials_import_path = backend_spec(kind).model_trials
        if trials_import_path is not None:
            yield from resolve_name(trials_import_path)(settings, data_dir, renderer)
