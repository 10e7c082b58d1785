"""Search vectors inside PostgreSQL with its extension `vector`, where that is available.

The index is derived from the vectors in the table `story` and may be lost at any time. It has its
own table outside of the migrations, because another database may not have the extension.
"""

import array
from collections.abc import Sequence
from typing import Protocol

from sqlalchemy import Connection, column, text
from typing_extensions import override

from bot.chat.story import PackedVector, Story
from bot.errors import StoreError
from bot.storage.database import Database
from bot.storage.tables import story


class VectorIndex(Protocol):
    """Finds the stories of a character whose vectors are nearest to a query."""

    def update(self, connection: Connection, character: str) -> None:
        """Index what this transaction has written for a character."""
        ...

    async def nearest(
        self, character: str, query: PackedVector, model_id: str, limit: int
    ) -> Sequence[Story]: ...


TABLE = "story_pgvector"
_BATCH_ROWS = 500
# CREATE EXTENSION fails if another process runs it at the same time.
_LOCK = text("SELECT pg_advisory_xact_lock(hashtext('troupe story_pgvector'))")
_CREATE_EXTENSION = text("CREATE EXTENSION IF NOT EXISTS vector")
_CREATE_TABLE = text(
    f"CREATE TABLE IF NOT EXISTS {TABLE} ("
    "character text, sha256 text, model text NOT NULL, embedding vector NOT NULL, "
    "PRIMARY KEY (character, sha256), "
    "FOREIGN KEY (character, sha256) REFERENCES story ON DELETE CASCADE)"
)
_MISSING = text(
    f"SELECT s.character, s.sha256, s.model, s.vector FROM story s LEFT JOIN {TABLE} v "
    "ON v.character = s.character AND v.sha256 = s.sha256 WHERE s.vector IS NOT NULL "
    "AND v.model IS DISTINCT FROM s.model AND s.character = coalesce(:character, s.character) "
    "ORDER BY s.character, s.sha256 LIMIT :max_rows"
)
_INSERT = text(
    f"INSERT INTO {TABLE} (character, sha256, model, embedding) "
    "VALUES (:character, :story_key, :model_id, CAST(CAST(:vector AS text) AS vector)) "
    "ON CONFLICT (character, sha256) DO UPDATE "
    "SET model = excluded.model, embedding = excluded.embedding"
)
# Only the best are joined to their texts; with ties, so that the earlier of equals wins. Without
# its own SELECT the query vector would be parsed again for every row, once a plan is reused.
_NEAREST = text(
    "SELECT s.text, s.place, best.score FROM ("
    "SELECT sha256, -(embedding <#> (SELECT CAST(CAST(:query AS text) AS vector))) AS score "
    f"FROM {TABLE} WHERE character = :character AND model = :model_id "
    "AND vector_dims(embedding) = :width "
    "ORDER BY score DESC FETCH FIRST :max_rows ROWS WITH TIES) best "
    "JOIN story s ON s.character = :character AND s.sha256 = best.sha256 "
    "ORDER BY best.score DESC, s.place LIMIT :max_rows"
).columns(story.c.text, story.c.place, column("score"))


class PgvectorIndex(VectorIndex):
    """Exact search without an ANN index: 10,000 stories of one character take milliseconds."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def prepare(self) -> bool:
        """Create the extension and the table and fill it; return False if that is refused."""

        def create(connection: Connection) -> None:
            connection.execute(_LOCK)
            connection.execute(_CREATE_EXTENSION)
            connection.execute(_CREATE_TABLE)

        try:
            await self._database.write(create)
        except StoreError:
            return False
        while await self._database.write(lambda connection: _copy_missing(connection, None)):
            pass
        return True

    @override
    def update(self, connection: Connection, character: str) -> None:
        while _copy_missing(connection, character):
            pass

    @override
    async def nearest(
        self, character: str, query: PackedVector, model_id: str, limit: int
    ) -> Sequence[Story]:
        values = {
            "character": character,
            "model_id": model_id,
            "query": _to_text(query),
            "width": len(query) // 4,
            "max_rows": max(0, limit),
        }
        rows = await self._database.read(lambda c: c.execute(_NEAREST, values).all())
        return [Story(row.place, row.text, float(row.score)) for row in rows]


def _copy_missing(connection: Connection, character: str | None) -> int:
    """Copy a batch of vectors that are missing in the index; return their number."""
    values = {"character": character, "max_rows": _BATCH_ROWS}
    rows = connection.execute(_MISSING, values).all()
    copies = [
        {
            "character": row.character,
            "story_key": row.sha256,
            "model_id": row.model,
            "vector": _to_text(row.vector),
        }
        for row in rows
    ]
    if copies:
        connection.execute(_INSERT, copies)
    return len(copies)


def _to_text(vector: PackedVector) -> str:
    return str(array.array("f", vector).tolist())
