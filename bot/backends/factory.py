"""Load backend code by kind: to create backends, check parameters, and prepare models."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from importlib import import_module  # noqa: TID251 # imports the code that a spec refers to
from pathlib import Path
from typing import Any

from bot.backends.registry import backend_spec
from bot.backends.spec import ProviderSettings
from bot.errors import SettingsError, TroupeError
from bot.ports import Backend
from bot.runtime.plugins import enabled_plugins
from bot.templates.renderer import Renderer


def make_backend(
    provider: str, settings: ProviderSettings, data_dir: Path, renderer: Renderer
) -> Backend:
    """Create a provider's backend without starting it; close the backend before the renderer.

    Raises `SettingsError` if a package or setting is missing, or if the plug-in fails.
    """
    spec = backend_spec(settings.kind)
    try:
        backend: Backend = _load(spec.factory)(provider, settings, data_dir, renderer)
    except Exception as error:
        if isinstance(error, TroupeError) or spec not in enabled_plugins("backends").values():
            raise
        reason = f"provider {provider!r}: its plug-in raised {type(error).__name__}"
        raise SettingsError(reason) from error
    return backend


def parameter_problems(settings: ProviderSettings, parameters: Mapping[str, object]) -> list[str]:
    """Return an error line for each preset parameter that the provider does not support."""
    path = backend_spec(settings.kind).parameter_check
    problems: list[str] = [] if path is None else _load(path)(settings, parameters)
    return problems


async def prepare_model(
    provider: str,
    model: str,
    settings: ProviderSettings,
    data_dir: Path,
    progress: Callable[[str], None],
) -> None:
    """Download what a model needs; raise `SettingsError` if that fails."""
    path = backend_spec(settings.kind).preparation
    if path is not None:
        await _load(path)(provider, model, settings, data_dir, progress)


def model_trials(
    providers: Iterable[ProviderSettings], data_dir: Path, renderer: Renderer
) -> Iterator[tuple[str, Awaitable[str]]]:
    """Yield the name of each local model and a coroutine that tests it and reports its speed."""
    by_kind: dict[str, ProviderSettings] = {}
    for settings in providers:
        by_kind.setdefault(settings.kind, settings)
    for kind, settings in by_kind.items():
        path = backend_spec(kind).model_trials
        if path is not None:
            yield from _load(path)(settings, data_dir, renderer)


def _load(path: str) -> Any:
    module, _, function = path.partition(":")
    return getattr(import_module(module), function)
