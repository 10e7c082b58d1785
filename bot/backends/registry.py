"""The available kinds of backends, whose code is imported only when used.

To add a kind, add a package with a `SPEC` and one line here (docs/architecture.md).
"""

from collections.abc import Sequence
from typing import Literal

from typing_extensions import override

from bot.backends.anthropic.settings import SPEC as ANTHROPIC
from bot.backends.llama_cpp.settings import SPEC as LLAMA_CPP
from bot.backends.openai_compatible.settings import SPEC as OPENAI
from bot.backends.spec import FREE, BackendSpec, ModelPrice, ProviderSettings


class EchoSettings(ProviderSettings):
    """The settings of a provider that repeats prompts."""

    kind: Literal["echo"] = "echo"

    @override
    def price_of(self, model: str) -> ModelPrice | None:
        return super().price_of(model) or FREE


ECHO = BackendSpec(kind="echo", settings=EchoSettings, factory="bot.backends.echo:make")
DEFAULT_KIND = OPENAI.kind

_SPECS = {spec.kind: spec for spec in (OPENAI, ANTHROPIC, LLAMA_CPP, ECHO)}


def register(spec: BackendSpec) -> None:
    """Register a kind of backend before the settings are read; raises ValueError if it exists."""
    if spec.kind in _SPECS:
        raise ValueError(f"the backend {spec.kind!r} is registered already")
    _SPECS[spec.kind] = spec


def backend_specs() -> Sequence[BackendSpec]:
    return tuple(_SPECS.values())


def backend_spec(kind: str) -> BackendSpec:
    """Return the spec of a registered kind; raises KeyError if it is unknown."""
    return _SPECS[kind]


def default_spec(provider: str) -> BackendSpec:
    """Return the spec that a provider's id implies."""
    return next(
        (spec for spec in _SPECS.values() if provider in spec.provider_ids), _SPECS[DEFAULT_KIND]
    )
