"""Index stories in the background: embed those that are new, changed or of another model.

Answers meanwhile use the stories that are indexed already.
"""

from collections.abc import Mapping, Sequence

import structlog

from bot.chat.story import StoryVector
from bot.errors import EmbeddingError, StoreError
from bot.ports import Clock, Embedder, Stories

_log = structlog.get_logger(__name__)
_BATCH_SIZE = 32  # some seconds of work, lost if the process ends
_FIRST_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 60.0


async def index_stories(
    stories_by_character: Mapping[str, Sequence[str]],
    embedder: Embedder,
    stories: Stories,
    clock: Clock,
) -> None:
    """Index the stories of each character; retry those that fail until all are indexed."""
    indexer = _StoryIndexer(embedder, stories)
    pause = _FIRST_PAUSE_SECONDS
    pending = list(stories_by_character)
    while pending:
        pending = [
            name
            for name in pending
            if not await indexer.try_index(name, stories_by_character[name])
        ]
        if pending:
            await clock.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)


class _StoryIndexer:
    def __init__(self, embedder: Embedder, stories: Stories) -> None:
        self._embedder = embedder
        self._stories = stories

    async def try_index(self, character: str, texts: Sequence[str]) -> bool:
        """Return whether all stories of a character are indexed now."""
        try:
            await self._index(character, texts)
        except (EmbeddingError, StoreError) as error:
            _log.warning("stories_not_indexed", character=character, reason=str(error))
            return False
        return True

    async def _index(self, character: str, texts: Sequence[str]) -> None:
        model_id = self._embedder.model_id
        missing = await self._stories.replace_stories(character, texts, model_id)
        for start in range(0, len(missing), _BATCH_SIZE):
            batch = missing[start : start + _BATCH_SIZE]
            vectors = zip(batch, await self._embedder.embed_documents(batch), strict=True)
            await self._stories.save_vectors(
                character, model_id, [StoryVector(*one) for one in vectors]
            )
            done = start + len(batch)
            _log.info("stories_indexed", character=character, done=done, of=len(missing))
