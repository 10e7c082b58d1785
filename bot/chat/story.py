"""Stories: pieces of dialogue that show a character at its best, found by what they mean."""

from dataclasses import dataclass
from typing import TypeAlias

PackedVector: TypeAlias = bytes
"""Float32 numbers, little-endian, together of length one: as they are stored and searched."""


@dataclass(frozen=True, slots=True)
class RetrievedStory:
    """A story that was looked for, and how near it lies to what was asked."""

    text: str
    score: float  # the cosine: 1 is the same direction
    place: int  # in the character's own order, from 0


@dataclass(frozen=True, slots=True)
class StoryVector:
    """A story with the vector that one model gave it."""

    text: str
    vector: PackedVector
