"""Embed the stories of characters, and retrieve those nearest to a message."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import structlog

from bot.chat.story import PackedVector, Story, StoryVector
from bot.chat.usage import EmbeddingPayer
from bot.errors import BudgetUsedUp, EmbeddingError, StoreError
from bot.ports import Clock, Embedder, Stories
from bot.prompting.compose.instructions import story_queries_for
from bot.prompting.presets.preset import Preset

_log = structlog.get_logger(__name__)
_BATCH_SIZE = 32  # some seconds of work, lost if the process ends
_FIRST_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 60.0
RetrievedStories: TypeAlias = Mapping[str, Sequence[Story]]
"""By query; best first, with their scores."""

RetrieveStories: TypeAlias = Callable[
    [Preset, str, EmbeddingPayer | None], Awaitable[RetrievedStories | None]
]
"""Retrieves stories for a preset, the newest message and who pays for it; None if it has none."""

_TIMEOUT_SECONDS = 10.0  # far more than a busy machine takes: load alone changes no prompt
_MAX_CACHED_QUERIES = 512  # the fixed queries of a persona repeat with every message
_MESSAGE_SECONDS = 30.0
"""A query with people's words is kept for the characters that answer at once, and no longer:
`/forget` has to reach it within a minute."""


async def index_stories(
    stories_by_character: Mapping[str, Sequence[str]],
    embedder: Embedder,
    stories: Stories,
    clock: Clock,
) -> None:
    """Index the stories of each character; retry those that fail until all are indexed."""
    pause = _FIRST_PAUSE_SECONDS
    pending = dict(stories_by_character)
    while pending:
        for name, texts in list(pending.items()):
            try:
                await _index(name, texts, embedder, stories)
                del pending[name]
            except (EmbeddingError, StoreError) as error:
                _log.warning("stories_not_indexed", character=name, reason=str(error))
        if pending:
            await clock.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)


async def _index(
    character: str, texts: Sequence[str], embedder: Embedder, stories: Stories
) -> None:
    missing = await stories.replace_stories(character, texts, embedder.model_id)
    for start in range(0, len(missing), _BATCH_SIZE):
        batch = missing[start : start + _BATCH_SIZE]
        vectors = zip(batch, await embedder.embed_documents(batch), strict=True)
        rows = [StoryVector(*one) for one in vectors]
        await stories.save_vectors(character, embedder.model_id, rows)
        done = start + len(batch)
        _log.info("stories_indexed", character=character, done=done, of=len(missing))


async def no_stories(
    _preset: Preset, _newest: str, _payer: EmbeddingPayer | None = None
) -> RetrievedStories | None:
    """Retrieve nothing: no preset has stories."""
    return None


class StoryRetriever:
    """Retrieves from the stories of these characters, which are named like their presets."""

    def __init__(self, embedder: Embedder, stories: Stories, characters: Collection[str]) -> None:
        self._embedder = embedder
        self._stories = stories
        self._characters = frozenset(characters)
        self._cached_vectors: OrderedDict[str, PackedVector] = OrderedDict()

    async def retrieve(
        self, preset: Preset, newest: str, payer: EmbeddingPayer | None = None
    ) -> RetrievedStories | None:
        """Retrieve the stories for every query of the persona; raises `StoreError`.

        Queries that cannot be embedded in time, or paid for, are left out; the answer's receipt
        says so.
        """
        if preset.name not in self._characters:
            return None
        found: dict[str, Sequence[Story]] = {}
        fixed = story_queries_for(preset, "").keys()
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                for query, limit in story_queries_for(preset, newest).items():
                    vector = await self._embed(query, payer)
                    if query not in fixed:
                        self._drop_later(query)
                    found[query] = await self._stories.nearest(
                        preset.name, vector, self._embedder.model_id, limit
                    )
        except (EmbeddingError, BudgetUsedUp, TimeoutError) as error:
            _log.warning(
                "stories_not_retrieved", preset=preset.name, reason=str(error) or "too slow"
            )
        return found

    async def _embed(self, query: str, payer: EmbeddingPayer | None) -> PackedVector:
        vector = self._cached_vectors.pop(query, None)
        if vector is None and payer is not None:
            vector = await self._embedder.embed_query_for(query, payer)
        elif vector is None:
            vector = await self._embedder.embed_query(query)
        self._cached_vectors[query] = vector
        if len(self._cached_vectors) > _MAX_CACHED_QUERIES:
            self._cached_vectors.popitem(last=False)
        return vector

    def _drop_later(self, query: str) -> None:
        cached = self._cached_vectors
        asyncio.get_running_loop().call_later(_MESSAGE_SECONDS, cached.pop, query, None)
