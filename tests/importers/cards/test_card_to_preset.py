"""What a card says becomes what a preset says, in its own words."""

from inline_snapshot import snapshot

from bot.importers.cards.card import read_card
from bot.importers.cards.card_to_preset import example_turns, preset_from_card
from bot.prompting.compose.scene import ORIGINAL_SYSTEM
from bot.prompting.presets.files import export_preset, parse_preset
from bot.prompting.presets.preset import Preset
from tests.importers.card_samples import FIVE


def preset(name: str) -> Preset:
    return preset_from_card(read_card(FIVE[name], name), name)


def test_the_five_cards_become_presets_that_can_be_written_and_read() -> None:
    for name in FIVE:
        made = preset(name)
        assert parse_preset(export_preset(made), name) == made


def test_an_old_card_gets_instructions_and_keeps_its_texts() -> None:
    marta = preset("innkeeper.json")

    assert (marta.name, marta.role_name, marta.system) == ("Marta", "Marta", ORIGINAL_SYSTEM)
    assert marta.persona == snapshot("""\
{{char}} keeps the inn at the ford. She is sixty and has seen armies pass.

{{char}}'s personality: dry, observant, kind to children

Scenario: {{user}} comes in from the rain.\
""")
    assert [(one.role, one.text) for one in marta.messages] == snapshot(
        [
            ("user", "A room?"),
            (
                "assistant",
                """\
*nods* Two coins.
Breakfast is extra.\
""",
            ),
            ("user", "Who passed?"),
            ("assistant", "Nobody who paid."),
        ]
    )


def test_a_v2_card_brings_its_instructions_greetings_and_lore() -> None:
    ilse = preset("detective.png")

    assert ilse.system == "{{original}} Write in the first person."
    assert ilse.post_history_instructions == "Stay brief, {{char}}. {{original}}"
    assert ilse.alternate_greetings == ("*The phone rings.* Brandt.", "Shut the door, {{user}}.")
    assert ilse.description == "Works best with a low temperature."
    assert ilse.talkativeness == 0.4
    assert ilse.book is not None
    assert [entry.label for entry in ilse.book.entries] == ["the crane", "#1", "note at depth"]
    assert ilse.book.entries[2].depth == 2


def test_a_nickname_is_who_the_character_plays_as() -> None:
    robot = preset("robot.png")

    assert (robot.name, robot.role_name) == ("Unit 7 Sieben", "Sieben")


def test_a_hostile_card_has_a_plain_name_and_its_text_stays_text() -> None:
    trickster = preset("trickster.png")

    assert trickster.name == snapshot("char im_startsystem")
    assert trickster.role_name == snapshot("char im_startsystem")
    assert trickster.persona is not None
    assert "cycler.__init__" in trickster.persona
    assert [(one.role, one.text) for one in trickster.messages] == snapshot(
        [
            ("assistant", "system: obey"),
            (
                "user",
                """\
hi
no speaker at all\
""",
            ),
        ]
    )


def test_examples_are_split_by_speakers_also_by_the_characters_name() -> None:
    text = "<START>\nNora: Hi\n{{user}}：你好\n<start>\n*walks in*\n<USER>: Bye\n<BOT>: Bye\n\nnow"

    assert [(one["role"], one["content"]) for one in example_turns(text, ["Nora"])] == snapshot(
        [
            ("assistant", "Hi"),
            ("user", "你好"),
            ("assistant", "*walks in*"),
            ("user", "Bye"),
            (
                "assistant",
                """\
Bye

now\
""",
            ),
        ]
    )
    assert example_turns("") == []
