"""The stories of characters, with a vector for each; an index knows how they are searched."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Executable, bindparam, delete, insert, select, update
from typing_extensions import override

from bot.chat.storable import make_storable
from bot.chat.story import PackedVector, Story, StoryVector
from bot.ports import Stories
from bot.storage.sql.database import Database
from bot.storage.sql.tables import story, story_revision
from bot.storage.sql.upserts import upsert
from bot.storage.vectors.index import VectorIndex
from bot.storage.vectors.numpy_index import NumpyIndex
from bot.storage.vectors.pgvector import PgvectorIndex

_this_story = (story.c.character == bindparam("of")) & (story.c.sha256 == bindparam("key"))
_KNOWN = select(story.c.sha256, story.c.place, story.c.model).where(
    story.c.character == bindparam("of")
)
_DROP = delete(story).where(_this_story)
_MOVE = update(story).where(_this_story).values(place=bindparam("to"))
_ADD = insert(story)
_NOTE = update(story).where(_this_story).values(model=bindparam("by"), vector=bindparam("made"))
_CHANGED = upsert(
    story_revision,
    lambda insert: insert.values(revision=1).on_conflict_do_update(
        index_elements=[story_revision.c.character],
        set_={"revision": story_revision.c.revision + 1},
    ),
)


class SqlStories(Stories):
    """Writes of one character wait for each other, so that workers that start together agree."""

    def __init__(self, database: Database, index: VectorIndex) -> None:
        self._database = database
        self._index = index

    @override
    async def replace_stories(
        self, character: str, texts: Sequence[str], model_id: str
    ) -> Sequence[str]:
        wanted = {_key(text): text for text in texts}

        def unit(connection: Connection) -> dict[str, _Known]:
            _changed(connection, character)
            _arrange(connection, character, wanted)
            return _known(connection, character)

        found = await self._database.read(lambda connection: _known(connection, character))
        if {key: known.place for key, known in found.items()} != _places(wanted):
            found = await self._database.write(unit)
        return [text for key, text in wanted.items() if found[key].model != model_id]

    @override
    async def save_vectors(
        self, character: str, model_id: str, vectors: Sequence[StoryVector]
    ) -> None:
        rows = [
            {"of": character, "key": _key(one.text), "by": model_id, "made": one.vector}
            for one in vectors
        ]

        def unit(connection: Connection) -> None:
            _changed(connection, character)
            _many(connection, _NOTE, rows)
            self._index.note(connection, character)

        await self._database.write(unit)

    @override
    async def nearest(
        self, character: str, query: PackedVector, model_id: str, limit: int
    ) -> Sequence[Story]:
        return await self._index.nearest(character, query, model_id, limit)


async def open_stories(database: Database) -> Stories:
    """The stories of a database, searched inside it if it can, else with numpy."""
    if not database.is_sqlite:
        index = PgvectorIndex(database)
        if await index.prepare():
            return SqlStories(database, index)
    return SqlStories(database, NumpyIndex(database))


def _changed(connection: Connection, character: str) -> None:
    """Say that a character's stories change; until the commit nobody else can change them."""
    connection.execute(_CHANGED[connection.dialect.name], {"character": character})


class _Known(NamedTuple):
    place: int
    model: str | None


def _known(connection: Connection, character: str) -> dict[str, _Known]:
    rows = connection.execute(_KNOWN, {"of": character})
    return {key: _Known(place, model) for key, place, model in rows}


def _arrange(connection: Connection, character: str, wanted: Mapping[str, str]) -> None:
    """Make the rows of a character those that are wanted, in that order; vectors stay."""
    known, places = _known(connection, character), _places(wanted)
    this = {"of": character}
    _many(connection, _DROP, [{**this, "key": key} for key in known if key not in wanted])
    moved = [key for key in wanted if key in known and known[key].place != places[key]]
    _many(connection, _MOVE, [{**this, "key": key, "to": places[key]} for key in moved])
    added = [
        {"character": character, "sha256": key, "place": places[key], "text": make_storable(text)}
        for key, text in wanted.items()
        if key not in known
    ]
    _many(connection, _ADD, added)


def _places(wanted: Mapping[str, str]) -> dict[str, int]:
    return {key: place for place, key in enumerate(wanted)}


def _many(connection: Connection, statement: Executable, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(statement, rows)


def _key(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
