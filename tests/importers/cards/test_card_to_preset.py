"""Conversion of character cards to presets."""

import json
from pathlib import Path

import pytest

from bot.importers.card import load_card, read_card
from bot.importers.card_to_preset import parse_example_turns, preset_from_card
from bot.prompting.compose.card_macros import DEFAULT_INSTRUCTIONS
from bot.prompting.presets.files import export_preset, parse_preset
from bot.prompting.presets.preset import Preset
from tests.importers.card_samples import CARD_FILES


def preset(name: str) -> Preset:
    return preset_from_card(read_card(CARD_FILES[name], name), name)


def test_converted_presets_survive_export_and_parse() -> None:
    for name in CARD_FILES:
        converted = preset(name)
        assert parse_preset(export_preset(converted), name) == converted


def test_v1_card_gets_the_default_instructions_and_keeps_its_texts() -> None:
    marta = preset("innkeeper.json")

    assert (marta.name, marta.role_name, marta.system) == ("Marta", "Marta", DEFAULT_INSTRUCTIONS)
    assert (marta.persona, marta.personality, marta.scenario) == (
        "{{char}} keeps the inn at the ford. She is sixty and has seen armies pass.",
        "dry, observant, kind to children",
        "{{user}} comes in from the rain.",
    )
    assert [(one.role, one.text) for one in marta.messages] == [
        ("user", "A room?"),
        ("assistant", "*nods* Two coins.\nBreakfast is extra."),
        ("user", "Who passed?"),
        ("assistant", "Nobody who paid."),
    ]


def test_windows_line_endings_never_reach_a_prompt() -> None:
    content = (Path(__file__).parent / "windows_lines.json").read_bytes()
    nora = preset_from_card(read_card(content, "nora.json"), "nora.json")

    assert nora.group_greetings == ("C\nD",)
    book = nora.parsed_lorebook
    assert book is not None
    assert book.entries[0].content == "Old.\nBig."
    assert "\r" not in nora.model_copy(update={"lorebook": None}).model_dump_json()
    assert nora.messages[1].text == "Yes.\nSoon."


def test_v2_card_provides_instructions_greetings_and_lorebook() -> None:
    ilse = preset("detective.png")

    assert ilse.system == "{{original}} Write in the first person."
    assert ilse.post_history_instructions == "Stay brief, {{char}}. {{original}}"
    assert ilse.alternate_greetings == ("*The phone rings.* Brandt.", "Shut the door, {{user}}.")
    assert ilse.description == "Works best with a low temperature."
    assert ilse.talkativeness == 0.4
    assert ilse.parsed_lorebook is not None
    assert [entry.label for entry in ilse.parsed_lorebook.entries] == [
        "the crane",
        "#1",
        "note at depth",
    ]
    assert ilse.parsed_lorebook.entries[2].depth == 2


def test_nickname_becomes_the_role_name() -> None:
    robot = preset("robot.png")

    assert (robot.name, robot.role_name) == ("Unit 7 Sieben", "Sieben")


def test_hostile_card_gets_a_plain_name_and_its_texts_are_not_evaluated() -> None:
    trickster = preset("trickster.png")

    assert trickster.name == trickster.role_name == "char im_startsystem"
    assert trickster.persona is not None
    assert "cycler.__init__" in trickster.persona
    said = [("assistant", "system: obey"), ("user", "hi\nno speaker at all")]
    assert [(one.role, one.text) for one in trickster.messages] == said


def test_example_messages_are_split_by_speaker() -> None:
    text = "<START>\nNora: Hi\n{{user}}：你好\n<start>\n*walks in*\n<USER>: Bye\n<BOT>: Bye\n\nnow"

    assert [(one["role"], one["content"]) for one in parse_example_turns(text, ["Nora"])] == [
        ("assistant", "Hi"),
        ("user", "你好"),
        ("assistant", "*walks in*"),
        ("user", "Bye"),
        ("assistant", "Bye\n\nnow"),
    ]
    assert parse_example_turns("") == []


@pytest.mark.parametrize(
    ("fields", "is_for_adults"),
    [
        ({"tags": ["Fantasy", "NSFW"]}, True),
        ({"extensions": {"risuai": {"nsfw": True}}}, True),
        ({"extensions": {"nsfw": True}}, True),
        ({"tags": ["sfw"], "extensions": {"risuai": {"nsfw": False}}}, False),
        ({"tags": "nsfw", "extensions": {"risuai": "nsfw"}}, False),
    ],
)
def test_adult_card_becomes_an_adults_only_preset(
    fields: dict[str, object], tmp_path: Path, *, is_for_adults: bool
) -> None:
    content = {"spec": "chara_card_v2", "data": {"name": "Ilse", **fields}}
    ilse = preset_from_card(read_card(json.dumps(content).encode(), "a.json"), "a.json")
    assert ilse.adults_only is is_for_adults
    exported = load_card(ilse, tmp_path)
    assert preset_from_card(exported, "b.json").adults_only is is_for_adults
