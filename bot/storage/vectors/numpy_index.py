"""Search vectors with numpy: a character's are read once and kept in memory until they change."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, bindparam, select
from typing_extensions import override

from bot.chat.story import PackedVector, Story
from bot.storage.sql.database import Database
from bot.storage.sql.tables import story, story_revision
from bot.storage.vectors.index import VectorIndex

_MOST_BYTES = 128 * 1024 * 1024  # 80,000 stories of the default model

_REVISION = select(story_revision.c.revision).where(story_revision.c.character == bindparam("of"))
_VECTORS = (
    select(story.c.sha256, story.c.vector)
    .where(story.c.character == bindparam("of"), story.c.model == bindparam("by"))
    .order_by(story.c.place)
)
_TEXTS = select(story.c.sha256, story.c.text, story.c.place).where(
    story.c.character == bindparam("of"),
    story.c.sha256.in_(bindparam("keys", expanding=True)),
)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A character's vectors as they stood in one revision, in the order of its stories."""

    revision: int
    model_id: str
    keys: Sequence[str]
    matrix: npt.NDArray[np.float32]


class NumpyIndex(VectorIndex):
    def __init__(self, database: Database) -> None:
        self._database = database
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()

    @override
    def note(self, connection: Connection, character: str) -> None:
        """Nothing to do: the new revision shows that there is something to read."""

    @override
    async def nearest(
        self, character: str, query: PackedVector, model_id: str, limit: int
    ) -> Sequence[Story]:
        loaded = await self._current(character, model_id, len(query))
        ranked = await asyncio.to_thread(_ranked, loaded, query, limit)
        wanted = {"of": character, "keys": [key for key, _ in ranked]}
        rows = await self._database.read(lambda c: c.execute(_TEXTS, wanted).all())
        texts = {row.sha256: row for row in rows}
        return [
            Story(texts[key].place, texts[key].text, score) for key, score in ranked if key in texts
        ]

    async def _current(self, character: str, model_id: str, width: int) -> _Loaded:
        known = self._loaded.get(character)

        def unit(connection: Connection) -> tuple[int, Sequence[Any]]:
            revision = connection.execute(_REVISION, {"of": character}).scalar() or 0
            if known and (known.revision, known.model_id) == (revision, model_id):
                return revision, []
            return revision, connection.execute(_VECTORS, {"of": character, "by": model_id}).all()

        revision, rows = await self._database.read(unit)
        if known is None or (known.revision, known.model_id) != (revision, model_id):
            known = await asyncio.to_thread(_load, revision, model_id, rows, width)
            self._loaded[character] = known
            self._make_room()
        self._loaded.move_to_end(character)
        return known

    def _make_room(self) -> None:
        while (
            len(self._loaded) > 1
            and sum(one.matrix.nbytes for one in self._loaded.values()) > _MOST_BYTES
        ):
            self._loaded.popitem(last=False)


def _load(revision: int, model_id: str, rows: Sequence[Any], width: int) -> _Loaded:
    # A service may change how many numbers it gives and keep its model's name.
    fitting = [row for row in rows if len(row.vector) == width]
    numbers = np.frombuffer(b"".join(row.vector for row in fitting), dtype="<f4")
    matrix = numbers.reshape(len(fitting), width // numbers.itemsize)
    return _Loaded(revision, model_id, [row.sha256 for row in fitting], matrix)


def _ranked(loaded: _Loaded, query: PackedVector, limit: int) -> list[tuple[str, float]]:
    scores = loaded.matrix @ np.frombuffer(query, dtype="<f4")
    best = np.argsort(-scores, kind="stable")[: max(0, limit)]
    return [(loaded.keys[number], float(scores[number])) for number in best]
