"""Search vectors inside PostgreSQL, where its extension `vector` is to be had.

Its column is made from the vectors in the table `story` and may be lost at any time, so it has a
table of its own, which no migration knows: another database may not have the extension.
"""

import array
from collections.abc import Sequence

from sqlalchemy import Connection, text
from typing_extensions import override

from bot.chat.story import PackedVector, Story
from bot.errors import StoreError
from bot.storage.sql.database import Database
from bot.storage.vectors.index import VectorIndex

TABLE = "story_pgvector"
_AT_ONCE = 500
# Processes that start together would trip over each other's half-made extension.
_ONE_AT_A_TIME = text("SELECT pg_advisory_xact_lock(hashtext('troupe story_pgvector'))")
_EXTENSION = text("CREATE EXTENSION IF NOT EXISTS vector")
_MAKE = text(
    f"CREATE TABLE IF NOT EXISTS {TABLE} ("
    "character text, sha256 text, model text NOT NULL, embedding vector NOT NULL, "
    "PRIMARY KEY (character, sha256), "
    "FOREIGN KEY (character, sha256) REFERENCES story ON DELETE CASCADE)"
)
_LACKING = text(
    f"SELECT s.character, s.sha256, s.model, s.vector FROM story s LEFT JOIN {TABLE} v "  # noqa: S608
    "ON v.character = s.character AND v.sha256 = s.sha256 WHERE s.vector IS NOT NULL "
    "AND v.model IS DISTINCT FROM s.model AND s.character = coalesce(:of, s.character) "
    "ORDER BY s.character, s.sha256 LIMIT :most"
)
_COPY = text(
    f"INSERT INTO {TABLE} (character, sha256, model, embedding) "  # noqa: S608
    "VALUES (:of, :key, :by, CAST(CAST(:made AS text) AS vector)) "
    "ON CONFLICT (character, sha256) DO UPDATE "
    "SET model = excluded.model, embedding = excluded.embedding"
)
# Only the best are joined to their texts; of equals all, so that the earlier story wins. Without
# its SELECT the query would be read from its text again for every row, once a plan is reused.
_NEAREST = text(
    "SELECT s.text, s.place, best.score FROM ("  # noqa: S608
    "SELECT sha256, -(embedding <#> (SELECT CAST(CAST(:query AS text) AS vector))) AS score "
    f"FROM {TABLE} WHERE character = :of AND model = :by AND vector_dims(embedding) = :width "
    "ORDER BY score DESC FETCH FIRST :most ROWS WITH TIES) best "
    "JOIN story s ON s.character = :of AND s.sha256 = best.sha256 "
    "ORDER BY best.score DESC, s.place LIMIT :most"
)


class PgvectorIndex(VectorIndex):
    """Exact, without an index of its own: 10,000 stories of one character take milliseconds."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def prepare(self) -> bool:
        """Make the extension and its table, and fill it; False when that is refused."""

        def made(connection: Connection) -> None:
            connection.execute(_ONE_AT_A_TIME)
            connection.execute(_EXTENSION)
            connection.execute(_MAKE)

        try:
            await self._database.write(made)
        except StoreError:
            return False
        while await self._database.write(lambda connection: _take_over(connection, None)):
            pass
        return True

    @override
    def note(self, connection: Connection, character: str) -> None:
        while _take_over(connection, character):
            pass

    @override
    async def nearest(
        self, character: str, query: PackedVector, model_id: str, limit: int
    ) -> Sequence[Story]:
        wanted = {
            "of": character,
            "by": model_id,
            "query": _spelled(query),
            "width": len(query) // 4,
            "most": max(0, limit),
        }
        rows = await self._database.read(lambda c: c.execute(_NEAREST, wanted).all())
        return [Story(row.place, row.text, float(row.score)) for row in rows]


def _take_over(connection: Connection, character: str | None) -> int:
    """Copy some of the vectors that are not in our table yet; gives how many."""
    rows = connection.execute(_LACKING, {"of": character, "most": _AT_ONCE}).all()
    copies = [
        {"of": row.character, "key": row.sha256, "by": row.model, "made": _spelled(row.vector)}
        for row in rows
    ]
    if copies:
        connection.execute(_COPY, copies)
    return len(copies)


def _spelled(vector: PackedVector) -> str:
    return str(array.array("f", vector).tolist())
