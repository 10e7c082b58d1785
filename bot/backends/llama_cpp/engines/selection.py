"""Select the engine that the settings of a provider ask for."""

from importlib.util import find_spec
from typing import NamedTuple

from bot.backends.llama_cpp.engines.engine import EngineConfig
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.errors import SettingsError


class _EngineKind(NamedTuple):
    package: str
    """The package that it needs."""
    remedy: str
    """How to install that."""


# By the name in the settings, best first.
_ENGINES = {
    "xllamacpp": _EngineKind("xllamacpp", "`pip install 'troupe-bot[local]'` brings it"),
    "llama_cpp_python": _EngineKind(
        "llama_cpp", "`pip install 'troupe-bot[llama-cpp]'` compiles it, in some minutes"
    ),
}


def select_engine(settings: LlamaCppSettings) -> str | None:
    """Return the name of the engine for these settings; None if it is not installed."""
    wanted = settings.engine
    return next((name for name in _installed() if wanted in {"auto", name}), None)


def engine_settings(settings: LlamaCppSettings) -> LlamaCppSettings:
    """Return the settings as their engine runs them: the bindings have a single slot."""
    if select_engine(settings) == "llama_cpp_python":
        return settings.model_copy(update={"parallel": 1})
    return settings


def require_engine(config: EngineConfig) -> str:
    """Return the name of the engine to start.

    Raises:
        SettingsError: it is not installed; the text names the remedy.
    """
    name = select_engine(config.settings)
    if name is None:
        raise _not_installed(config)
    return name


def setting_prefix(config: EngineConfig) -> str:
    """Return what the names of the provider's settings begin with."""
    return f"TROUPE_PROVIDERS__{config.provider.upper()}__"


def _installed() -> list[str]:
    return [name for name, kind in _ENGINES.items() if find_spec(kind.package) is not None]


def _not_installed(config: EngineConfig) -> SettingsError:
    wanted, installed = config.settings.engine, _installed()
    prefix = setting_prefix(config)
    missing = next(iter(_ENGINES)) if wanted == "auto" else wanted
    alternative = (
        f"unset {prefix}ENGINE for the default, {installed[0]}"
        if installed
        else f"set {prefix}KIND=openai and {prefix}BASE_URL to a server that has a model"
    )
    remedy = _ENGINES[missing].remedy
    return SettingsError(f"the engine {missing} is not installed: {remedy}; or {alternative}")
