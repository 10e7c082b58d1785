"""Test how often the memory that answers a question is among the first five recalled.

The questions use other words than the memories; half of them are in Chinese. Each is searched in
the memories of five conversations, about as many as one person has with one character.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.memory import Memory, MemoryPlace, MemorySubject, SubjectKind
from bot.chat.story import PackedVector
from bot.memory.recall import MemoryRecaller
from bot.ports import Embedder
from bot.prompting.embedding import DEFAULT_EMBEDDER, cosine_similarities
from bot.storage.database import Database
from bot.storage.memories import SqlMemories
from tests.fakes import FakeClock
from tests.memory.extraction_setup import CHARACTERS, person, read_conversations
from tests.samples import make_incoming

pytestmark = pytest.mark.slow

AMONG = 5
PRESETS = {name: preset for preset, name in CHARACTERS.items()}


class CachingEmbedder(Embedder):
    """The bundled embedder with a cache."""

    def __init__(self) -> None:
        self._documents: dict[str, PackedVector] = {}
        self._queries: dict[str, PackedVector] = {}

    @property
    @override
    def model_id(self) -> str:
        return DEFAULT_EMBEDDER.model_id

    @override
    async def embed_documents(self, texts: Sequence[str]) -> Sequence[PackedVector]:
        new = [text for text in texts if text not in self._documents]
        vectors = await DEFAULT_EMBEDDER.embed_documents(new) if new else ()
        self._documents.update(zip(new, vectors, strict=True))
        return [self._documents[text] for text in texts]

    @override
    async def embed_query(self, text: str) -> PackedVector:
        if text not in self._queries:
            self._queries[text] = await DEFAULT_EMBEDDER.embed_query(text)
        return self._queries[text]

    @override
    async def check(self) -> str:
        return "cached"

    @override
    async def close(self) -> None:
        pass


EMBEDDER = CachingEmbedder()
"""Shared by all tests here, because they use the same texts."""


def subject_of(about: str, place: MemoryPlace) -> MemorySubject:
    if about == "here":
        return MemorySubject(SubjectKind.PLACE, place.channel)
    if about in PRESETS:
        return MemorySubject(SubjectKind.CHARACTER, PRESETS[about], about)
    return MemorySubject(SubjectKind.PERSON, person(about).id, about)


def to_memories(one: dict[str, Any], place: MemoryPlace) -> list[Memory]:
    subjects = [subject_of(about, place) for _, about, *_ in one["memories"]]
    texts = [text for *_, text in one["memories"]]
    return [
        Memory(about, text, about.key, place, is_derived=False, since=float(number))
        for number, (about, text) in enumerate(zip(subjects, texts, strict=True))
    ]


async def measure(
    database: Database, language: str, in_channel: int, embedder: Embedder | None
) -> tuple[float, int]:
    """Return the share of questions answered by the first five memories, and the memory count.

    `in_channel` is the number of conversations in one channel.
    """
    stored = SqlMemories(database, FakeClock())
    recaller = MemoryRecaller(stored, 0.1, embedder, cosine_similarities if embedder else None)
    conversations = read_conversations(language)
    most, found, asked = 0, 0, 0
    for start in range(0, len(conversations), in_channel):
        together = conversations[start : start + in_channel]
        chat = f"{language}-{in_channel}-{start}-{embedder is not None}"
        place = MemoryPlace.from_event(
            Address("telegram", chat), (f"telegram:{chat}",), is_private=False
        )
        memories = [memory for one in together for memory in to_memories(one, place)]
        most = max(most, len(memories))
        for memory in memories:
            model, vector = await recaller.embed(memory.text) or ("", None)
            assert await stored.add(replace(memory, model=model, vector=vector))
        for one in together:
            for question, answer in one["questions"]:
                message = make_incoming(question, chat=chat)
                ranked = await recaller.recall("nora", message, (), may_spend=True)
                first = [each.memory.text for each in ranked.memories[:AMONG]]
                found += one["memories"][answer][-1] in first
                asked += 1
    return found / asked, most


@pytest.mark.parametrize("language", ["english", "chinese"])
async def test_relevant_memory_is_among_the_first_five(database: Database, language: str) -> None:
    """Measured: English 0.87, Chinese 0.88; among a channel's 160 memories 0.71 and 0.72."""
    found, memories = await measure(database, language, 5, EMBEDDER)
    assert memories >= 40
    assert found >= 0.8


@pytest.mark.parametrize(
    ("language", "in_channel", "uses_vectors", "measured"),
    [
        ("english", 5, False, 0.36),
        ("chinese", 5, False, 0.64),
        ("english", 20, True, 0.71),
        ("chinese", 20, True, 0.72),
        ("english", 20, False, 0.25),
        ("chinese", 20, False, 0.41),
    ],
)
async def test_recall_without_vectors_or_in_a_full_channel_is_as_documented(
    database: Database, language: str, in_channel: int, uses_vectors: bool, measured: float
) -> None:
    embedder = EMBEDDER if uses_vectors else None
    found, _ = await measure(database, language, in_channel, embedder)
    assert found == pytest.approx(measured, abs=0.05)
