"""Find stories of a character that are similar to a message, by comparing their vectors."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import structlog

from bot.chat.story import PackedVector, Story, StoryVector
from bot.errors import EmbeddingError, StoreError
from bot.ports import Clock, Embedder, Stories
from bot.prompting.compose.instructions import find_story_queries
from bot.prompting.presets.preset import Preset
from bot.runtime.in_process import BoundedDict

_log = structlog.get_logger(__name__)

_BATCH_SIZE = 32  # a few seconds of work, which is lost if the process ends
_MIN_RETRY_DELAY_SECONDS = 1.0
_MAX_RETRY_DELAY_SECONDS = 60.0
StoriesByQuery: TypeAlias = Mapping[str, Sequence[Story]]
"""Stories with their scores, by query; the best are first."""

RetrieveStories: TypeAlias = Callable[[Preset, str, bool], Awaitable[StoriesByQuery | None]]
"""Retrieves a preset's stories for a message; the flag permits the use of a paid service."""

_TIMEOUT_SECONDS = 10.0  # far more than a busy machine needs, so that load does not change prompts
_MAX_CACHED_QUERIES = 512  # the fixed queries of a persona repeat with every message
_MESSAGE_CACHE_SECONDS = 30.0
"""How long a message's vector is cached; `/forget` must take effect within a minute."""


async def index_stories(
    stories_by_character: Mapping[str, Sequence[str]],
    embedder: Embedder,
    stories: Stories,
    clock: Clock,
) -> None:
    """Index each character's stories, retrying failed ones until all are indexed."""
    pause_seconds = _MIN_RETRY_DELAY_SECONDS
    pending_stories = dict(stories_by_character)
    while pending_stories:
        for name, texts in list(pending_stories.items()):
            try:
                await _index_character(name, texts, embedder, stories)
                del pending_stories[name]
            except (EmbeddingError, StoreError) as error:
                _log.warning("stories_not_indexed", character=name, reason=str(error))
        if pending_stories:
            await clock.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _MAX_RETRY_DELAY_SECONDS)


async def _index_character(
    character: str, texts: Sequence[str], embedder: Embedder, stories: Stories
) -> None:
    missing_texts = await stories.replace_stories(character, texts, embedder.model_id)
    for start in range(0, len(missing_texts), _BATCH_SIZE):
        batch = missing_texts[start : start + _BATCH_SIZE]
        vectors = await embedder.embed_documents(batch)
        rows = [StoryVector(*one) for one in zip(batch, vectors, strict=True)]
        await stories.save_vectors(character, embedder.model_id, rows)
        indexed_count = start + len(batch)
        _log.info("stories_indexed", character=character, done=indexed_count, of=len(missing_texts))


@dataclass(eq=False, repr=False)
class StoryRetriever:
    """Finds characters' stories for a message; a character has the name of its preset."""

    embedder: Embedder
    stories: Stories
    characters: Collection[str]

    def __post_init__(self) -> None:
        self._cached_vectors = BoundedDict[str, PackedVector](_MAX_CACHED_QUERIES)

    async def retrieve(
        self, preset: Preset, message: str, may_spend: bool = True
    ) -> StoriesByQuery | None:
        """Return stories by query, or None if the preset has no stories; raises `StoreError`."""
        if preset.name not in self.characters:
            return None
        stories_by_query: dict[str, Sequence[Story]] = {}
        fixed_queries = find_story_queries(preset, "").keys()
        call_after_expiry = partial(asyncio.get_running_loop().call_later, _MESSAGE_CACHE_SECONDS)
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                for query, limit in find_story_queries(preset, message).items():
                    vector = await self._embed_query(query, may_spend=may_spend)
                    if query not in fixed_queries:
                        call_after_expiry(self._cached_vectors.pop, query, None)
                    stories_by_query[query] = await self.stories.find_nearest(
                        preset.name, vector, self.embedder.model_id, limit
                    )
        except (EmbeddingError, TimeoutError) as error:
            reason = str(error) or "too slow"
            _log.warning("stories_not_retrieved", preset=preset.name, reason=reason)
        return stories_by_query

    async def _embed_query(self, query: str, *, may_spend: bool) -> PackedVector:
        vector = self._cached_vectors.pop(query, None)
        if vector is None:
            if self.embedder.is_metered and not may_spend:
                raise EmbeddingError("a preview does not use a paid embedding service")
            vector = await self.embedder.embed_query(query)
        self._cached_vectors[query] = vector
        return vector
