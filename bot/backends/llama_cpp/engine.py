"""The engine interface, and the choice between the installed engines."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import field
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.model_files import store
from bot.chat.prompt import GenerationEvent
from bot.errors import SettingsError
from bot.value_class import value_class

IMAGE_PLACEHOLDER: Final = "\ufffc"  # Unicode's object replacement character


class EngineFailed(Exception):
    """The engine did not do what it was asked; it may have crashed."""


class EngineRefused(EngineFailed):
    """The engine works and rejects this request."""


@value_class
class GenerationRequest:
    """One prompt for an engine."""

    prompt_ids: Sequence[int]
    """The whole prompt; the prefix that the slot holds already is not decoded again."""
    stop: Sequence[str] = ()
    """Each ends the answer, also where it is a control token."""
    sampling: Mapping[str, object] = field(default_factory=dict)
    """Sampling parameters by llama.cpp's names."""
    max_output_tokens: int | None = None
    slot: int | None = None
    """None is any slot."""
    can_shift: bool = False
    """The slot holds only this conversation, so its tokens may be shifted over a gap."""
    preserved_tokens: Sequence[str] = ()
    """Control tokens that are rendered as text."""
    text: str = ""
    """With images, the prompt as text, with an `IMAGE_PLACEHOLDER` for each of them."""
    images: Sequence[str] = ()
    """The images in base64."""


class Engine(Protocol):
    """A loaded model with several slots, restarted whenever it crashes.

    A slot is one conversation's part of the KV cache, numbered from 0. It can be saved to a file
    and restored, also after a crash. Any call may raise `EngineFailed`.
    """

    @property
    def slot_count(self) -> int: ...

    @property
    def version(self) -> str:
        """The version that writes saved slots; another one may be unable to read them."""
        ...

    @property
    def restarts(self) -> int:
        """How often it was restarted; a restart empties every slot."""
        ...

    async def context_tokens(self) -> int:
        """Return the size of one slot: as configured, or the model's own limit."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Generate as `Backend.generate` does; closing the generator stops the model."""
        ...

    async def tokenize(
        self, texts: Sequence[str], *, parse_special: bool, add_special: bool = False
    ) -> list[list[int]]:
        """Return the token ids of each text.

        Args:
            texts: what to tokenize.
            parse_special: turn the text of control tokens into control tokens.
            add_special: add the tokens that the model expects around a prompt.
        """
        ...

    async def token_text(self, token: int) -> str: ...

    async def save_slot(self, slot: int, file: str) -> int:
        """Write a slot to a file in the engine's folder; return its number of tokens."""
        ...

    async def restore_slot(self, slot: int, file: str) -> int:
        """Read a slot from such a file; return its number of tokens.

        Raises `EngineRefused` when the file is no saved slot that it can use.
        """
        ...

    async def erase_slot(self, slot: int) -> None: ...

    async def wait_until_ready(self) -> None:
        """Wait until it answers; raises `EngineFailed` on a timeout."""
        ...

    async def has_crashed(self, restarts: int) -> bool:
        """Tell after a failure whether it crashed since `restarts` was read.

        An engine that runs but does not react is killed, so that it is restarted; this counts.
        """
        ...


@value_class
class EngineConfig:
    """What an engine is started with."""

    model: Path
    provider: str
    """The provider's name, for error messages."""
    settings: LlamaCppSettings
    data_dir: Path
    """Where its log is written."""
    slots_folder: Path
    """Where it saves slots; the folder exists."""
    projector: Path | None = None
    """With it, the model sees images."""


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


def require_engine(settings: LlamaCppSettings, provider: str) -> str:
    """Return the name of the engine to start.

    Raises:
        SettingsError: it is not installed; the text names the remedy.
    """
    name = select_engine(settings)
    if name is not None:
        return name
    wanted, installed = settings.engine, _installed()
    prefix = setting_prefix(provider)
    missing = next(iter(_ENGINES)) if wanted == "auto" else wanted
    alternative = (
        f"unset {prefix}ENGINE for the default, {installed[0]}"
        if installed
        else f"set {prefix}KIND=openai and {prefix}BASE_URL to a server that has a model"
    )
    remedy = _ENGINES[missing].remedy
    raise SettingsError(f"the engine {missing} is not installed: {remedy}; or {alternative}")


async def prepare_model(
    provider: str,
    model: str,
    settings: LlamaCppSettings,
    data_dir: Path,
    progress: Callable[[str], None],
) -> None:
    """Check that there is an engine, then that the model is here; download the default model.

    Raises:
        SettingsError: the engine or the model is missing, or the download failed.
    """
    require_engine(settings, provider)
    await store.prepare_model(model, settings, data_dir, progress)


def setting_prefix(provider: str) -> str:
    """Return what the names of a provider's settings begin with."""
    return f"TROUPE_PROVIDERS__{provider.upper()}__"


def _installed() -> list[str]:
    return [name for name, kind in _ENGINES.items() if find_spec(kind.package) is not None]
