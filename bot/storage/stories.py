"""Stories in SQL, each with its embedding vector, searched with numpy.

The vectors of a character are loaded once and cached until its revision changes.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, Executable, bindparam, delete, insert, select, update
from typing_extensions import override

from bot.chat.storable import make_storable
from bot.chat.story import PackedVector, Story, StoryVector
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Stories
from bot.storage.database import Database
from bot.storage.tables import story, story_revision, upsert

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
_is_story = (story.c.character == bindparam("character_name")) & (
    story.c.sha256 == bindparam("story_key")
)
_KNOWN = select(story.c.sha256, story.c.place, story.c.model).where(
    story.c.character == bindparam("character_name")
)
_DELETE = delete(story).where(_is_story)
_SET_PLACE = update(story).where(_is_story).values(place=bindparam("new_place"))
_INSERT = insert(story)
_SET_VECTOR = (
    update(story)
    .where(_is_story)
    .values(model=bindparam("model_id"), vector=bindparam("new_vector"))
)
_RAISE_REVISION = upsert(
    story_revision,
    lambda insert: insert.values(revision=1).on_conflict_do_update(
        index_elements=[story_revision.c.character],
        set_={"revision": story_revision.c.revision + 1},
    ),
)


@frozen_dataclass
class _CachedVectors:
    """A character's vectors of one revision, in the order of its stories."""

    revision: int
    model_id: str
    keys: Sequence[str]
    matrix: npt.NDArray[np.float32]


class SqlStories(Stories):
    """Writes for one character wait for each other, so workers that start together agree."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cache: OrderedDict[str, _CachedVectors] = OrderedDict()

    @override
    async def replace_stories(
        self, character: str, texts: Sequence[str], model_id: str
    ) -> Sequence[str]:
        wanted = {_key(text): text for text in texts}

        def unit(connection: Connection) -> dict[str, _StoredStory]:
            _raise_revision(connection, character)
            _replace_rows(connection, character, wanted)
            return _load_known(connection, character)

        found = await self._database.read(lambda connection: _load_known(connection, character))
        if {key: known.place for key, known in found.items()} != _places(wanted):
            found = await self._database.write(unit)
        return [text for key, text in wanted.items() if found[key].model != model_id]

    @override
    async def save_vectors(
        self, character: str, model_id: str, vectors: Sequence[StoryVector]
    ) -> None:
        rows = [
            {
                "character_name": character,
                "story_key": _key(one.text),
                "model_id": model_id,
                "new_vector": one.vector,
            }
            for one in vectors
        ]

        def unit(connection: Connection) -> None:
            _raise_revision(connection, character)
            _execute_many(connection, _SET_VECTOR, rows)

        await self._database.write(unit)

    @override
    async def nearest(
        self, character: str, query: PackedVector, model_id: str, limit: int
    ) -> Sequence[Story]:
        vectors = await self._load_cached(character, model_id, len(query))
        ranked = await asyncio.to_thread(_rank, vectors, query, limit)
        rows = await self._database.rows(
            _TEXTS, character_name=character, story_keys=[key for key, _ in ranked]
        )
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


def _raise_revision(connection: Connection, character: str) -> None:
    """Raise the revision of a character's stories; locks them until the commit."""
    connection.execute(_RAISE_REVISION[connection.dialect.name], {"character": character})


class _StoredStory(NamedTuple):
    place: int
    model: str | None


def _load_known(connection: Connection, character: str) -> dict[str, _StoredStory]:
    rows = connection.execute(_KNOWN, {"character_name": character})
    return {key: _StoredStory(place, model) for key, place, model in rows}


def _replace_rows(connection: Connection, character: str, wanted: Mapping[str, str]) -> None:
    """Make these stories the rows of a character, in this order; known vectors are kept."""
    known, places = _load_known(connection, character), _places(wanted)
    this = {"character_name": character}
    _execute_many(
        connection, _DELETE, [{**this, "story_key": key} for key in known if key not in wanted]
    )
    moved = [key for key in wanted if key in known and known[key].place != places[key]]
    _execute_many(
        connection,
        _SET_PLACE,
        [{**this, "story_key": key, "new_place": places[key]} for key in moved],
    )
    added = [
        {"character": character, "sha256": key, "place": places[key], "text": make_storable(text)}
        for key, text in wanted.items()
        if key not in known
    ]
    _execute_many(connection, _INSERT, added)


def _places(wanted: Mapping[str, str]) -> dict[str, int]:
    return {key: place for place, key in enumerate(wanted)}


def _execute_many(
    connection: Connection, statement: Executable, rows: list[dict[str, Any]]
) -> None:
    if rows:
        connection.execute(statement, rows)


def _key(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


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
