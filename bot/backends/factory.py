"""Import and call the code of a provider's backend: make it, check parameters, prepare models."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from importlib import import_module  # noqa: TID251 # the specs name code, to be imported when used
from pathlib import Path
from typing import Any, TypeAlias

from bot.backends.registry import backend_spec
from bot.backends.spec import ProviderSettings
from bot.ports import Backend
from bot.templates.renderer import Renderer

BackendFactory: TypeAlias = Callable[[str, ProviderSettings, Path, Renderer], Backend]
ParameterCheck: TypeAlias = Callable[[ProviderSettings, Mapping[str, object]], list[str]]
Preparation: TypeAlias = Callable[
    [str, ProviderSettings, Path, Callable[[str], None]], Awaitable[None]
]
ModelTrials: TypeAlias = Callable[
    [ProviderSettings, Path, Renderer], Iterator[tuple[str, Awaitable[str]]]
]


def make_backend(
    provider: str, settings: ProviderSettings, data_dir: Path, renderer: Renderer
) -> Backend:
    """Build the backend of a provider; nothing is connected or started yet.

    Close the renderer, which writes prompts for backends that take text, after the backend.
    """
    make: BackendFactory = _load(backend_spec(settings.kind).factory)
    return make(provider, settings, data_dir, renderer)


def parameter_problems(settings: ProviderSettings, parameters: Mapping[str, object]) -> list[str]:
    """Return a line for each parameter of a preset that this provider does not understand."""
    path = backend_spec(settings.kind).parameter_check
    if path is None:
        return []
    check: ParameterCheck = _load(path)
    return check(settings, parameters)


async def prepare_model(
    model: str, settings: ProviderSettings, data_dir: Path, progress: Callable[[str], None]
) -> None:
    """Download what a model needs; raises `SettingsError` where that is not possible."""
    path = backend_spec(settings.kind).preparation
    if path is not None:
        prepare: Preparation = _load(path)
        await prepare(model, settings, data_dir, progress)


def model_trials(
    providers: Iterable[ProviderSettings], data_dir: Path, renderer: Renderer
) -> Iterator[tuple[str, Awaitable[str]]]:
    """Yield each model on this machine with its trial, once for each kind of backend."""
    by_kind: dict[str, ProviderSettings] = {}
    for settings in providers:
        by_kind.setdefault(settings.kind, settings)
    for kind, settings in by_kind.items():
        path = backend_spec(kind).model_trials
        if path is not None:
            list_trials: ModelTrials = _load(path)
            yield from list_trials(settings, data_dir, renderer)


def _load(path: str) -> Any:
    module, _, function = path.partition(":")
    return getattr(import_module(module), function)
