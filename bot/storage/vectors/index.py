"""What can search the vectors of stories; one file beside this one for each way."""

from collections.abc import Sequence
from typing import Protocol

from sqlalchemy import Connection

from bot.chat.story import PackedVector, Story


class VectorIndex(Protocol):
    """Finds the nearest of a character's vectors."""

    def note(self, connection: Connection, character: str) -> None:
        """Take over what this transaction wrote of a character."""
        ...

    async def nearest(
        self, character: str, query: PackedVector, model_id: str, limit: int
    ) -> Sequence[Story]: ...
