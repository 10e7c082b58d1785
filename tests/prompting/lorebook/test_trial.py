"""Trying a lorebook on a text: the activated entries and their matching keys."""

from hypothesis import given
from hypothesis import strategies as st

from bot.prompting.lorebook.entries import Lorebook, LoreEntry
from bot.prompting.lorebook.search import LorebookTrial, try_lorebook

BOOK = Lorebook(
    (
        LoreEntry("lamp", "The lamp is lit.", keys=("Lamp", "ferry")),
        LoreEntry("tide", "It turns.", keys=("/tides?/i",), secondary_keys=("six",)),
        LoreEntry("inn", "Nine rooms.", constant=True),
        LoreEntry("rare", "Chance.", keys=("lamp",), probability=1),
    )
)


def try_on_text(text: str, book: Lorebook = BOOK) -> LorebookTrial:
    return try_lorebook(book, text, budget=100, count=lambda texts: [len(one) for one in texts])


def test_activated_entries_include_their_matching_keys() -> None:
    trial = try_on_text("Alice: the LAMP by the tides")
    decisions, found = zip(*trial.entries, strict=True)
    assert [one.is_activated for one in decisions] == [True, False, True, True]
    assert found[:2] == (["Lamp"], ["/tides?/i"])
    assert decisions[0].reason.startswith("key 'Lamp'")


def test_marked_ranges_are_the_positions_of_the_keys() -> None:
    text = "The lamp. A LAMP at the tide of six"
    assert [text[begin:end] for begin, end in try_on_text(text).key_ranges] == [
        "lamp",
        "LAMP",
        "tide",
        "six",
    ]


def test_each_line_is_a_message() -> None:
    book = Lorebook(BOOK.entries, scan_depth=1)
    assert not try_on_text("the lamp\n\nand then", book).entries[0][0].is_activated
    assert try_on_text("and then\nthe lamp", book).entries[0][0].is_activated


def test_slow_pattern_is_skipped() -> None:
    slow = Lorebook((LoreEntry("slow", "", keys=("/(a+)+$/",)),))
    assert not try_on_text("a" * 40 + "!", slow).entries[0][0].is_activated


@given(st.text(max_size=60), st.lists(st.text(max_size=6), max_size=4))
def test_marked_ranges_are_ordered_and_within_the_text(text: str, keys: list[str]) -> None:
    book = Lorebook((LoreEntry("any", "content", keys=tuple(keys)),), match_whole_words=False)
    at = 0
    for begin, end in try_on_text(text, book).key_ranges:
        assert at <= begin < end <= len(text)
        at = end
