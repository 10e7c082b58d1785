"""Find the stories that a persona asks for, near to what was just said."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import structlog

from bot.chat.story import PackedVector, Story
from bot.errors import EmbeddingError
from bot.ports import Embedder, Stories
from bot.prompting.compose.instructions import story_queries_for
from bot.prompting.presets.preset import Preset

RetrievedStories: TypeAlias = Mapping[str, Sequence[Story]]
"""By what was looked for, best first, with their scores."""

RetrieveStories: TypeAlias = Callable[[Preset, str], Awaitable[RetrievedStories | None]]
"""What a preset and the newest message find; None where the preset has no stories."""

_log = structlog.get_logger(__name__)
_SECONDS = 3.0  # an answer without its stories is better than one that nobody waits for
_KNOWN_QUERIES = 512  # a persona's own words are the same every time


async def no_stories(_preset: Preset, _newest: str) -> RetrievedStories | None:
    """Where no preset has any."""
    return None


class StoryRetriever:
    """Looks in the stories of these characters, which are named like their presets."""

    def __init__(self, embedder: Embedder, stories: Stories, characters: Collection[str]) -> None:
        self._embedder = embedder
        self._stories = stories
        self._characters = frozenset(characters)
        self._vectors: OrderedDict[str, PackedVector] = OrderedDict()

    async def find(self, preset: Preset, newest: str) -> RetrievedStories | None:
        """Find what the persona asks for; what no vector can be made for in time stays empty.

        Raises:
            StoreError: the stories cannot be read just now.
        """
        if preset.name not in self._characters:
            return None
        found: dict[str, Sequence[Story]] = {}
        try:
            async with asyncio.timeout(_SECONDS):
                for query, limit in story_queries_for(preset, newest).items():
                    found[query] = await self._nearest(preset.name, query, limit)
        except (EmbeddingError, TimeoutError) as error:
            _log.warning("stories_not_found", preset=preset.name, reason=str(error) or "too slow")
        return found

    async def _nearest(self, character: str, query: str, limit: int) -> Sequence[Story]:
        vector = await self._vector(query)
        return await self._stories.nearest(character, vector, self._embedder.model_id, limit)

    async def _vector(self, query: str) -> PackedVector:
        vector = self._vectors.pop(query, None) or await self._embedder.embed_query(query)
        self._vectors[query] = vector
        if len(self._vectors) > _KNOWN_QUERIES:
            self._vectors.popitem(last=False)
        return vector
