"""Files from SillyTavern give the same prompts as in SillyTavern."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bot.importers.card import read_card
from bot.importers.card_to_preset import card_notes, preset_from_card
from bot.importers.preset_files import ImportedPreset, preset_from_text
from bot.importers.sillytavern_settings import ignored_content_notes
from bot.prompting.macros import Macros
from bot.prompting.presets.files import export_preset, parse_preset
from bot.prompting.presets.preset import Preset
from bot.prompting.presets.regex_scripts import run_scripts
from tests.prompting.samples import draft, history, shown
from tests.samples import ALICE

TABLES = json.loads((Path(__file__).parent / "prompt_order.json").read_text("utf-8"))
TALK = history("One?", "Two.")
MACROS = Macros("Aria", "Alice", datetime(2026, 11, 21, tzinfo=UTC))
MAIN = {"identifier": "main", "content": "MAIN"}


def card(**fields: Any) -> Preset:
    data = {"name": "Aria", "description": "A rogue.", **fields}
    content = {"spec": "chara_card_v3", "spec_version": "3.0", "data": data}
    return preset_from_card(read_card(json.dumps(content).encode(), "aria.json"), "aria.json")


def import_data(*prompts: Any, into: Preset | None = None, **settings: Any) -> ImportedPreset:
    """Import a chat-completion preset; a string in `prompts` is the name of a marker."""
    rows = [{"identifier": one, "marker": True} if isinstance(one, str) else one for one in prompts]
    rows = [{"identifier": f"p{number}", **row} for number, row in enumerate(rows)]
    order = [{"identifier": row["identifier"], "enabled": row.pop("on", True)} for row in rows]
    data = {"prompts": rows, "prompt_order": [{"character_id": 100001, "order": order}], **settings}
    return preset_from_text(json.dumps(data), Path("order.json"), base=into)


def messages(*prompts: Any, into: Preset | None = None, **settings: Any) -> list[tuple[str, str]]:
    """Return the (role, text) pairs of a prompt with one earlier question and answer."""
    preset = import_data(*prompts, into=into, **settings).preset
    return shown(draft(parse_preset(export_preset(preset), "order.json"), "Now?", TALK))


@pytest.mark.parametrize("rule", TABLES["orders"])
def test_prompt_is_in_sillytaverns_order(rule: str) -> None:
    case = TABLES["orders"][rule]
    into = None if case["card"] is None else card(**case["card"])

    assert messages(*case["prompts"], into=into, **case["settings"]) == [*map(tuple, case["made"])]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_prompts_are_kept_if_the_chat_is_empty(depth: int) -> None:
    inside = {"content": "NOTE", "injection_position": 1, "injection_depth": depth}
    made = shown(draft(import_data(MAIN, inside, "chatHistory").preset, "Now?"))

    note, newest = ("system", "NOTE"), ("user", "Now?")
    assert made == [("system", "MAIN"), *([newest, note] if depth == 0 else [note, newest])]


def test_preset_without_a_card_keeps_its_instructions_as_the_persona() -> None:
    nova = Preset.model_validate(
        {"name": "Nova", "provider": "p", "model": "m", "system": "You are Nova."}
    )
    made = messages(MAIN, "charDescription", "chatHistory", into=nova)

    assert made[0] == ("system", "MAIN\n\nYou are Nova.")


def test_user_persona_appears_once_and_in_its_place() -> None:
    preset = import_data(MAIN, "personaDescription", "chatHistory").preset
    made = shown(draft(preset, "Now?", personas={ALICE.id: "a tall knight"}))

    assert made == [("system", "MAIN\n\na tall knight"), ("user", "Now?")]


def test_macros_without_a_value_are_reported_once() -> None:
    notes = import_data(
        {"content": "{{lumiaDef}}{{setvar::a::{{sim}}}}"}, {"content": "{{sim}}"}
    ).notes

    assert [note for note in notes if "macros" in note] == [
        "unsupported macros stay unchanged: {{lumiaDef}}, {{sim}}"
    ]
    bad = {"entries": [{"keys": ["/(/"], "content": "{{lumia::x}}"}, None]}
    assert len(ignored_content_notes(card(character_book=bad, first_mes="{{Lumia}}"))) == 3


def test_lore_found_only_by_similarity_is_reported() -> None:
    entry = {"keys": [], "content": "LORE", "extensions": {"vectorized": True}}
    book = {"entries": [entry, {**entry, "keys": ["fox"]}, {**entry, "constant": True}]}

    [note] = ignored_content_notes(card(character_book=book))
    assert note.startswith("1 lorebook entries without keys are never used")


def test_unknown_names_in_a_story_string_are_treated_as_macros() -> None:
    story = (
        "{{#if group}}[{{group}}] {{/if}}{{lumia}}{{#if lumia}}!{{/if}}"
        "{{#if scenario}}{{scenario}}{{/if}}{{char}}"
    )
    data = json.dumps({"name": "s", "story_string": story})
    made = preset_from_text(data, Path("s.json"), base=card(scenario="A tavern."))

    assert shown(draft(made.preset, "Now?"))[0] == ("system", "[Aria] {{lumia}}A tavern.Aria")
    assert made.notes == ["unsupported macros stay unchanged: {{lumia}}"]


@pytest.mark.parametrize(("key", "said"), TABLES["keys"])
@pytest.mark.parametrize("use_regex", [True, False])
def test_keys_are_plain_text_unless_written_as_a_regular_expression(
    key: str, said: str, *, use_regex: bool
) -> None:
    entry = {"keys": [key], "content": "LORE-X", "use_regex": use_regex, "extensions": {}}
    aria = card(character_book={"entries": [entry]})

    assert "LORE-X" in shown(draft(aria, said))[0][1]
    assert "LORE-X" not in shown(draft(aria, "the lamp"))[0][1]


def script(find: str, replace: str = "", **flags: Any) -> dict[str, Any]:
    script = {"scriptName": find, "findRegex": find, "replaceString": replace, "placement": [2]}
    return script | flags


@pytest.mark.parametrize(("given", "shown_text"), TABLES["scripts"])
def test_regex_script_of_a_card_changes_its_answers(given: dict[str, Any], shown_text: str) -> None:
    aria = card(extensions={"regex_scripts": [given]})
    answer = "Hi. <ledger>{1}</ledger> Bye b b."

    assert run_scripts(aria.regex_scripts, answer, MACROS.expand) == shown_text
    assert parse_preset(export_preset(aria), "aria.json") == aria


def test_unusable_scripts_and_extensions_are_reported() -> None:
    scripts = [
        script("/(a{1000}){1000}/"),
        script("/x/", "{{lumia}}"),
        script("/ok/"),
        script("/prompt/", promptOnly=True, placement=[1, 2]),
    ]
    content = {"name": "A", "extensions": {"regex_scripts": scripts, "tavern_helper": {}}}
    data = json.dumps({"spec": "chara_card_v3", "spec_version": "3.0", "data": content})
    given = read_card(data.encode(), "a.json")
    preset = preset_from_card(given, "a.json")

    assert [one.name for one in preset.regex_scripts] == ["/ok/"]
    assert card_notes(given, preset) == [
        "regular expression scripts that will not run: /(a{1000}){1000}/, /x/, /prompt/",
        "ignored extensions of the card: tavern_helper",
    ]


def test_slow_regex_script_is_stopped_in_time() -> None:
    slow = [script("/(x+x+)+y/g", "-")] * 20
    aria = card(extensions={"regex_scripts": slow})
    begun = time.process_time()

    assert run_scripts(aria.regex_scripts, "x" * 5_000) == "x" * 5_000
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("said", [".x = 5", "$x++", "{{setvar::x::5}}", "description"])
def test_text_from_people_is_not_a_macro_in_a_condition(said: str) -> None:
    text = "{{if {{lastUserMessage}}}}said{{/if}} {{.x}}{{$x}}"
    made = shown(draft(import_data("chatHistory", {"content": text}).preset, said))

    assert made[-1] == ("system", "said")
