"""Files of SillyTavern give the prompts that SillyTavern makes of them."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bot.importers.card import read_card
from bot.importers.card_to_preset import card_notes, preset_from_card
from bot.importers.preset_files import ImportedPreset, preset_from_text
from bot.importers.unsupported import unsupported_features
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


def imported(*prompts: Any, into: Preset | None = None, **settings: Any) -> ImportedPreset:
    """Import a chat-completion preset; a text among the prompts is a marker."""
    rows = [{"identifier": one, "marker": True} if isinstance(one, str) else one for one in prompts]
    rows = [{"identifier": f"p{number}", **row} for number, row in enumerate(rows)]
    order = [{"identifier": row["identifier"], "enabled": row.pop("on", True)} for row in rows]
    data = {"prompts": rows, "prompt_order": [{"character_id": 100001, "order": order}], **settings}
    return preset_from_text(json.dumps(data), Path("order.json"), into=into)


def messages(*prompts: Any, into: Preset | None = None, **settings: Any) -> list[tuple[str, str]]:
    """Return the prompt of a message after a question and its answer, as (role, text)."""
    preset = imported(*prompts, into=into, **settings).preset
    return shown(draft(parse_preset(export_preset(preset), "order.json"), "Now?", TALK))


def test_markers_keep_their_place() -> None:
    lore = [
        {"keys": ["now"], "content": "LORE1", "position": "before_char", "use_regex": True},
        {"keys": ["now"], "content": "LORE2", "position": "after_char"},
    ]
    aria = card(
        personality="sly",
        scenario="A tavern.",
        mes_example="<START>\n{{user}}: Hi\n{{char}}: Yo",
        character_book={"entries": lore},
    )
    made = messages(
        {"content": "<world>"}, "worldInfoBefore", "charDescription", {"content": "</world>"},
        MAIN, "scenario", "dialogueExamples", "charPersonality", "worldInfoAfter", "chatHistory",
        {"content": "END"},
        into=aria, personality_format="[{{char}} is {{personality}}]", wi_format="({0})",
    )  # fmt: skip

    assert made == [
        ("system", "<world>\n\n(LORE1)\n\nA rogue.\n\n</world>\n\nMAIN\n\nA tavern."),
        ("user", "Hi"),
        ("assistant", "Yo"),
        ("system", "[Aria is sly]\n\n(LORE2)"),
        ("user", "One?"),
        ("assistant", "Two."),
        ("user", "Now?"),
        ("system", "END"),
    ]


def test_prompts_in_the_chat_are_sorted_by_depth_then_order_then_role() -> None:
    def inside(content: str, depth: int, order: int = 100, role: str = "system") -> dict[str, Any]:
        place = {"injection_position": 1, "injection_depth": depth, "injection_order": order}
        return {"content": content, "role": role, **place}

    made = messages(
        inside("LAST", 0, 200), inside("S", 0), inside("U", 0, role="user"), inside("T", 0),
        inside("A", 0, role="assistant"), inside("ONE", 1), inside("DEEP", 99, role="user"),
        MAIN, "chatHistory", {"content": "AFTER", "role": "user"},
        {"content": "SWIPE", "injection_trigger": ["swipe"]},
    )  # fmt: skip

    assert made == [
        ("system", "MAIN"),
        ("user", "DEEP"),
        ("user", "One?"),
        ("assistant", "Two."),
        ("system", "ONE"),
        ("user", "Now?"),
        ("assistant", "A"),
        ("user", "U"),
        ("system", "S\nT"),
        ("system", "LAST"),
        ("user", "AFTER"),
    ]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_prompts_in_an_empty_chat_are_not_lost(depth: int) -> None:
    inside = {"content": "NOTE", "injection_position": 1, "injection_depth": depth}
    made = shown(draft(imported(MAIN, inside, "chatHistory").preset, "Now?"))

    note, newest = ("system", "NOTE"), ("user", "Now?")
    assert made == [("system", "MAIN"), *([newest, note] if depth == 0 else [note, newest])]


def test_assistants_prompt_behind_the_chat_is_the_beginning_of_the_answer() -> None:
    made = messages(MAIN, "chatHistory", {"content": "Sure:", "role": "assistant"})

    assert made[-2:] == [("user", "Now?"), ("assistant", "Sure:")]
    claude: dict[str, Any] = {"assistant_prefill": "Sure:", "chat_completion_source": "claude"}
    prefilled = messages(MAIN, "chatHistory", **claude)
    assert prefilled[-2:] == made[-2:]


def test_variables_of_a_prompt_are_known_to_those_behind_it() -> None:
    book = {"entries": [{"keys": ["now"], "content": "{{setvar::place::inn}}The {{.place}}."},
                        {"keys": ["never"], "content": "{{setvar::place::sea}}"}]}  # fmt: skip
    made = messages(
        {"content": "{{setvar::tense::past}}{{trim}}"},
        {"content": "{{setvar::tense::future}}", "on": False},
        {"content": "Write in {{getvar::tense}} at the {{getvar::place}}."},
        "worldInfoBefore",
        "chatHistory",
        {"content": "{{getvar::tense}} {{lastUserMessage}}"},
        into=card(character_book=book),
    )

    assert made[0] == ("system", "Write in past at the inn.\n\nThe inn.")
    assert made[-1] == ("system", "past Now?")


def test_fields_of_the_card_are_values_of_macros() -> None:
    aria = card(
        personality="sly, {{char}}",
        scenario="A tavern.",
        mes_example="<START>\n{{user}}: Hi\n{{char}}: Yo",
        first_mes="Hello.",
        creator_notes="By me.",
        extensions={"depth_prompt": {"prompt": "Deep.", "depth": 2}},
    )
    text = (
        "{{description}}|{{charPersonality}}|{{scenario}}|{{mesExamples}}|{{group}}|{{greeting}}"
        "|{{lastMessageId}}|{{lastCharMessage}}|{{creatorNotes}}|{{charDepthPrompt}}|{{notChar}}"
    )
    made = messages({"content": text}, "chatHistory", into=aria)

    assert made[0][1].split("|") == [
        "A rogue.", "sly, Aria", "A tavern.", "Alice: Hi\nAria: Yo", "Aria", "Hello.", "2", "Two.",
        "By me.", "Deep.", "Alice",
    ]  # fmt: skip


def test_cards_own_instructions_stand_in_for_the_main_prompt_and_the_jailbreak() -> None:
    aria = card(system_prompt="Own. {{original}}", post_history_instructions="Last.")
    jailbreak = {"identifier": "jailbreak", "content": "JB"}

    made = messages(MAIN, "chatHistory", jailbreak, into=aria)
    assert (made[0], made[-1]) == (("system", "Own. MAIN"), ("system", "Last."))
    fixed = messages({**MAIN, "forbid_overrides": True}, "chatHistory", jailbreak, into=card())
    assert (fixed[0], fixed[-1]) == (("system", "MAIN"), ("system", "JB"))


def test_limits_of_tokens_are_values_of_macros() -> None:
    text = {"content": "{{maxPrompt}} {{maxContextTokens}} {{maxResponse}}"}
    limits: dict[str, Any] = {"openai_max_context": 1000, "openai_max_tokens": 100}

    assert messages(text, "chatHistory", **limits)[0] == ("system", "900 1000 100")


def test_preset_that_is_no_card_keeps_its_instructions_as_the_persona() -> None:
    nova = Preset.model_validate(
        {"name": "Nova", "provider": "p", "model": "m", "system": "You are Nova."}
    )
    made = messages(MAIN, "charDescription", "chatHistory", into=nova)

    assert made[0] == ("system", "MAIN\n\nYou are Nova.")


def test_persona_of_the_user_stands_once_and_in_its_place() -> None:
    preset = imported(MAIN, "personaDescription", "chatHistory").preset
    made = shown(draft(preset, "Now?", personas={ALICE.id: "a tall knight"}))

    assert made == [("system", "MAIN\n\na tall knight"), ("user", "Now?")]


def test_macros_without_a_value_are_named_once() -> None:
    notes = imported(
        {"content": "{{lumiaDef}}{{setvar::a::{{sim}}}}"}, {"content": "{{sim}}"}
    ).notes

    assert [note for note in notes if "macros" in note] == [
        "macros that have no value here stay as they are written: {{lumiaDef}}, {{sim}}"
    ]
    bad = {"entries": [{"keys": ["/(/"], "content": "{{lumia::x}}"}, None]}
    assert len(unsupported_features(card(character_book=bad, first_mes="{{Lumia}}"))) == 3


def test_lore_that_only_similarity_would_find_is_named() -> None:
    entry = {"keys": [], "content": "LORE", "extensions": {"vectorized": True}}
    book = {"entries": [entry, {**entry, "keys": ["fox"]}, {**entry, "constant": True}]}

    [note] = unsupported_features(card(character_book=book))
    assert note.startswith("1 lorebook entries without keys are never used")


def test_lore_of_an_outlet_stands_where_the_macro_is() -> None:
    place = {"position": 7, "outlet_name": "facts"}
    book = {"entries": [{"keys": ["now"], "content": "LORE", "extensions": place}]}
    made = messages(
        {"content": "[{{outlet::facts}}]"}, "chatHistory", into=card(character_book=book)
    )

    assert made[0] == ("system", "[LORE]")


def test_unknown_names_of_a_story_string_are_macros() -> None:
    story = (
        "{{#if group}}[{{group}}] {{/if}}{{lumia}}{{#if lumia}}!{{/if}}"
        "{{#if scenario}}{{scenario}}{{/if}}{{char}}"
    )
    data = json.dumps({"name": "s", "story_string": story})
    made = preset_from_text(data, Path("s.json"), into=card(scenario="A tavern."))

    assert shown(draft(made.preset, "Now?"))[0] == ("system", "[Aria] {{lumia}}A tavern.Aria")
    assert made.notes == ["macros that have no value here stay as they are written: {{lumia}}"]


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
def test_script_of_a_card_changes_its_answers(given: dict[str, Any], shown_text: str) -> None:
    aria = card(extensions={"regex_scripts": [given]})
    answer = "Hi. <ledger>{1}</ledger> Bye b b."

    assert run_scripts(aria.regex_scripts, answer, MACROS.expand) == shown_text
    assert parse_preset(export_preset(aria), "aria.json") == aria


def test_scripts_that_cannot_be_run_and_extensions_are_named() -> None:
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
        "regular expression scripts that are not run: /(a{1000}){1000}/, /x/, /prompt/",
        "extensions of the card without effect here: tavern_helper",
    ]


def test_slow_script_ends_in_time() -> None:
    slow = [script("/(x+x+)+y/g", "-")] * 20
    aria = card(extensions={"regex_scripts": slow})
    begun = time.process_time()

    assert run_scripts(aria.regex_scripts, "x" * 5_000) == "x" * 5_000
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("said", [".x = 5", "$x++", "{{setvar::x::5}}", "description"])
def test_what_people_write_is_no_macro_in_a_condition(said: str) -> None:
    text = "{{if {{lastUserMessage}}}}said{{/if}} {{.x}}{{$x}}"
    made = shown(draft(imported("chatHistory", {"content": text}).preset, said))

    assert made[-1] == ("system", "said")
