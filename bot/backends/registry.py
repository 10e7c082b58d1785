"""Registered kinds of backends; their code is imported on first use.

A new kind is a package with a `SPEC` and one line here (docs/architecture.md).
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module  # noqa: TID251 # the specs name code, to be imported when used
from pathlib import Path
from typing import Any, TypeAlias

from bot.backends.anthropic.settings import SPEC as ANTHROPIC
from bot.backends.echo import SPEC as ECHO
from bot.backends.llama_cpp.settings import SPEC as LLAMA_CPP
from bot.backends.openai_compatible.settings import SPEC as OPENAI
from bot.backends.spec import BackendSpec, ProviderSettings
from bot.ports import Backend
from bot.templates.renderer import Renderer

DEFAULT_KIND = OPENAI.kind
"""The kind of a provider whose settings and id do not say it."""

_SPECS = {spec.kind: spec for spec in (OPENAI, ANTHROPIC, LLAMA_CPP, ECHO)}


def register(spec: BackendSpec) -> None:
    """Add a kind of backend; call it before the settings are read.

    Raises:
        ValueError: there is one of this kind already.
    """
    if spec.kind in _SPECS:
        raise ValueError(f"the backend {spec.kind!r} is registered already")
    _SPECS[spec.kind] = spec


def backend_specs() -> Sequence[BackendSpec]:
    """Return every registered kind of backend."""
    return tuple(_SPECS.values())


def backend_spec(kind: str) -> BackendSpec:
    """Return a registered kind of backend; raises KeyError for an unknown one."""
    return _SPECS[kind]


def default_spec(provider: str) -> BackendSpec:
    """Return the kind of backend that a provider's id implies."""
    return next(
        (spec for spec in _SPECS.values() if provider in spec.provider_ids), _SPECS[DEFAULT_KIND]
    )


BackendFactory: TypeAlias = Callable[[str, ProviderSettings, Path, Renderer], Backend]
ParameterCheck: TypeAlias = Callable[[ProviderSettings, Mapping[str, object]], list[str]]
Preparation: TypeAlias = Callable[
    [str, str, ProviderSettings, Path, Callable[[str], None]], Awaitable[None]
]
ModelTrials: TypeAlias = Callable[
    [ProviderSettings, Path, Renderer], Iterator[tuple[str, Awaitable[str]]]
]


def make_backend(
    provider: str, settings: ProviderSettings, data_dir: Path, renderer: Renderer
) -> Backend:
    """Build the backend of a provider; nothing is connected or started yet.

    `renderer` writes prompts for backends that take text; close it after them.
    """
    make: BackendFactory = _load(backend_spec(settings.kind).factory)
    return make(provider, settings, data_dir, renderer)


def parameter_problems(settings: ProviderSettings, parameters: Mapping[str, object]) -> list[str]:
    """Return a line for each parameter of a preset that this provider would not understand."""
    path = backend_spec(settings.kind).parameter_check
    if path is None:
        return []
    check: ParameterCheck = _load(path)
    return check(settings, parameters)


async def prepare_model(
    provider: str,
    model: str,
    settings: ProviderSettings,
    data_dir: Path,
    progress: Callable[[str], None],
) -> None:
    """Make sure that what a model needs is on this machine; `progress` is told of slow steps.

    Raises:
        SettingsError: it is not there and cannot be downloaded.
    """
    path = backend_spec(settings.kind).preparation
    if path is not None:
        prepare: Preparation = _load(path)
        await prepare(provider, model, settings, data_dir, progress)


def model_trials(
    providers: Iterable[ProviderSettings], data_dir: Path, renderer: Renderer
) -> Iterator[tuple[str, Awaitable[str]]]:
    """Yield the models on this machine, each with a trial of it, once for each kind of backend."""
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
