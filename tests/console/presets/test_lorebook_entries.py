"""Lorebook entries as forms: shown, changed, added, and removed, in both formats."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bot.console.presets.lorebook_entries import (
    add_entry,
    apply_entry_forms,
    make_entry_form,
    remove_entry,
)
from bot.prompting.lorebook.files import read_lorebook
from tests.support.console import Playground, call, edit, read

WORLD_INFO: dict[str, Any] = {
    "entries": {
        "0": {"uid": 0, "key": ["lamp", "/oil\\b/i"], "content": "Lit.\nAt dusk.", "order": 7,
              "disable": True, "position": 4, "selectiveLogic": 3, "extra": 1},
        "4": {"uid": 4, "key": ["ferry"], "content": "Slow.", "useProbability": False},
    },
    "name": "harbour",
}  # fmt: skip
CARD: dict[str, Any] = {
    "entries": [
        {"keys": ["lamp"], "content": "Lit.", "name": "Lamp", "enabled": True,
         "insertion_order": 7, "extensions": {"depth": 2, "position": 4, "own": "kept"}},
        {"keys": [], "content": "Slow.", "constant": True, "position": "after_char"},
    ],
}  # fmt: skip
BOOKS = pytest.mark.parametrize("book", [WORLD_INFO, CARD], ids=["world info", "card"])


def untouched_fields(book: object, number: int) -> dict[str, str]:
    """Return the fields that a browser sends if nothing in the form is changed."""
    form = make_entry_form(book, number)
    assert form is not None
    return {one.spec.name: one.texts[0].replace("\n", "\r\n") for one in form.fields}


def change_entry(book: object, number: int, **given: str) -> dict[str, Any]:
    """Return the lorebook with some fields of an entry changed."""
    written = {f"lorebook.{number}.{name}": text for name, text in given.items()}
    value = apply_entry_forms({"lorebook": book}, untouched_fields(book, number) | written)
    found = value["lorebook"]
    assert isinstance(found, dict)
    return found


@BOOKS
def test_untouched_form_changes_nothing(book: dict[str, Any]) -> None:
    for number in (1, 2):
        assert change_entry(book, number) == book


_SCALARS = st.none() | st.booleans() | st.integers(-3, 9) | st.text(max_size=5)


@given(
    st.dictionaries(
        st.sampled_from(
            ["keys", "key", "content", "name", "comment", "order", "insertion_order", "constant",
             "enabled", "disable", "position", "selectiveLogic", "role", "depth", "extensions"]
        ),
        _SCALARS | st.lists(st.text(max_size=4), max_size=3)
        | st.dictionaries(st.sampled_from(["position", "depth", "role"]), _SCALARS),
    ),
    st.booleans(),
)  # fmt: skip
@example({"keys": ["\r", ""]}, True)
def test_untouched_form_of_any_entry_changes_nothing(
    entry: dict[str, object], is_card: bool
) -> None:
    book = {"entries": [entry] if is_card else {"0": entry}}
    assert change_entry(book, 1) == book


@BOOKS
def test_every_form_field_is_understood_by_the_lorebook_parser(book: dict[str, Any]) -> None:
    made = change_entry(
        book,
        1,
        name="The lamp",
        keys="lamp\n/oil(s)?/i",
        secondary_keys="night",
        content="Lit at dusk.",
        order="12",
        constant="true",
        enabled="false",
        position="after_char",
        depth="3",
        role="assistant",
        logic="not_any",
        probability="40",
        scan_depth="5",
        case_sensitive="true",
        match_whole_words="false",
    )
    entry = read_lorebook(made, "test").entries[0]
    assert (entry.name, entry.keys, entry.secondary_keys) == (
        *("The lamp", ("lamp", "/oil(s)?/i"), ("night",)),
    )
    assert (entry.content, entry.order, entry.constant) == ("Lit at dusk.", 12, True)
    assert (entry.enabled, entry.position.value, entry.depth) == (False, "after_char", 3)
    assert (entry.role, entry.logic.value, entry.probability) == ("assistant", "not_any", 40)
    assert (entry.scan_depth, entry.case_sensitive, entry.match_whole_words) == (5, True, False)
    assert {"extra", "extensions"} & json.loads(json.dumps(made["entries"]))[
        0 if isinstance(made["entries"], list) else "0"
    ].keys()


@pytest.mark.parametrize("position", ["before_char", "at_depth", "note_top", ""])
@BOOKS
def test_position_of_each_entry_can_be_changed(book: dict[str, Any], position: str) -> None:
    for number in (1, 2):
        entry = read_lorebook(change_entry(book, number, position=position), "test").entries[
            number - 1
        ]
        assert entry.position.value == (position or "before_char")
    # One that was switched off counts once it is written.
    made = change_entry(book, 2, probability="30")
    assert read_lorebook(made, "test").entries[1].probability == 30


@BOOKS
def test_entries_are_added_and_removed(book: dict[str, Any]) -> None:
    value, number = add_entry({"lorebook": book})
    entries = read_lorebook(value["lorebook"], "test").entries
    assert (number, len(entries), entries[2].content) == (3, 3, "")
    left = remove_entry(value, 1)
    assert isinstance(left["lorebook"], Mapping)
    contents = [one.content for one in read_lorebook(left["lorebook"], "test").entries]
    assert contents == ["Slow.", ""]
    with pytest.raises(KeyError):
        remove_entry(left, 3)


def test_invalid_lorebook_lists_no_entries_and_refuses_new_ones() -> None:
    for book in (None, 7, "book.json", {}, {"entries": 3}, {"entries": [1]}):
        assert make_entry_form(book, 1) is None
    with pytest.raises(ValueError, match="entries"):
        add_entry({"lorebook": {"entries": 3}})


async def test_entry_is_added_changed_and_removed(console: Playground) -> None:
    status, where = await console.send("/presets/nora/lorebook/add", revision="0")
    assert (status, where) == (303, "/presets/nora?tab=lorebook&entry=1")
    page = await console.open(where)
    assert 'name="lorebook.1.keys"' in page
    fields = {"lorebook.1.keys": "lamp\r\nlantern", "lorebook.1.content": "It is <lit>."}
    await call(console, "PATCH", "/presets/nora/draft", {"fields": fields, "revision": 1})
    tried = await read(console, "/presets/nora?tab=lorebook&text=the%20lantern&entry=1")
    assert "It is &lt;lit&gt;." in tried
    assert "<mark>lantern</mark>" in tried
    assert "tab=lorebook&amp;entry=1" in tried
    status, _ = await console.send("/presets/nora/lorebook/remove", revision="1", entry="1")
    assert status == 409
    status, where = await console.send("/presets/nora/lorebook/remove", revision="2", entry="1")
    assert (status, where) == (303, "/presets/nora?tab=lorebook")
    _, found = await call(console, "GET", "/presets/nora")
    assert json.loads(found["draft"])["lorebook"] == {"entries": []}


async def test_entry_added_by_api_is_counted_and_its_errors_are_reported(
    console: Playground,
) -> None:
    await edit(console, "nora", lorebook=CARD, token_counter="o200k")
    _, made = await call(console, "POST", "/presets/nora/lorebook/entries", {"revision": 1})
    assert made == {"revision": 2, "entry": 3}
    fields = {"lorebook.3.content": "one two three", "lorebook.3.keys": "lamp"}
    _, saved = await call(
        console, "PATCH", "/presets/nora/draft", {"fields": fields, "revision": 2}
    )
    assert saved["problems"] == []
    _, counted = await call(console, "GET", "/presets/nora/tokens?entry=3")
    assert counted["tokens"]["lorebook.3.content"] == 3
    wrong = {"fields": {"lorebook.3.order": "late"}, "revision": 3}
    _, saved = await call(console, "PATCH", "/presets/nora/draft", wrong)
    assert "`insertion_order` must be a number" in saved["problems"][0]["text"]
    status, _ = await call(console, "DELETE", "/presets/nora/lorebook/entries/9?revision=4")
    assert status == 404
    status, saved = await call(console, "DELETE", "/presets/nora/lorebook/entries/3?revision=4")
    assert (status, json.loads(saved["draft"])["lorebook"]) == (200, CARD)


async def test_changing_an_entry_of_a_lorebook_file_moves_the_book_into_the_preset(
    console: Playground,
) -> None:
    folder = console.service.container.settings.presets_dir
    assert folder is not None
    (folder / "harbour.json").write_text(json.dumps(WORLD_INFO), encoding="utf-8")
    await edit(console, "nora", lorebook="harbour.json")
    page = await console.open("/presets/nora?tab=lorebook&entry=2")
    assert "harbour.json" in page
    assert ">\nSlow.</textarea>" in page
    body = {"fields": {"lorebook.2.content": "Fast."}, "revision": 1}
    await call(console, "PATCH", "/presets/nora/draft", body)
    _, found = await call(console, "GET", "/presets/nora")
    entries = json.loads(found["draft"])["lorebook"]["entries"]
    assert (entries["4"]["content"], entries["0"]) == ("Fast.", WORLD_INFO["entries"]["0"])
