"""Export and import of memories: JSON, World Info, and cards with memories and a chat."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.chat.memory import Memory, MemoryKind, MemoryPlace, MemorySubject, SubjectKind
from bot.errors import UserError
from bot.importers.card import read_card
from bot.importers.card_to_preset import preset_from_card
from bot.importers.chats import ChatLine, ExportedChat
from bot.importers.memory_files import (
    add_to_lorebook,
    encode_character_card,
    encode_memories,
    encode_world_info,
    read_memory_file,
)
from bot.prompting.lorebook.files import read_lorebook
from bot.prompting.presets.preset import Preset
from tests.samples import ALICE

PLACE = MemoryPlace("telegram:1", "telegram:1", is_private=True)
ME = MemorySubject(SubjectKind.PERSON, ALICE.id, ALICE.name)
OWNER = Memory(ME, "", ALICE.id, PLACE, is_derived=False, since=7.0)
WORLD = {
    "entries": {
        "3": {
            "uid": 3,
            "key": ["bridge", "/ri+ver/i"],
            "keysecondary": ["night"],
            "comment": "The bridge",
            "content": "It is old.",
            "constant": False,
            "selective": True,
            "selectiveLogic": 2,
            "order": 50,
            "position": 4,
            "depth": 2,
            "role": 1,
            "disable": False,
            "excludeRecursion": True,
            "probability": 40,
            "useProbability": True,
            "scanDepth": 5,
            "caseSensitive": True,
            "matchWholeWords": False,
            "groupWeight": 30,
            "group": "a, b",
            "sticky": 2,
            "delayUntilRecursion": True,
        },
        "4": {"uid": 4, "key": [], "content": "Off.", "disable": True, "constant": True},
    }
}
MIRA = Preset(
    name="Mira",
    provider="p",
    model="m",
    role_name="Mira",
    persona="Mira keeps bees.",
    greeting="Mira waves.",
    lorebook=WORLD,
)
CHAT = ExportedChat(
    "Alice",
    "Mira",
    (ChatLine("Mira", "Mira waves.", False), ChatLine("Alice", "Hello, Mira", True)),
)
SUBJECTS = [
    ME,
    MemorySubject(SubjectKind.CHARACTER, "Mira", "Mira"),
    MemorySubject(SubjectKind.PLACE, PLACE.channel),
]


@st.composite
def memories(draw: st.DrawFn) -> Memory:
    text = " ".join(draw(st.text("abc XYZ水火,.'", min_size=1, max_size=40)).split())
    return replace(
        OWNER,
        subject=draw(st.sampled_from(SUBJECTS)),
        text=text or "x",
        kind=draw(st.sampled_from(MemoryKind)),
        is_pinned=draw(st.booleans()),
        since=draw(st.sampled_from([1.0, 1_700_000_000.5])),
    )


@given(st.lists(memories(), max_size=5))
def test_memories_survive_a_round_trip_through_each_kind_of_file(kept: Sequence[Memory]) -> None:
    for content in (encode_memories(kept, ALICE.id), encode_world_info(kept, ALICE.id)):
        found = read_memory_file(content.encode(), OWNER)
        assert list(found.memories) == kept
        assert (found.other_people, found.skipped_entry_count, found.chat, found.cleaned_card) == (
            (),
            0,
            None,
            None,
        )
    written = encode_character_card(MIRA, kept, CHAT, ALICE.id).encode()
    found = read_memory_file(written, OWNER)
    assert list(found.memories) == kept
    assert found.chat == CHAT


def test_exported_character_is_imported_with_its_lore_but_without_memories() -> None:
    bees = replace(OWNER, text="Alice fears the Bees of Rome")
    written = encode_character_card(MIRA, [bees], CHAT, ALICE.id)
    card = read_card(written.encode(), "card")
    book = read_lorebook(card.fields.values["character_book"], "card")
    assert [one.content for one in book.entries] == ["It is old.", "Off.", bees.text]
    assert book.entries[:2] == read_lorebook(WORLD, "world").entries
    assert book.entries[2].keys == ("Alice", "Bees", "Rome")
    alone = read_memory_file(written.encode(), OWNER).cleaned_card
    assert alone is not None
    preset = preset_from_card(read_card(alone, "card"), "card")
    assert (preset.role_name, preset.persona, preset.greeting) == (
        "Mira",
        "Mira keeps bees.",
        "Mira waves.",
    )
    assert preset.parsed_lorebook is not None
    assert preset.parsed_lorebook.entries == read_lorebook(WORLD, "world").entries
    assert b"fears" not in alone
    assert b"Hello, Mira" not in alone


def test_imported_world_info_becomes_memories_about_this_place() -> None:
    content = json.dumps({"entries": {"0": {"key": ["x"], "content": "It rains."}, "1": 5}})
    found = read_memory_file(content.encode(), OWNER)
    [memory] = found.memories
    assert (memory.subject, memory.text) == (SUBJECTS[2], "It rains.")
    assert found.skipped_entry_count == 1


@pytest.mark.parametrize("book", [None, WORLD, {"entries": [{"keys": ["a"], "content": "b"}]}])
def test_memory_becomes_a_lorebook_entry(book: dict[str, Any] | None) -> None:
    rain = replace(OWNER, subject=SUBJECTS[2], text="Rain fell on Rome")
    before = read_lorebook(book or {}, "book").entries
    added = add_to_lorebook(book, rain)
    *others, new = read_lorebook(added, "book").entries
    assert tuple(others) == before
    assert (new.content, new.keys, new.constant) == (rain.text, ("Rain", "Rome"), False)
    assert new.uid not in {one.uid for one in others}
    assert "troupe" not in json.dumps(added)
    *_, chinese = read_lorebook(add_to_lorebook(added, replace(rain, text="下雨了")), "b").entries
    assert chinese.constant


@given(st.recursive(st.none() | st.integers() | st.text(max_size=9), lambda inner: (
    st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(["format", "memories", "text", "about", "kind", "since", "entries"])
        | st.sampled_from(["spec", "data", "character_book", "extensions", "troupe", "chat"])
        | st.sampled_from(["content", "person", "character"]),
        inner | st.sampled_from(["troupe memories", "me", "place"]),
        max_size=6,
    )
), max_leaves=25))  # fmt: skip
def test_any_json_is_read_or_refused(value: object) -> None:
    try:
        found = read_memory_file(json.dumps(value).encode(), OWNER)
    except UserError:
        return
    for one in found.memories:
        assert one.text
        assert (one.said_by, one.place, one.is_derived) == (ALICE.id, PLACE, False)
        assert one.subject == ME or one.subject.kind is not SubjectKind.PERSON
