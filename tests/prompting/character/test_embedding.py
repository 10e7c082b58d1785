"""The built-in embedding of a library character."""

import pytest

from bot.prompting.embedding import DEFAULT_EMBEDDER, FunctionEmbedder, StoryIndex

LONG = pytest.param("字" * 9000, marks=pytest.mark.slow)


@pytest.mark.parametrize("text", ["", "\0", "\ud800", " " * 100_000, LONG])
def test_any_text_gets_a_vector(text: str) -> None:
    assert len(DEFAULT_EMBEDDER.document_function(text)) == 384


@pytest.mark.parametrize(
    ("query", "nearest"),
    [("I feel sad today", 1), ("我们去打棒球吧", 0), ("Wollen wir Baseball spielen?", 0)],
)
def test_stories_are_found_by_meaning_in_any_language(query: str, nearest: int) -> None:
    stories = ["The baseball season begins, let us join!", "她哭了，心里很难过。"]

    assert StoryIndex(stories, None, DEFAULT_EMBEDDER).search(query, 1)[0].id == nearest


def test_vectors_are_computed_once_at_the_first_search() -> None:
    made: list[str] = []

    def embed(text: str) -> list[float]:
        made.append(text)
        return [1.0, float(len(text))]

    index = StoryIndex(["a", "bb"], None, FunctionEmbedder(embed, embed))
    assert made == []

    index.search("q", 1)
    index.search("r", 1)

    assert made == ["a", "bb", "q", "r"]
