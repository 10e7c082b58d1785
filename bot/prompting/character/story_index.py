"""Search a character's stories in memory by vector similarity."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bot.chat.story import Story, Vector
from bot.errors import CharacterError
from bot.prompting.character.embedding import FunctionEmbedder

_DIGITS = 5  # smaller differences are rounding errors: the earlier story of equals comes first


class StoryIndex:
    """Stories with their vectors, which are computed at the first search if none were given."""

    def __init__(
        self, texts: Sequence[str], vectors: Sequence[Vector] | None, embedder: FunctionEmbedder
    ) -> None:
        self.texts = tuple(texts)
        self._embedder = embedder
        self._vectors = vectors if vectors is not None and len(vectors) == len(texts) else None
        self._unit_vectors: npt.NDArray[np.float32] | None = None

    @property
    def vectors(self) -> Sequence[Vector]:
        """A vector for each text: the given ones, or newly computed ones."""
        if self._vectors is None:
            self._vectors = [self._embedder.document(text) for text in self.texts]
        return self._vectors

    def search(self, query: str, limit: int) -> list[Story]:
        """Return the most similar stories, best first, by cosine; 0 for a query vector of zeros.

        Raises:
            CharacterError: the vectors have different lengths, or one is all zeros.
        """
        if not self.texts or limit < 1:
            return []
        if self._unit_vectors is None:
            self._unit_vectors = _unit_vectors(self.vectors)
        query_vector = np.asarray(self._embedder.query(query), dtype=np.float32)
        if query_vector.shape != self._unit_vectors.shape[1:]:
            raise CharacterError(
                f"the embedding returns {query_vector.size} numbers, the stories have "
                f"{self._unit_vectors.shape[1]}; pass the embedding that made them as `embedding`"
            )
        scores = np.round(
            self._unit_vectors @ query_vector / (np.linalg.norm(query_vector) or 1), _DIGITS
        )
        best = np.argsort(-scores, kind="stable")[:limit]
        return [Story(int(index), self.texts[index], float(scores[index])) for index in best]


def _unit_vectors(vectors: Sequence[Vector]) -> npt.NDArray[np.float32]:
    """Return the vectors scaled to length one, a row each."""
    try:
        matrix = np.asarray(vectors, dtype=np.float32).reshape(len(vectors), -1)
    except ValueError as error:
        raise CharacterError("the vectors of the stories have different lengths") from error
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    if empty := np.flatnonzero(lengths == 0).tolist():
        raise CharacterError(f"the vector of story {empty[0] + 1} is all zeros")
    unit_vectors: npt.NDArray[np.float32] = matrix / lengths
    return unit_vectors
