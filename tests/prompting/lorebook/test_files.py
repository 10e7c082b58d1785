"""Lorebook files of SillyTavern and of cards are parsed into the same entries."""

from typing import Any

import pytest

from bot.errors import PresetError
from bot.prompting.lorebook.entries import EntryPosition, KeyLogic, LoreEntry
from bot.prompting.lorebook.files import MAX_ENTRIES, read_lorebook

WORLD_INFO = {
    "entries": {
        "0": {
            "uid": 0,
            "key": ["dragon", "/wyrm/i"],
            "keysecondary": ["red"],
            "comment": "Dragons",
            "content": "They sleep.",
            "constant": False,
            "selective": True,
            "selectiveLogic": 3,
            "order": 50,
            "position": 4,
            "disable": False,
            "ignoreBudget": True,
            "excludeRecursion": True,
            "preventRecursion": True,
            "delayUntilRecursion": 2,
            "probability": 40,
            "useProbability": True,
            "depth": 6,
            "group": "beasts, old",
            "groupOverride": True,
            "groupWeight": 30,
            "useGroupScoring": True,
            "scanDepth": 9,
            "caseSensitive": True,
            "matchWholeWords": False,
            "automationId": "kept by others",
            "role": 2,
            "sticky": 3,
            "cooldown": 4,
            "delay": 5,
            "displayIndex": 0,
        }
    }
}
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
    group_scoring=True,
)
CHARACTER_BOOK = {
    "scan_depth": 7,
    "token_budget": 300,
    "recursive_scanning": True,
    "entries": [
        {
            "id": 0,
            "keys": ["dragon", "/wyrm/i"],
            "secondary_keys": ["red"],
            "comment": "Dragons",
            "content": "They sleep.",
            "constant": False,
            "selective": True,
            "insertion_order": 50,
            "enabled": True,
            "position": "before_char",
            "extensions": {
                "position": 4,
                "depth": 6,
                "role": 2,
                "selectiveLogic": 3,
                "ignore_budget": True,
                "exclude_recursion": True,
                "prevent_recursion": True,
                "delay_until_recursion": 2,
                "probability": 40,
                "useProbability": True,
                "group": "beasts, old",
                "group_override": True,
                "group_weight": 30,
                "use_group_scoring": True,
                "scan_depth": 9,
                "case_sensitive": True,
                "match_whole_words": False,
                "sticky": 3,
                "cooldown": 4,
                "delay": 5,
            },
        }
    ],
}


def card_entry(**values: Any) -> LoreEntry:
    row = {"keys": ["k"], "content": "c", "enabled": True, "insertion_order": 1, **values}
    return read_lorebook({"entries": [row]}, "book").entries[0]


def test_world_info_and_character_book_give_equal_entries() -> None:
    assert read_lorebook(WORLD_INFO, "w.json").entries == (DRAGON,)
    book = read_lorebook(CHARACTER_BOOK, "card")
    assert book.entries == (DRAGON,)
    assert (book.scan_depth, book.token_budget, book.recursive) == (7, 300, True)


def test_fields_of_the_card_specification_are_enough() -> None:
    entry = card_entry(position="after_char", secondary_keys=["s"], case_sensitive=True)

    assert (entry.position, entry.order) == (EntryPosition.AFTER_CHAR, 1)
    assert entry.secondary_keys == ()  # it is not selective
    assert entry.case_sensitive is True
    assert card_entry(use_regex=True).keys == ("/k/",)


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


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "a lorebook is a JSON object with `entries`"),
        ({"entries": 5}, "a lorebook is a JSON object with `entries`"),
        ({"entries": [5]}, "lorebook entry 1 must be an object"),
        ({"entries": [{"keys": "k"}]}, "entry 1: keys must be a list of texts, not str"),
        ({"entries": [{"keys": [1]}]}, "entry 1: keys must be a list of texts"),
        ({"entries": [{"keys": ["/(/"]}]}, r"the key '/\(/' cannot be used, it is not a regular"),
        ({"entries": {"a": {"position": 7}}}, "the position 7 .* is not supported"),
        ({"entries": [{}] * (MAX_ENTRIES + 1)}, "more than 10000 entries; split"),
        (
            {"entries": [{"keys": ["/(a{1000}){1000000}/"]}]},
            "cannot be used, its repetition counts are too high",
        ),
        ({"entries": [{"keys": ["/(?a)(?u)b/"]}]}, "ASCII, LOCALE and UNICODE flags"),
        (
            {"entries": [{"keys": [f"/{'a' * 301}|b/"]}]},
            "it has more than 300 characters between two bars",
        ),
        ({"entries": [{"keys": ["/((){1000}){1000}/"]}]}, "its repetition counts are too high"),
        (
            {"entries": [{"keys": ["/(((([]))))]a){99}){99}){99}){99}/"]}]},
            "its repetition counts are too high",
        ),
        ({"entries": [{"keys": ["/{9((}a){999}){999}/"]}]}, "its repetition counts are too high"),
        ({"entries": [{"keys": ["/(?x)((a #))\n){999}){999}/"]}]}, r"it has \(\?x\)"),
        ({"entries": [{"keys": ["/((a(?#[)){999}){999}]/"]}]}, "or a comment"),
        ({"entries": [{"keys": ["/a/"] * 2000}]}, "too many or too long regular expressions"),
    ],
)
def test_error_names_the_problem(data: object, message: str) -> None:
    with pytest.raises(PresetError, match=f"^w.json: .*{message}"):
        read_lorebook(data, "w.json")
