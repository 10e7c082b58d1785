"""ChatHaruhi characters: zip archives, and files with the columns of version 2."""

import io
import json
import sqlite3
import tracemalloc
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from bot.errors import CharacterError
from bot.importers.character_files import KeysAndStories, read_character_file
from bot.prompting.character import Character
from bot.prompting.haruhi import read_jsonl, read_rows

PLACEHOLDER = "\n{{RAG多对话|token<=1000|n<=5}}\n"


def chroma(*documents: str) -> bytes:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE embedding_metadata (id INT, key TEXT, string_value TEXT)")
        for number, text in enumerate(documents):
            row = number, "chroma:document", text
            database.execute("INSERT INTO embedding_metadata VALUES (?, ?, ?)", row)
        database.execute("INSERT INTO embedding_metadata VALUES (9, 'other', 'x')")
        database.commit()
        return database.serialize()


def read_zip(folder: Path, **files: str | bytes) -> KeysAndStories:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/") + ".txt", content)
    return read_character_file(save(folder, packed.getvalue()), folder)


def save(folder: Path, content: bytes, name: str = "nora.zip") -> str:
    (folder / name).write_bytes(content)
    return name


def test_version_1_is_read_from_a_folder_of_text_files(tmp_path: Path) -> None:
    keys, stories = read_zip(
        tmp_path,
        nora__system_prompt="You are Nora.\r\nBe kind.",
        nora__texts__b="Ana:「two」",
        nora__texts__a="Ana:「one」\r\nNora:「yes」",
        nora__texts__empty=" \n",
    )

    assert keys["persona"] == f"You are Nora.\nBe kind.{PLACEHOLDER}"
    assert keys["max_input_tokens"] == 1600
    assert stories == ("Ana:「one」\nNora:「yes」", "Ana:「two」")


def test_stories_of_version_2_are_read_from_a_database(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("content/nora/chroma.sqlite3", chroma("one", "", "two"))
        archive.writestr("content/system_prompt.txt", "P\n{{RAG-dialogue}}")

    keys, stories = read_character_file(save(tmp_path, packed.getvalue()), tmp_path)

    assert (keys["persona"], stories) == ("P\n{{RAG-dialogue}}", ("one", "two"))


def test_columns_of_version_2_are_read(tmp_path: Path) -> None:
    rows = [
        {"luotuo_openai": "system_prompt", "bge_zh_s15": "system_prompt", "text": "You are Nora."},
        {"luotuo_openai": "config", "bge_zh_s15": "config", "text": "-"},
        {"luotuo_openai": "AAAAAA==", "bge_zh_s15": "AAAAAA==", "text": "one"},
    ]
    text = "\n".join(map(json.dumps, rows))

    keys, stories = read_character_file(save(tmp_path, text.encode(), "nora.jsonl"), tmp_path)

    assert keys["persona"] == f"You are Nora.{PLACEHOLDER}"
    assert stories == ("one",)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_bomb_is_not_unpacked_beyond_the_size_in_its_header(
    tmp_path: Path, method: int
) -> None:
    size, claimed = 30_000_000, 100
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        archive.writestr("system_prompt.txt", b"\0" * size)
    lying = packed.getvalue().replace(size.to_bytes(4, "little"), claimed.to_bytes(4, "little"))
    name = save(tmp_path, lying)
    tracemalloc.start()
    try:
        with pytest.raises(CharacterError, match=r"nora\.zip: the archive cannot be unpacked"):
            read_character_file(name, tmp_path)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert most_bytes < size // 10


def test_archive_with_damaged_deflate_is_reported(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("system_prompt.txt", "You are Nora.")
    begin = 30 + len("system_prompt.txt")
    damaged = packed.getvalue()[:begin] + b"\xff" + packed.getvalue()[begin + 1 :]

    with pytest.raises(CharacterError, match=r"nora\.zip: the archive cannot be unpacked"):
        read_character_file(save(tmp_path, damaged), tmp_path)


def test_error_for_an_archive_without_a_persona_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CharacterError, match=r"nora\.zip: it has no system_prompt\.txt"):
        read_zip(tmp_path, texts__a="one")


@pytest.mark.parametrize(
    "text",
    [
        '{"role_A": "Ana", "role_B": "Nora", "query": "hi", "response": "ho"}',
        '{"dialogue": [{"role": "Ana", "text": "hi"}], "source": "synthesized"}',
    ],
)
def test_dialogues_in_version_1_are_reported(text: str) -> None:
    with pytest.raises(CharacterError, match=r"dialogues or vectors, but no persona; use a zip"):
        read_rows(read_jsonl(text))


def test_empty_persona_is_reported() -> None:
    text = '{"e": "system_prompt", "text": ""}'
    with pytest.raises(CharacterError, match="in the column 'e', or its text is empty"):
        read_rows(read_jsonl(text))


def test_separator_of_an_empty_story_is_kept_as_in_chatharuhi() -> None:
    persona = "P\n{{RAG-dialogues|token<=99|n<=2}}\nQ"
    nora = Character("Nora", persona, texts=["", "a"], embedding=lambda _: [1.0])

    assert "P\n###\n\n###\na\nQ" in nora.get_message("Ana", "hi")[0]["content"]
    rows = [{"e": "system_prompt", "text": "P"}, {"e": "AAAAAA==", "text": ""}]
    assert read_rows(rows).texts == ("",)
