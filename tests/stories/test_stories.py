"""Stories are learned in the background, and found by what was just said."""

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from bot.chat.story import PackedVector
from bot.errors import EmbeddingError
from bot.prompting.presets.preset import Preset
from bot.runtime.tasks import cancel_and_wait
from bot.storage.sql.database import Database
from bot.storage.sql.stories import open_stories
from bot.stories.index import index_stories
from bot.stories.retrieve import StoryRetriever, no_stories
from tests.fakes import FakeClock, FakeEmbedder

LAMP, STORM, GULL = "Nora trims the lamp.", "A storm took the roof.", "The gull stole a herring."
TEXTS = [LAMP, STORM, GULL]


def nora(persona: str = "You keep a light.\n{{RAG-dialogue}}\n{{RAG-dialogue|tea}}") -> Preset:
    return Preset(name="nora", provider="p", model="m", persona=persona)


async def learned(
    database: Database, embedder: FakeEmbedder, texts: Sequence[str] = TEXTS
) -> StoryRetriever:
    stories = await open_stories(database)
    await index_stories({"nora": texts}, embedder, stories, FakeClock())
    return StoryRetriever(embedder, stories, ["nora"])


async def test_what_a_persona_asks_for_is_found_best_first(database: Database) -> None:
    finder = await learned(database, FakeEmbedder())

    found = await finder.find(nora(), "Was there a storm, and did the gull see the storm?")

    assert found is not None
    by_message, by_word = found.values()
    assert list(found)[1] == "tea"
    assert [story.text for story in by_message] == [STORM]
    assert by_message[0].id == 1
    assert by_message[0].score == pytest.approx(0.9, abs=0.1)
    assert len(by_word) == 2, "one for its own place, and one in case that the first is told"


async def test_a_preset_without_stories_or_places_for_them_looks_for_nothing(
    database: Database,
) -> None:
    embedder = FakeEmbedder()
    finder = await learned(database, embedder)
    other = nora().model_copy(update={"name": "marlowe"})

    assert await finder.find(other, "storm") is None
    assert await no_stories(nora(), "storm") is None
    assert await finder.find(nora("You keep a light."), "storm") == {}
    assert embedder.queries == []


async def test_what_a_persona_always_asks_is_turned_into_a_vector_once(database: Database) -> None:
    embedder = FakeEmbedder()
    finder = await learned(database, embedder)

    for said in ("one", "two"):
        await finder.find(nora(), said)

    assert embedder.queries == ["one", "tea", "two"]


async def test_without_an_embedder_an_answer_goes_without_stories(database: Database) -> None:
    embedder = FakeEmbedder()
    finder = await learned(database, embedder)
    embedder.is_down = True

    with capture_logs() as logs:
        assert await finder.find(nora(), "storm") == {}

    assert [(one["event"], one["preset"]) for one in logs] == [("stories_not_found", "nora")]


async def test_only_what_is_new_or_changed_is_learned_again(database: Database) -> None:
    await learned(database, FakeEmbedder())
    again, edited = FakeEmbedder(), FakeEmbedder()

    await learned(database, again)
    await learned(database, edited, [GULL, STORM + "!", LAMP])

    assert again.documents == []
    assert edited.documents == [STORM + "!"]


async def test_another_model_learns_everything_anew(database: Database) -> None:
    await learned(database, FakeEmbedder())
    other = FakeEmbedder("other")

    finder = await learned(database, other)

    assert other.documents == TEXTS
    found = await finder.find(nora("{{RAG-dialogue}}"), "gull")
    assert found is not None
    assert [story.text for story in found["gull"]] == [GULL]


async def test_what_cannot_be_learned_now_is_learned_later(database: Database) -> None:
    embedder, clock = FakeEmbedder(), FakeClock()
    embedder.is_down = True
    stories = await open_stories(database)
    indexing = asyncio.create_task(index_stories({"nora": TEXTS}, embedder, stories, clock))
    await asyncio.sleep(0.1)

    embedder.is_down = False
    while not indexing.done():
        await clock.advance(1)
        await asyncio.sleep(0.02)

    assert embedder.documents == TEXTS


async def test_one_character_that_fails_keeps_no_other_from_learning(database: Database) -> None:
    embedder = Choosy()
    stories = await open_stories(database)
    indexing = asyncio.create_task(
        index_stories({"ogre": ["bad"], "nora": TEXTS}, embedder, stories, FakeClock())
    )
    while embedder.documents != TEXTS:  # noqa: ASYNC110 # the other task reads them
        await asyncio.sleep(0.01)

    assert not indexing.done()
    await cancel_and_wait([indexing])


class Choosy(FakeEmbedder):
    """Cannot read what is bad."""

    @override
    async def embed_documents(self, texts: Sequence[str]) -> Sequence[PackedVector]:
        if "bad" in texts:
            raise EmbeddingError("unreadable")
        return await super().embed_documents(texts)


async def test_many_stories_are_learned_piece_by_piece(database: Database) -> None:
    texts = [f"{number} gulls" for number in range(70)]
    with capture_logs() as logs:
        finder = await learned(database, FakeEmbedder(), texts)

    progress = [(one["done"], one["of"]) for one in logs if one["event"] == "stories_learned"]
    assert progress == [(32, 70), (64, 70), (70, 70)]
    found = await finder.find(nora("{{RAG-dialogues|token<=999|n<=100}}"), "gull")
    assert found is not None
    assert len(found["gull"]) == 70
