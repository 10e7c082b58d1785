"""The registry of backend kinds, whose code is imported only when used.

To add a kind, add a package, and register a spec here that names the package's functions.
"""

from collections.abc import Sequence
from typing import Literal

from typing_extensions import override

from bot.backends.anthropic.settings import AnthropicSettings
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.openai_compatible.services import KEYLESS_SERVICES, SERVICES
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.backends.spec import FREE, BackendSpec, ModelPrice, ProviderSettings
from bot.errors import SettingsError


class EchoSettings(ProviderSettings):
    """Settings of a provider that repeats prompts."""

    kind: Literal["echo"] = "echo"

    @override
    def find_price(self, model: str) -> ModelPrice | None:
        return super().find_price(model) or FREE


OPENAI = BackendSpec(
    kind="openai",
    settings=OpenAISettings,
    factory="bot.backends.openai_compatible.backend:make",
    provider_ids=frozenset(SERVICES),
    providers_without_settings=KEYLESS_SERVICES,
    calls_tools=True,
)
ANTHROPIC = BackendSpec(
    kind="anthropic",
    settings=AnthropicSettings,
    factory="bot.backends.anthropic.backend:make",
    provider_ids=frozenset({"anthropic"}),
    calls_tools=True,
    parameter_check="bot.backends.anthropic.wire:parameter_problems",
)
LLAMA_CPP = BackendSpec(
    kind="llama_cpp",
    settings=LlamaCppSettings,
    factory="bot.backends.llama_cpp.backend:make",
    provider_ids=frozenset({"local"}),
    calls_tools=True,
    providers_without_settings=frozenset({"local"}),
    parameter_check="bot.backends.llama_cpp.sampling:parameter_problems",
    preparation="bot.backends.llama_cpp.engine:prepare_model",
    model_trials="bot.backends.llama_cpp.model_trial:model_trials",
)
ECHO = BackendSpec(kind="echo", settings=EchoSettings, factory="bot.backends.echo:make")
DEFAULT_KIND = OPENAI.kind

_SPECS_BY_KIND = {spec.kind: spec for spec in (OPENAI, ANTHROPIC, LLAMA_CPP, ECHO)}


def register(spec: BackendSpec) -> None:
    """Register a kind of backend before settings are read; raise `SettingsError` if invalid."""
    if not isinstance(spec, BackendSpec):
        raise SettingsError("not a BackendSpec")
    if spec.kind in _SPECS_BY_KIND:
        raise SettingsError(f"the backend {spec.kind!r} is already registered")
    _SPECS_BY_KIND[spec.kind] = spec


def backend_specs() -> Sequence[BackendSpec]:
    return tuple(_SPECS_BY_KIND.values())


def backend_spec(kind: str) -> BackendSpec:
    """Return the spec of a registered kind; raise KeyError if it is unknown."""
    return _SPECS_BY_KIND[kind]


def default_spec(provider: str) -> BackendSpec:
    """Return the backend spec that a provider with this id uses by default."""
    matches = (spec for spec in _SPECS_BY_KIND.values() if provider in spec.provider_ids)
    return next(matches, _SPECS_BY_KIND[DEFAULT_KIND])
