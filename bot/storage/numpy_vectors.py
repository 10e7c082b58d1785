"""Search vectors with numpy: a character's are loaded once and cached until they change."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, bindparam, select
from typing_extensions import override

from bot.chat.story import PackedVector, Story
from bot.storage.database import Database
from bot.storage.tables import story, story_revision
from bot.storage.vectors import VectorIndex
from bot.value_class import value_class

_MAX_CACHE_BYTES = 128 * 1024 * 1024  # 80,000 stories of the default model

_REVISION = select(story_revision.c.revision).where(
    story_revision.c.character == bindparam("character_name")
)
_VECTORS = (
    select(story.c.sha256, story.c.vector)
    .where(story.c.character == bindparam("character_name"), story.c.model == bindparam("model_id"))
    .order_by(story.c.place)
)
_TEXTS = select(story.c.sha256, story.c.text, story.c.place).where(
    story.c.character == bindparam("character_name"),
    story.c.sha256.in_(bindparam("story_keys", expanding=True)),
)


@value_class
class _CachedVectors:
    """A character's vectors of one revision, in the order of its stories."""

    revision: int
    model_id: str
    keys: Sequence[str]
    matrix: npt.NDArray[np.float32]


class NumpyIndex(VectorIndex):
    def __init__(self, database: Database) -> None:
        self._database = database
        self._cache: OrderedDict[str, _CachedVectors] = OrderedDict()

    @override
    def update(self, connection: Connection, character: str) -> None:
        """Do nothing: the raised revision invalidates the cache."""

    @override
    async def nearest(
        self, character: str, query: PackedVector, model_id: str, limit: int
    ) -> Sequence[Story]:
        vectors = await self._load_cached(character, model_id, len(query))
        ranked = await asyncio.to_thread(_rank, vectors, query, limit)
        values = {"character_name": character, "story_keys": [key for key, _ in ranked]}
        rows = await self._database.read(lambda c: c.execute(_TEXTS, values).all())
        texts = {row.sha256: row for row in rows}
        return [
            Story(texts[key].place, texts[key].text, score) for key, score in ranked if key in texts
        ]

    async def _load_cached(
        self, character: str, model_id: str, vector_bytes: int
    ) -> _CachedVectors:
        known = self._cache.get(character)

        def unit(connection: Connection) -> tuple[int, Sequence[Any]]:
            values = {"character_name": character, "model_id": model_id}
            revision = connection.execute(_REVISION, values).scalar() or 0
            if known and (known.revision, known.model_id) == (revision, model_id):
                return revision, []
            return revision, connection.execute(_VECTORS, values).all()

        revision, rows = await self._database.read(unit)
        if known is None or (known.revision, known.model_id) != (revision, model_id):
            known = await asyncio.to_thread(_pack, revision, model_id, rows, vector_bytes)
            self._cache[character] = known
            self._evict()
        self._cache.move_to_end(character)
        return known

    def _evict(self) -> None:
        while (
            len(self._cache) > 1
            and sum(one.matrix.nbytes for one in self._cache.values()) > _MAX_CACHE_BYTES
        ):
            self._cache.popitem(last=False)


def _pack(revision: int, model_id: str, rows: Sequence[Any], vector_bytes: int) -> _CachedVectors:
    # A service may change the length of its vectors without renaming its model.
    fitting = [row for row in rows if len(row.vector) == vector_bytes]
    numbers = np.frombuffer(b"".join(row.vector for row in fitting), dtype="<f4")
    matrix = numbers.reshape(len(fitting), vector_bytes // numbers.itemsize)
    return _CachedVectors(revision, model_id, [row.sha256 for row in fitting], matrix)


def _rank(vectors: _CachedVectors, query: PackedVector, limit: int) -> list[tuple[str, float]]:
    scores = vectors.matrix @ np.frombuffer(query, dtype="<f4")
    best = np.argsort(-scores, kind="stable")[: max(0, limit)]
    return [(vectors.keys[number], float(scores[number])) for number in best]
