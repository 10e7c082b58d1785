"""Make the library's own embedder, which comes with Troupe, a kind of the settings."""

from pathlib import Path

from bot.ports import Embedder
from bot.prompting.character.embedding import NANO_E5
from bot.settings import EmbeddingSettings


def make(_settings: EmbeddingSettings, _data_dir: Path) -> Embedder:
    return NANO_E5
