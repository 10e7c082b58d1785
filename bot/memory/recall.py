"""Recall memories for an answer: load what a character may know, and rank it."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from bot.chat.incoming import IncomingMessage, find_person_ids
from bot.chat.memory import (
    Memory,
    MemoryPlace,
    RankedMemories,
    RankedMemory,
    RecallingCharacter,
    RecallReason,
)
from bot.chat.session import Turn
from bot.chat.story import PackedVector
from bot.errors import EmbeddingError, StoreError
from bot.ports import Embedder
from bot.prompting.text.words import split_words
from bot.storage.memories import SqlMemories

_log = structlog.get_logger(__name__)
_TIMEOUT_SECONDS = 5.0
_RANK_OFFSET = 10  # for reciprocal rank fusion; smaller values favor the first ranks
_WORD_WEIGHT, _RECENCY_WEIGHT = 0.25, 0.1  # similar vectors weigh 1; see test_memory_recall.py
_SCORE_DIGITS = 4

CompareVectors: TypeAlias = Callable[[PackedVector, Sequence[PackedVector]], Sequence[float]]
"""Returns the similarity of one vector to each of several vectors from the same model."""


@dataclass(eq=False, repr=False)
class MemoryRecaller:
    """Loads and ranks memories for an answer; without `embedder`, ranks only by words and age."""

    memories: SqlMemories
    budget_share: float = 0.1
    """The share of a prompt's token budget that memories may take."""
    embedder: Embedder | None = None
    compare_vectors: CompareVectors | None = None

    async def recall(
        self, preset: str, message: IncomingMessage, turns: Sequence[Turn], *, may_spend: bool
    ) -> RankedMemories:
        """Return the memories that a character may recall for a message, best first.

        A paid embedding service is used only if `may_spend` is set. Raises `StoreError`.
        """
        is_private = message.is_private
        place = MemoryPlace.from_event(message.address, message.scopes, is_private=is_private)
        speakers = [one.speaker.id for one in turns if one.speaker]
        people = tuple(dict.fromkeys([*find_person_ids(message), *message.mentions, *speakers]))
        listener = RecallingCharacter(place, preset, message.author.id, people)
        candidates = await self.memories.recall(listener)
        if not candidates.memories:
            return RankedMemories((), len(candidates.omitted_private_ids), self.budget_share)
        similarities: Mapping[int, float] = {}
        if any(one.vector for one in candidates.memories):
            similarities = await self._compute_similarities(
                message.text, candidates.memories, may_spend=may_spend
            )
        memories = rank_memories(message.text, candidates.memories, similarities)
        return RankedMemories(memories, len(candidates.omitted_private_ids), self.budget_share)

    async def embed(self, text: str) -> tuple[str, PackedVector] | None:
        """Return the embedding model and the vector of a memory's text, or None on failure."""
        if self.embedder is None:
            return None
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                [vector] = await self.embedder.embed_documents([text])
        except (EmbeddingError, StoreError, TimeoutError) as error:
            _log.warning("memory_not_embedded", reason=str(error) or "too slow")
            return None
        return self.embedder.model_id, vector

    async def _compute_similarities(
        self, query: str, memories: Sequence[Memory], *, may_spend: bool
    ) -> Mapping[int, float]:
        if self.embedder is None or self.compare_vectors is None:
            return {}
        if self.embedder.is_metered and not may_spend:
            return {}
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                vector = await self.embedder.embed_query(query)
        except (EmbeddingError, TimeoutError) as error:
            _log.warning("memories_ranked_by_words", reason=str(error) or "too slow")
            return {}
        model = self.embedder.model_id
        ids, vectors = [], []
        for one in memories:
            if one.vector and one.model == model and len(one.vector) == len(vector):
                ids.append(one.id)
                vectors.append(one.vector)
        return dict(zip(ids, self.compare_vectors(vector, vectors), strict=True)) if ids else {}


def rank_memories(
    query: str, memories: Sequence[Memory], similarities: Mapping[int, float]
) -> tuple[RankedMemory, ...]:
    """Rank memories for a message: pinned ones first, then by similarity, shared words and age.

    The last three rankings are merged by reciprocal rank fusion, since their scores differ in kind:
    https://plg.uwaterloo.ca/~gvcormac/cormacksigir09-rrf.pdf
    """
    word_scores = _score_by_shared_words(query, memories)
    scores = Counter[int]()
    reasons: dict[int, RecallReason] = {}
    rankings: tuple[tuple[Mapping[int, float], float, RecallReason], ...] = (
        (word_scores, _WORD_WEIGHT, RecallReason.SAME_WORDS),
        (similarities, 1.0, RecallReason.SIMILAR_MEANING),
        ({one.id: one.since for one in memories}, _RECENCY_WEIGHT, RecallReason.RECENT),
    )
    for scores_by_id, weight, reason in rankings:
        sorted_scores = sorted(scores_by_id.items(), key=lambda item: (-item[1], -item[0]))
        for rank, (number, _) in enumerate(sorted_scores, 1):
            scores[number] += weight / (_RANK_OFFSET + rank)  # type: ignore[assignment]
            reasons.setdefault(number, reason)
    memories = sorted(memories, key=lambda one: (not one.is_pinned, -scores[one.id], -one.id))
    return tuple(
        RankedMemory(
            one,
            round(scores[one.id], _SCORE_DIGITS),
            RecallReason.PINNED if one.is_pinned else reasons[one.id],
        )
        for one in memories
    )


def _score_by_shared_words(query: str, memories: Sequence[Memory]) -> dict[int, float]:
    """Score memories by the words that they share with a query; return the scores by memory id."""
    query_words = set(split_words(query))
    shared_words = {
        one.id: query_words.intersection(split_words(f"{one.subject.name} {one.text}"))
        for one in memories
    }
    word_counts = Counter(word for words in shared_words.values() for word in words)
    # Rare words say more than common ones, and in Chinese, pairs say more than single characters.
    word_weights = {
        word: math.log(1 + len(memories) / count) * min(len(word), 4)
        for word, count in word_counts.items()
    }
    return {
        number: sum(word_weights[word] for word in words)
        for number, words in shared_words.items()
        if words
    }
