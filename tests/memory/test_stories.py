"""Test how stories are indexed in the background and retrieved for a message."""

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from bot.chat.story import PackedVector
from bot.errors import EmbeddingError
from bot.memory.stories import StoryRetriever, index_stories
from bot.prompting.presets.preset import Preset
from bot.runtime.tasks import cancel_and_wait
from bot.storage.database import Database
from bot.storage.stories import SqlStories
from tests.fakes import FakeClock, FakeEmbedder
from tests.waiting import settle, wait_until

LAMP, STORM, GULL = "Nora trims the lamp.", "A storm took the roof.", "The gull stole a herring."
TEXTS = [LAMP, STORM, GULL]


def nora(persona: str = "You keep a light.\n{{RAG-dialogue}}\n{{RAG-dialogue|tea}}") -> Preset:
    return Preset(name="nora", provider="p", model="m", persona=persona)


async def indexed(
    database: Database, embedder: FakeEmbedder, texts: Sequence[str] = TEXTS
) -> StoryRetriever:
    stories = SqlStories(database)
    await index_stories({"nora": texts}, embedder, stories, FakeClock())
    return StoryRetriever(embedder, stories, ["nora"])


async def test_retriever_returns_the_nearest_stories_best_first(database: Database) -> None:
    retriever = await indexed(database, FakeEmbedder())

    found = await retriever.retrieve(nora(), "Was there a storm, and did the gull see the storm?")

    assert found is not None
    by_message, by_word = found.values()
    assert list(found)[1] == "tea"
    assert [story.text for story in by_message] == [STORM]
    assert by_message[0].id == 1
    assert by_message[0].score == pytest.approx(0.9, abs=0.1)
    assert len(by_word) == 2, (
        "one for its own placeholder, and a spare in case the first is used already"
    )


async def test_preset_without_stories_or_placeholders_embeds_nothing(database: Database) -> None:
    embedder = FakeEmbedder()
    retriever = await indexed(database, embedder)
    other = nora().model_copy(update={"name": "marlowe"})

    assert await retriever.retrieve(other, "storm") is None
    assert await retriever.retrieve(nora("You keep a light."), "storm") == {}
    assert embedder.queries == []


class MeteredEmbedder(FakeEmbedder):
    @property
    @override
    def is_metered(self) -> bool:
        return True


async def test_paid_service_is_not_used_if_spending_is_not_allowed(database: Database) -> None:
    embedder = MeteredEmbedder()
    retriever = await indexed(database, embedder)
    assert await retriever.retrieve(nora(), "storm", may_spend=False) == {}
    assert embedder.queries == []


async def test_cached_query_vectors_are_dropped_after_the_message(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = FakeEmbedder()
    retriever = await indexed(database, embedder)

    await retriever.retrieve(nora(), "storm")
    await retriever.retrieve(nora(), "storm")  # of the next character
    assert embedder.queries == ["storm", "tea"]
    monkeypatch.setattr("bot.memory.stories._MESSAGE_CACHE_SECONDS", 0.0)
    await retriever.retrieve(nora(), "storm")
    await wait_until(lambda: "storm" not in retriever._cached_vectors)
    assert list(retriever._cached_vectors) == ["tea"]


async def test_failing_embedder_leaves_the_answer_without_stories(database: Database) -> None:
    embedder = FakeEmbedder()
    retriever = await indexed(database, embedder)
    embedder.is_down = True

    with capture_logs() as logs:
        assert await retriever.retrieve(nora(), "storm") == {}

    assert [(one["event"], one["preset"]) for one in logs] == [("stories_not_retrieved", "nora")]


async def test_only_new_and_changed_stories_are_embedded_again(database: Database) -> None:
    await indexed(database, FakeEmbedder())
    again, edited = FakeEmbedder(), FakeEmbedder()

    await indexed(database, again)
    await indexed(database, edited, [GULL, STORM + "!", LAMP])

    assert again.documents == []
    assert edited.documents == [STORM + "!"]


async def test_indexing_is_retried_after_an_error(database: Database) -> None:
    embedder, clock = FakeEmbedder(), FakeClock()
    embedder.is_down = True
    stories = SqlStories(database)
    indexing = asyncio.create_task(index_stories({"nora": TEXTS}, embedder, stories, clock))
    await settle()

    embedder.is_down = False
    while not indexing.done():
        await clock.advance(1)
        await settle()

    assert embedder.documents == TEXTS


async def test_failing_character_does_not_block_other_characters(database: Database) -> None:
    embedder = FailingEmbedder()
    stories = SqlStories(database)
    indexing = asyncio.create_task(
        index_stories({"ogre": ["bad"], "nora": TEXTS}, embedder, stories, FakeClock())
    )
    while embedder.documents != TEXTS:  # noqa: ASYNC110 # the other task reads them
        await asyncio.sleep(0.01)

    assert not indexing.done()
    await cancel_and_wait([indexing])


class FailingEmbedder(FakeEmbedder):
    """An embedder that fails for the text "bad"."""

    @override
    async def embed_documents(self, texts: Sequence[str]) -> Sequence[PackedVector]:
        if "bad" in texts:
            raise EmbeddingError("unreadable")
        return await super().embed_documents(texts)


async def test_many_stories_are_indexed_in_batches(database: Database) -> None:
    texts = [f"{number} gulls" for number in range(70)]
    with capture_logs() as logs:
        retriever = await indexed(database, FakeEmbedder(), texts)

    progress = [(one["done"], one["of"]) for one in logs if one["event"] == "stories_indexed"]
    assert progress == [(32, 70), (64, 70), (70, 70)]
    found = await retriever.retrieve(nora("{{RAG-dialogues|token<=999|n<=100}}"), "gull")
    assert found is not None
    assert len(found["gull"]) == 70
