"""Stories: dialogues that show how a character talks, found by similarity."""

from collections.abc import Sequence
from typing import TypeAlias

from bot.value_class import value_class

Vector: TypeAlias = Sequence[float]

PackedVector: TypeAlias = bytes
"""A unit-length float32 vector, little-endian: the form that is stored and searched."""


@value_class
class Story:
    """A story that a search found."""

    id: int
    """Its position in the character's list, from 0: the same under every query."""
    text: str
    score: float
    """Cosine similarity to the query: 1 is the same direction."""


@value_class
class StoryVector:
    """A story's text with its vector from one embedding model."""

    text: str
    vector: PackedVector
