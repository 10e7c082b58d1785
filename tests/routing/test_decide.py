"""What a message asks for."""

import pytest

from bot.chat.command import Command
from bot.chat.incoming import WakeReason
from bot.prompting.presets.preset import Preset
from bot.routing.command_specs import COMMANDS, parse
from bot.routing.decide import Answer, Decision, Ignore, Observe, decide
from tests.samples import incoming


def preset(**given: object) -> Preset:
    return Preset.model_validate({"name": "nora", "provider": "p", "model": "m", **given})


def decided(text: str, wake: WakeReason | None, who: Preset, dice: float = 0.5) -> Decision:
    return decide(incoming(text, wake=wake), who, lambda: dice)


@pytest.mark.parametrize("wake", [WakeReason.DM, WakeReason.MENTION, WakeReason.REPLY])
def test_what_is_said_to_the_bot_is_answered(wake: WakeReason) -> None:
    assert decided("hello", wake, preset()) == Answer()


def test_what_is_said_near_the_bot_is_ignored_or_overheard() -> None:
    assert decided("hello", None, preset()) == Ignore()
    assert decided("hello", None, preset(context="all")) == Observe()


def test_a_preset_can_wake_by_words_always_or_by_chance() -> None:
    assert decided("Hey NORA!", None, preset(wake={"words": ["nora"]})) == Answer()
    assert decided("hello", None, preset(wake={"always": True})) == Answer()
    assert decided("hello", None, preset(wake={"chance": 0.6}), dice=0.5) == Answer()
    assert decided("hello", None, preset(wake={"chance": 0.4}), dice=0.5) == Ignore()


def test_a_preset_can_refuse_to_wake_by_reply() -> None:
    assert decided("hello", WakeReason.REPLY, preset(wake={"reply": False})) == Ignore()


def test_a_command_near_the_bot_is_for_somebody_else() -> None:
    assert decided("/new", None, preset()) == Ignore()
    assert decided("/new", WakeReason.COMMAND, preset()) == Command("new")


def test_nothing_said_is_nothing_asked() -> None:
    assert decided("  ", WakeReason.DM, preset()) == Ignore()


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
def test_a_line_becomes_a_command(text: str, command: Command | None) -> None:
    assert parse(text) == command


def test_every_command_that_is_offered_is_parsed_under_its_name() -> None:
    assert [command.name for spec in COMMANDS if (command := parse(f"/{spec.name}"))] == [
        spec.name for spec in COMMANDS
    ]


def test_ask_is_for_presets_with_slots_to_fill() -> None:
    filled = preset(prompter={"kind": "chat", "instruction": "In {language}."})
    for line in ("/ask hi", "/ASK\nlanguage: Latin", "/ask@nora_bot language: Latin"):
        assert decided(line, WakeReason.DM, filled) == Answer()
    assert decided("/ask hi", WakeReason.DM, preset()) == Command("ask", None, "hi")
    assert decided("/asking", WakeReason.DM, filled) == Command("asking", None, "")
    assert decided("/help", WakeReason.DM, filled) == Command("help", None, "")
    assert "ask" not in [spec.name for spec in COMMANDS]
