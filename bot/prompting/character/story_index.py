"""A character's stories in memory, found by what they mean."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bot.chat.story import Story
from bot.errors import CharacterError
from bot.prompting.character.embedding import FunctionEmbedder, Vector

_DIGITS = 5  # what differs by less is rounding: of equals the earlier story comes first


class StoryIndex:
    """Stories with their vectors, which are made when the first search needs them."""

    def __init__(
        self, texts: Sequence[str], vectors: Sequence[Vector] | None, embedder: FunctionEmbedder
    ) -> None:
        self.texts = tuple(texts)
        self._embedder = embedder
        self._vectors = vectors if vectors is not None and len(vectors) == len(texts) else None
        self._directions: npt.NDArray[np.float32] | None = None

    @property
    def vectors(self) -> Sequence[Vector]:
        """One vector for each text: those that came with them, or new ones."""
        if self._vectors is None:
            self._vectors = [self._embedder.document(text) for text in self.texts]
        return self._vectors

    def search(self, query: str, limit: int) -> list[Story]:
        """Best first, by cosine; a query without a direction is as near to one as to another.

        Raises:
            CharacterError: vectors are of different lengths, or one is nothing but zeros.
        """
        if not self.texts or limit < 1:
            return []
        if self._directions is None:
            self._directions = _directions(self.vectors)
        asked = np.asarray(self._embedder.query(query), dtype=np.float32)
        if asked.shape != self._directions.shape[1:]:
            raise CharacterError(
                f"the embedding gives {asked.size} numbers, the stories have "
                f"{self._directions.shape[1]}; pass the embedding that made them as `embedding`"
            )
        scores = np.round(self._directions @ asked / (np.linalg.norm(asked) or 1), _DIGITS)
        best = np.argsort(-scores, kind="stable")[:limit]
        return [Story(int(place), self.texts[place], float(scores[place])) for place in best]


def _directions(vectors: Sequence[Vector]) -> npt.NDArray[np.float32]:
    """The vectors at length one, a row each."""
    try:
        matrix = np.asarray(vectors, dtype=np.float32).reshape(len(vectors), -1)
    except ValueError as error:
        raise CharacterError("the vectors of the stories are not equally long") from error
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    if empty := np.flatnonzero(lengths == 0).tolist():
        raise CharacterError(f"the vector of story {empty[0] + 1} is nothing but zeros")
    directions: npt.NDArray[np.float32] = matrix / lengths
    return directions
