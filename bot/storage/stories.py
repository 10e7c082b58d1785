"""Stories in SQL, searched by vector with numpy; vectors are cached by revision."""

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from bot.chat.incoming import to_storable_text
from bot.chat.story import PackedVector, Story, StoryVector
from bot.ports import Stories
from bot.storage.database import Database, Store, run_readonly, transaction
from bot.storage.rows import decode
from bot.storage.statements import SQL, Rows, Unit
from bot.value_class import value_class

_MAX_CACHE_BYTES = 128 * 1024 * 1024  # 80,000 stories of the default model


@value_class
class _CachedVectors:
    """The vectors of a character's stories at one revision, in story order."""

    revision: int
    model_id: str
    keys: Sequence[str]
    vector_matrix: npt.NDArray[np.float32]


class SqlStories(Store, Stories):
    """Stores characters' stories; only one change of a character's stories runs at a time."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._cache: OrderedDict[str, _CachedVectors] = OrderedDict()

    @override
    @transaction
    def replace_stories(
        self, character: str, texts: Sequence[str], model_id: str
    ) -> Unit[Sequence[str]]:
        new_texts = {_story_key(text): text for text in texts}
        positions_by_key = {key: position for position, key in enumerate(new_texts)}
        known_stories = yield from _load_positions_and_models(character)
        if {key: position for key, (position, _) in known_stories.items()} != positions_by_key:
            yield SQL["raise_story_revision"].query(of=character)
            known_stories = yield from _load_positions_and_models(
                character
            )  # another process may have changed the stories
            for key in known_stories.keys() - new_texts.keys():
                yield SQL["delete_story"].query(of=character, key=key)
            for key, position in positions_by_key.items():
                row = {"of": character, "key": key, "place": position}
                if key not in known_stories:
                    yield SQL["add_story"].query({**row, "text": to_storable_text(new_texts[key])})
                elif known_stories[key][0] != position:
                    yield SQL["set_story_place"].query(row)
        models_by_key = {key: model for key, (_, model) in known_stories.items()}
        return [text for key, text in new_texts.items() if models_by_key.get(key) != model_id]

    @override
    @transaction
    def save_vectors(
        self, character: str, model_id: str, vectors: Sequence[StoryVector]
    ) -> Unit[None]:
        yield SQL["raise_story_revision"].query(of=character)
        for one in vectors:
            values = {"model": model_id, "vector": one.vector}
            yield SQL["set_story_vector"].query(
                {"of": character, "key": _story_key(one.text), **values}
            )

    @override
    async def find_nearest(
        self, character: str, query: PackedVector, model_id: str, limit: int
    ) -> Sequence[Story]:
        vectors = await self._load_vectors(character, model_id, len(query))
        scored_keys = await asyncio.to_thread(_rank_by_similarity, vectors, query, limit)
        texts = await self._load_texts(character, [key for key, _ in scored_keys])
        return [Story(*texts[key], score) for key, score in scored_keys if key in texts]

    @run_readonly
    def _load_texts(self, character: str, keys: Sequence[str]) -> Unit[dict[str, tuple[int, str]]]:
        rows = yield SQL["story_texts"].query_alone(of=character, keys=json.dumps(keys))
        return {row[0]: decode(lambda row: (row[1], row[2]), row) for row in rows}

    async def _load_vectors(
        self, character: str, model_id: str, vector_bytes: int
    ) -> _CachedVectors:
        vectors = self._cache.get(character)
        revision, rows = await self._read_vectors(character, model_id, vectors)
        if rows is not None:
            vectors = await asyncio.to_thread(_pack_vectors, revision, model_id, rows, vector_bytes)
            self._cache[character] = vectors
            self._evict_surplus()
        assert vectors is not None  # noqa: S101 -- its rows were read otherwise
        self._cache.move_to_end(character)
        return vectors

    @run_readonly
    def _read_vectors(
        self, character: str, model_id: str, vectors: _CachedVectors | None
    ) -> Unit[tuple[int, Rows | None]]:
        """Return the newest revision and its rows; None instead of rows if `vectors` is current."""
        revisions = yield SQL["story_revision"].query(of=character)
        revision = revisions[0][0] if revisions else 0
        if vectors and (vectors.revision, vectors.model_id) == (revision, model_id):
            return revision, None
        return revision, (yield SQL["story_vectors"].query(of=character, model=model_id))

    def _evict_surplus(self) -> None:
        while (
            len(self._cache) > 1
            and sum(one.vector_matrix.nbytes for one in self._cache.values()) > _MAX_CACHE_BYTES
        ):
            self._cache.popitem(last=False)


def _load_positions_and_models(character: str) -> Unit[dict[str, tuple[int, str | None]]]:
    """Return each story's position and the model of its vector, by story key."""
    rows = yield SQL["known_stories"].query(of=character)
    return {key: (position, model) for key, position, model in rows}


def _story_key(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _pack_vectors(revision: int, model_id: str, rows: Rows, vector_bytes: int) -> _CachedVectors:
    # A service may change the vectors' length without renaming the model.
    fitting_rows = [(key, vector) for key, vector in rows if len(vector) == vector_bytes]
    floats = np.frombuffer(b"".join(vector for _, vector in fitting_rows), dtype="<f4")
    matrix = floats.reshape(len(fitting_rows), vector_bytes // floats.itemsize)
    return _CachedVectors(revision, model_id, [key for key, _ in fitting_rows], matrix)


def _rank_by_similarity(
    vectors: _CachedVectors, query: PackedVector, limit: int
) -> list[tuple[str, float]]:
    scores = vectors.vector_matrix @ np.frombuffer(query, dtype="<f4")
    best_indexes = np.argsort(-scores, kind="stable")[: max(0, limit)]
    return [(vectors.keys[index], float(scores[index])) for index in best_indexes]
