"""Test decide(): what happens to a message."""

import pytest

from bot.chat.command import Command
from bot.chat.incoming import WakeReason
from bot.prompting.presets.preset import Preset
from bot.routing.active_presets import ActiveCharacters, ActivePreset
from bot.routing.command_specs import COMMANDS, parse
from bot.routing.decide import Answer, Decision, Ignore, Observe, decide
from tests.samples import make_incoming


def preset(**given: object) -> Preset:
    return Preset.model_validate({"name": "nora", "provider": "p", "model": "m", **given})


def decided(text: str, wake: WakeReason | None, *presets: Preset, dice: float = 0.5) -> Decision:
    active = ActiveCharacters(tuple(ActivePreset(one, None, None) for one in presets))
    message = make_incoming(text, wake=wake)
    return decide(message, active, (), dice=lambda: dice, now=message.at)


def outcome(
    text: str, wake: WakeReason | None, *presets: Preset, dice: float = 0.5
) -> type[Decision]:
    return type(decided(text, wake, *presets, dice=dice))


@pytest.mark.parametrize("wake", [WakeReason.DM, WakeReason.MENTION, WakeReason.REPLY])
def test_message_to_the_bot_is_answered(wake: WakeReason) -> None:
    assert outcome("hello", wake, preset()) is Answer


def test_message_to_others_is_ignored_or_observed() -> None:
    assert outcome("hello", None, preset()) is Ignore
    assert outcome("hello", None, preset(context="all")) is Observe


def test_preset_wakes_by_words_always_or_by_chance() -> None:
    assert outcome("Hey NORA!", None, preset(wake={"words": ["nora"]})) is Answer
    assert outcome("hello", None, preset(wake={"always": True})) is Answer
    assert outcome("hello", None, preset(wake={"chance": 0.6}), dice=0.5) is Answer
    assert outcome("hello", None, preset(wake={"chance": 0.4}), dice=0.5) is Ignore


def test_preset_can_refuse_to_wake_by_reply() -> None:
    assert outcome("hello", WakeReason.REPLY, preset(wake={"reply": False})) is Ignore


def test_command_that_is_not_addressed_to_the_bot_is_ignored() -> None:
    assert outcome("/new", None, preset()) is Ignore
    assert decided("/new", WakeReason.COMMAND, preset()) == Command("new")


def test_blank_message_is_ignored() -> None:
    assert outcome("  ", WakeReason.DM, preset()) is Ignore


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/preset use Nova Prime ", Command("preset", "use", "Nova Prime")),
        ("/preset", Command("preset", None, "")),
        ("/NEW", Command("new", None, "")),
        ("/unknown thing", Command("unknown", None, "thing")),
        ("/ new", None),
        ("/", None),
        ("// comment", None),
        ("hello /new", None),
    ],
)
def test_parse_reads_name_action_and_argument(text: str, command: Command | None) -> None:
    assert parse(text) == command


def test_every_command_spec_is_parsed_under_its_name() -> None:
    assert [command.name for spec in COMMANDS if (command := parse(f"/{spec.name}"))] == [
        spec.name for spec in COMMANDS
    ]


def test_ask_is_a_command_unless_a_preset_has_a_form() -> None:
    filled = preset(prompter={"kind": "chat", "instruction": "In {language}."})
    for line in ("/ask hi", "/ASK\nlanguage: Latin", "/ask@nora_bot language: Latin"):
        assert outcome(line, WakeReason.DM, filled) is Answer
    assert decided("/ask hi", WakeReason.DM, preset()) == Command("ask", None, "hi")
    assert decided("/asking", WakeReason.DM, filled) == Command("asking", None, "")
    assert decided("/help", WakeReason.DM, filled) == Command("help", None, "")
    assert "ask" not in [spec.name for spec in COMMANDS]


def test_answer_carries_the_speakers_in_order_and_the_reasons_of_all() -> None:
    nora, marlowe, lan = preset(), preset(name="marlowe"), preset(name="lan")
    decision = decided("lan? nora?", WakeReason.DM, nora, marlowe, lan)
    assert isinstance(decision, Answer)
    assert [one.preset.name for one in decision.speakers] == ["lan", "nora"]
    assert [(one.preset, one.chosen) for one in decision.candidates] == [
        ("lan", True),
        ("nora", True),
        ("marlowe", False),
    ]


def test_message_that_nobody_answers_carries_the_reasons_of_all() -> None:
    decision = decided("hello", None, preset(context="all"), preset(name="marlowe"))
    assert isinstance(decision, Observe)
    assert {one.reasons for one in decision.candidates} == {("was not addressed",)}
