"""Stories in SQL, each with its embedding vector; a vector index searches them."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Executable, bindparam, delete, insert, select, update

from bot.chat.storable import make_storable
from bot.chat.story import PackedVector, Story, StoryVector
from bot.storage.database import Database
from bot.storage.numpy_vectors import NumpyIndex
from bot.storage.tables import story, story_revision, upsert
from bot.storage.vectors import PgvectorIndex, VectorIndex

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


class SqlStories:
    """Writes for one character wait for each other, so workers that start together agree."""

    def __init__(self, database: Database, index: VectorIndex) -> None:
        self._database = database
        self._index = index

    async def replace_stories(
        self, character: str, texts: Sequence[str], model_id: str
    ) -> Sequence[str]:
        """Replace a character's stories; return those without a vector of this model.

        A text that occurs twice is one story, at its first position.
        """
        wanted = {_key(text): text for text in texts}

        def unit(connection: Connection) -> dict[str, _StoredStory]:
            _raise_revision(connection, character)
            _replace_rows(connection, character, wanted)
            return _load_known(connection, character)

        found = await self._database.read(lambda connection: _load_known(connection, character))
        if {key: known.place for key, known in found.items()} != _places(wanted):
            found = await self._database.write(unit)
        return [text for key, text in wanted.items() if found[key].model != model_id]

    async def save_vectors(
        self, character: str, model_id: str, vectors: Sequence[StoryVector]
    ) -> None:
        """Store vectors; those of stories that do not exist any more are ignored."""
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
            self._index.update(connection, character)

        await self._database.write(unit)

    async def nearest(
        self, character: str, query: PackedVector, model_id: str, limit: int
    ) -> Sequence[Story]:
        """Return the stories nearest to a query vector, best first; of equals the earlier.

        Stories without a vector of that model are not found.
        """
        return await self._index.nearest(character, query, model_id, limit)


async def open_stories(database: Database) -> SqlStories:
    """Return the stories of a database, searched by pgvector where it is available, else numpy."""
    if not database.is_sqlite:
        index = PgvectorIndex(database)
        if await index.prepare():
            return SqlStories(database, index)
    return SqlStories(database, NumpyIndex(database))


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
