"""Contract of the story index: search, updates, and several characters and models."""

import asyncio
import struct
from collections.abc import Sequence

import pytest

from bot.chat.story import PackedVector, StoryVector
from bot.ports import Stories
from tests.support.store import Store

A, B, C = "Nora finds a lamp.", "Nora loses her hat.", "诺拉在唱歌。\U0001f3ad"


@pytest.fixture
def stories(store: Store) -> Stories:
    return store.stories


def vector(*numbers: float) -> PackedVector:
    length = sum(number * number for number in numbers) ** 0.5
    return struct.pack(f"<{len(numbers)}f", *(number / length for number in numbers))


async def store_vectors(
    stories: Stories, vectors: dict[str, PackedVector], character: str = "nora", model: str = "m"
) -> None:
    await stories.replace_stories(character, list(vectors), model)
    kept = [StoryVector(story, made) for story, made in vectors.items()]
    await stories.save_vectors(character, model, kept)


async def nearest_texts(
    stories: Stories, query: PackedVector, limit: int = 9, character: str = "nora", model: str = "m"
) -> Sequence[str]:
    return [one.text for one in await stories.find_nearest(character, query, model, limit)]


async def test_nearest_stories_come_first_with_their_scores(stories: Stories) -> None:
    await store_vectors(stories, {A: vector(1, 0), B: vector(0, 1), C: vector(3, 4)})

    found = await stories.find_nearest("nora", vector(1, 0), "m", 2)

    assert [(one.text, one.id) for one in found] == [(A, 0), (C, 2)]
    assert [one.score for one in found] == pytest.approx([1, 0.6])


async def test_equally_similar_stories_keep_their_order(stories: Stories) -> None:
    await store_vectors(stories, {B: vector(1, 1), A: vector(1, 1), C: vector(1, 1)})
    assert await nearest_texts(stories, vector(1, 0)) == [B, A, C]


async def test_search_for_an_unknown_character_or_with_limit_zero_is_empty(
    stories: Stories,
) -> None:
    await store_vectors(stories, {A: vector(1, 0)})
    assert await nearest_texts(stories, vector(1, 0), character="marlowe") == []
    assert await nearest_texts(stories, vector(1, 0), limit=0) == []


async def test_replace_returns_stories_without_a_vector_of_the_model(stories: Stories) -> None:
    assert await stories.replace_stories("nora", [A, B, A], "m") == [A, B]
    await stories.save_vectors("nora", "m", [StoryVector(A, vector(1, 0))])
    assert await stories.replace_stories("nora", [A, B, C], "m") == [B, C]
    assert await stories.replace_stories("nora", [A, B, C], "other") == [A, B, C]


async def test_removed_or_changed_story_is_not_found(stories: Stories) -> None:
    await store_vectors(stories, {A: vector(1, 0), B: vector(0, 1)})
    assert await nearest_texts(stories, vector(1, 0)) == [A, B]

    assert await stories.replace_stories("nora", [B, A + "!"], "m") == [A + "!"]
    assert await nearest_texts(stories, vector(1, 0)) == [B]
    await stories.save_vectors("nora", "m", [StoryVector(A, vector(1, 0))])
    assert await nearest_texts(stories, vector(1, 0)) == [B], "its story is gone"


async def test_vectors_of_another_model_are_never_compared(stories: Stories) -> None:
    await store_vectors(stories, {A: vector(1, 0), B: vector(0, 1)}, model="old")
    await stories.save_vectors("nora", "new", [StoryVector(A, vector(1, 0, 0))])

    assert await nearest_texts(stories, vector(1, 0, 0), model="new") == [A]
    assert await nearest_texts(stories, vector(1, 0), model="old") == [B]


async def test_vectors_of_another_length_are_ignored(stories: Stories) -> None:
    await store_vectors(stories, {A: vector(1, 0), B: vector(1, 0, 0)})
    assert await nearest_texts(stories, vector(0, 1, 0)) == [B]


async def test_new_vector_replaces_the_old_one(stories: Stories) -> None:
    await store_vectors(stories, {A: vector(1, 0), B: vector(0, 1)})
    assert (await nearest_texts(stories, vector(1, 0)))[0] == A
    await store_vectors(stories, {A: vector(0, 1), B: vector(1, 0)}, model="n")
    assert (await nearest_texts(stories, vector(1, 0), model="n"))[0] == B


async def test_stories_of_different_characters_do_not_mix(stories: Stories) -> None:
    await store_vectors(stories, {A: vector(1, 0)})
    await store_vectors(stories, {A: vector(1, 0), B: vector(1, 0)}, character="诺拉")
    assert await nearest_texts(stories, vector(1, 0)) == [A]
    assert await nearest_texts(stories, vector(1, 0), character="诺拉") == [A, B]


async def test_unstorable_characters_of_a_story_are_replaced(stories: Stories) -> None:
    odd = "a\0b \ud83d c"
    await store_vectors(stories, {odd: vector(1, 0)})
    assert await nearest_texts(stories, vector(1, 0)) == ["a\ufffdb \ufffd c"]
    assert await stories.replace_stories("nora", [odd], "m") == []


async def test_concurrent_writers_of_the_same_stories_succeed(stories: Stories) -> None:
    vectors = {A: vector(1, 0), B: vector(0, 1), C: vector(1, 1)}
    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(store_vectors(stories, vectors))
    assert await nearest_texts(stories, vector(1, 0)) == [A, C, B]
