"""Make the embedder by words a kind of the settings; it needs no model."""

from pathlib import Path

from bot.ports import Embedder
from bot.prompting.embedding import WORDS
from bot.settings import EmbeddingSettings


def make(_settings: EmbeddingSettings, _data_dir: Path) -> Embedder:
    return WORDS
