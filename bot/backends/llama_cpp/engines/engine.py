"""What runs a model on this machine: the small protocol between the backend and its engines.

The backend renders and tokenizes, and decides who sits where; an engine turns token ids into text.
Every engine lives in a process of its own, so that an error in native code ends only that.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib import import_module  # noqa: TID251 # the plug registry of the engines
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias

from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.chat.prompt import Delta, Finish, ReasoningDelta
from bot.errors import SettingsError

IMAGE: Final = "\ufffc"  # Unicode's own sign for an object in a text


class EngineFailed(Exception):
    """The engine did not do what it was asked; it may have died."""


class EngineRefused(EngineFailed):
    """It lives, and says no to this."""


@dataclass(frozen=True, slots=True)
class Question:
    """One generation."""

    ids: Sequence[int]  # the whole prompt; what the place holds of it already is not read again
    stop: Sequence[str] = ()  # each ends the answer, also where it is a control token
    sampling: Mapping[str, object] = field(default_factory=dict)  # by llama.cpp's names
    max_output_tokens: int | None = None
    place: int | None = None  # None: any
    own: bool = False  # the place holds only this conversation: a gap in it may be closed
    shown: Sequence[str] = ()  # control tokens that must come as text
    text: str = ""  # with images, instead of the ids: `IMAGE` stands for each of them, in order
    images: Sequence[str] = ()  # in base64


class Engine(Protocol):
    """A loaded model with room for several conversations, started again whenever it dies.

    A place is one conversation's share of the model's memory, numbered from 0. Its state can be
    saved to a file and restored, also after a death. Whatever else it is asked may raise
    `EngineFailed`.
    """

    @property
    def places(self) -> int: ...

    @property
    def version(self) -> str:
        """What wrote a saved state; another version may not be able to read it."""
        ...

    @property
    def deaths(self) -> int:
        """How often it was started again; after that every place is empty."""
        ...

    async def context_tokens(self) -> int:
        """How much one place holds: what was asked for, or the model's own limit."""
        ...

    def generate(self, question: Question) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
        """Answer as `Backend.generate` does; closing the generator stops the model."""
        ...

    async def tokenize(
        self, texts: Sequence[str], *, special: bool, begun: bool = False
    ) -> list[list[int]]:
        """The ids of each text; `special`: markers become control tokens, `begun`: as a prompt."""
        ...

    async def text_of(self, token: int) -> str: ...

    async def save(self, place: int, file: str) -> int:
        """Write a place's state to a file in the engine's folder; gives its tokens."""
        ...

    async def restore(self, place: int, file: str) -> int:
        """Read a place's state from such a file; gives its tokens.

        Raises `EngineRefused` when the file is no state that it can use.
        """
        ...

    async def erase(self, place: int) -> None: ...

    async def wait_until_ready(self) -> None:
        """Wait until it answers; raises `EngineFailed` when it does not in time."""
        ...

    async def died(self, deaths: int) -> bool:
        """After a failure: whether it has died since `deaths` was read.

        One that lives but does not react is ended, so that it is started anew; it counts.
        """
        ...


@dataclass(frozen=True, slots=True)
class Start:
    """What an engine is started with."""

    model: Path
    provider: str  # for what is said when something fails
    settings: LlamaCppSettings
    data_dir: Path  # for its log
    states: Path  # the folder of saved places
    projector: Path | None = None  # with it, the model sees images


# The folder of states exists. Raises `ChildFailed` or `SettingsError` when it does not start.
Running: TypeAlias = Callable[[Start], AbstractAsyncContextManager[Engine]]


class _Kind(NamedTuple):
    package: str  # that it needs
    module: str  # where its `running` is
    remedy: str


# By the setting's word, best first.
_ENGINES = {
    "xllamacpp": _Kind(
        "xllamacpp", "bot.backends.llama_cpp.engines.xllamacpp", "`pip install xllamacpp` brings it"
    ),
    "llama_cpp_python": _Kind(
        "llama_cpp",
        "bot.backends.llama_cpp.engines.llama_python",
        "`pip install 'troupe[llama-cpp]'` compiles it, in some minutes",
    ),
}


def chosen(settings: LlamaCppSettings) -> str | None:
    """The word of the engine that these settings stand for; None if it is not installed."""
    wanted = settings.engine
    return next((name for name in _installed() if wanted in {"auto", name}), None)


def running(start: Start) -> AbstractAsyncContextManager[Engine]:
    """Keep the engine that the settings ask for up, for the length of the block.

    Raises:
        SettingsError: it is not installed; the text says what to do.
    """
    name = chosen(start.settings)
    if name is None:
        raise _not_installed(start)
    run: Running = import_module(_ENGINES[name].module).running
    return run(start)


def _installed() -> list[str]:
    return [name for name, kind in _ENGINES.items() if find_spec(kind.package) is not None]


def _not_installed(start: Start) -> SettingsError:
    wanted, installed = start.settings.engine, _installed()
    setting = f"TROUPE_PROVIDERS__{start.provider.upper()}__"
    missing = next(iter(_ENGINES)) if wanted == "auto" else wanted
    otherwise = (
        f"unset {setting}ENGINE for the default, {installed[0]}"
        if installed
        else f"set {setting}KIND=openai and {setting}BASE_URL to a server that has a model"
    )
    remedy = _ENGINES[missing].remedy
    return SettingsError(f"the engine {missing} is not installed: {remedy}; or {otherwise}")
