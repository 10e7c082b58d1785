"""Lorebook files of SillyTavern and of cards are parsed into the same entries."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bot.errors import PresetError
from bot.prompting.lorebook.entries import EntryPosition, KeyLogic, LoreEntry
from bot.prompting.lorebook.files import MAX_ENTRIES, read_lorebook

BOOKS = json.loads((Path(__file__).parent / "dragon_books.json").read_text("utf-8"))
DRAGON = LoreEntry(
    uid="0",
    content="They sleep.",
    name="Dragons",
    keys=("dragon", "/wyrm/i"),
    secondary_keys=("red",),
    logic=KeyLogic.AND_ALL,
    order=50,
    position=EntryPosition.AT_DEPTH,
    depth=6,
    role="assistant",
    probability=40,
    ignores_budget=True,
    exclude_recursion=True,
    prevent_recursion=True,
    delay_until_recursion=2,
    scan_depth=9,
    case_sensitive=True,
    match_whole_words=False,
    sticky=3,
    cooldown=4,
    delay=5,
    groups=("beasts", "old"),
    group_weight=30,
    group_override=True,
)


def card_entry(**values: Any) -> LoreEntry:
    row = {"keys": ["k"], "content": "c", "enabled": True, "insertion_order": 1, **values}
    return read_lorebook({"entries": [row]}, "book").entries[0]


def test_world_info_and_character_book_give_equal_entries() -> None:
    assert read_lorebook(BOOKS["world_info"], "w.json").entries == (DRAGON,)
    book = read_lorebook(BOOKS["character_book"], "card")
    assert book.entries == (DRAGON,)
    assert (book.scan_depth, book.token_budget, book.recursive) == (7, 300, True)


def test_only_the_fields_of_the_card_specification_are_required() -> None:
    entry = card_entry(position="after_char", secondary_keys=["s"], case_sensitive=True)

    assert (entry.position, entry.order) == (EntryPosition.AFTER_CHAR, 1)
    assert entry.secondary_keys == ()  # it is not selective
    assert entry.case_sensitive is True
    assert card_entry(use_regex=True).keys == ("k",)  # as SillyTavern reads what it writes


def test_v3_decorators_are_applied_and_removed() -> None:
    entry = card_entry(content="@@depth 3\n@@role assistant\n@@unknown x\nText\n@@stays")

    assert (entry.content, entry.depth, entry.role) == ("Text\n@@stays", 3, "assistant")
    assert entry.position is EntryPosition.AT_DEPTH
    assert card_entry(content="@@activate\nx").constant
    assert card_entry(content="@@dont_activate\nx").never_active
    assert card_entry(content="@@activate_only_after 4\nx").delay == 4


def test_unknown_extensions_are_ignored() -> None:
    assert card_entry(extensions={"depth": "deep", "role": "user", "sticky": []}).depth == 4
    assert card_entry(extensions="none").depth == 4


def test_repeated_ids_are_made_unique() -> None:
    rows = [{"keys": [], "content": "", "id": 1}, {"keys": [], "content": "", "id": 1}]

    book = read_lorebook({"entries": rows}, "book")

    assert [entry.uid for entry in book.entries] == ["1", "#1"]


@pytest.mark.parametrize("book", [None, {}, {"entries": None}, {"entries": {}}, []])
def test_book_without_entries_is_empty(book: object) -> None:
    assert read_lorebook(book or {}, "card").entries == ()


@pytest.mark.parametrize("entries", [[{"key": ["a"]}], {"x": {"keys": ["a"]}}, {"0": {"key": "a"}}])
def test_entries_are_read_in_every_form(entries: object) -> None:
    for book in [{"entries": entries}, *([entries] if isinstance(entries, list) else [])]:
        assert [entry.keys for entry in read_lorebook(book, "book").entries] == [("a",)]


@pytest.mark.parametrize(("keys", "read"), BOOKS["keys"])
def test_keys_are_read_in_every_form(keys: object, read: list[str]) -> None:
    assert card_entry(keys=keys).keys == tuple(read)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        *BOOKS["problems"],
        ({"keys": [f"/{'a' * 301}|b/"]}, "it has more than 300 characters between two bars"),
    ],
)
def test_unusable_entry_is_reported_and_its_neighbors_are_read(entry: object, problem: str) -> None:
    book = read_lorebook({"entries": [entry, {"keys": ["fox"], "content": "RED"}]}, "w.json")

    assert book.entries[-1].keys == ("fox",)
    [named] = book.problems
    assert re.search(rf"^w.json: lorebook .*{problem}", named)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"entries": 5}, "a lorebook is a JSON object with `entries`"),
        ({"entries": [{"content": 5}]}, "entry 1: `content` must be text"),
        (
            {"entries": [{"order": "x"}]},
            "entry 1: `content` must be text and `order` must be a number",
        ),
        ({"entries": [{}] * (MAX_ENTRIES + 1)}, "more than 10000 entries; split"),
        ({"entries": [{"keys": ["/a/"] * 2000}]}, "too many regular expressions, or too long ones"),
    ],
)
def test_error_states_the_problem(data: object, message: str) -> None:
    with pytest.raises(PresetError, match=f"^w.json: .*{message}"):
        read_lorebook(data, "w.json")
