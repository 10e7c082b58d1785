"""The interface of a vector index over the stories of characters."""

from collections.abc import Sequence
from typing import Protocol

from sqlalchemy import Connection

from bot.chat.story import PackedVector, Story


class VectorIndex(Protocol):
    """Finds the stories of a character whose vectors are nearest to a query."""

    def update(self, connection: Connection, character: str) -> None:
        """Index what this transaction has written for a character."""
        ...

    async def nearest(
        self, character: str, query: PackedVector, model_id: str, limit: int
    ) -> Sequence[Story]: ...
