"""The protocol between the llama.cpp backend and its engines, and the values of its calls.

The backend renders, tokenizes and assigns slots; an engine turns token ids into text. Every engine
lives in a child process, so that a crash in native code ends only that process.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Final, Protocol

from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.chat.prompt import GenerationEvent
from bot.frozen_dataclass import frozen_dataclass

IMAGE_PLACEHOLDER: Final = "\ufffc"  # Unicode's object replacement character


class EngineFailed(Exception):
    """The engine did not do what it was asked; it may have crashed."""


class EngineRefused(EngineFailed):
    """The engine works and rejects this request."""


@frozen_dataclass
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


@frozen_dataclass
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
