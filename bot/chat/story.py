"""Stories: example dialogues of a character, found by similarity to a message."""

from collections.abc import Sequence
from typing import TypeAlias

from bot.value_class import value_class

Vector: TypeAlias = Sequence[float]

PackedVector: TypeAlias = bytes
"""A vector of length 1 as little-endian float32 bytes, as stored and searched."""


@value_class
class Story:
    """A story that a search found."""

    id: int
    """The story's index in the character's list, from 0."""
    text: str
    score: float
    """Cosine similarity to the query, at most 1."""


@value_class
class StoryVector:
    """A story's text with its vector from one embedding model."""

    text: str
    vector: PackedVector
