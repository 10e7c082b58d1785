"""The form of a preset is generated from the schema, and its values go into the JSON."""

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bot.backends.anthropic import wire as anthropic
from bot.console.pages import PageRenderer
from bot.console.presets.form import (
    KEYS_NOT_IN_FORM,
    apply_form,
    list_field_specs,
    list_keys_without_field,
    make_form_fields,
    narrow_range,
)
from bot.console.presets.lorebook_entries import make_entry_form
from bot.prompting.presets.preset import Preset

PRESET: dict[str, object] = {
    "name": "nora",
    "provider": "echo",
    "model": "m",
    "description": "two\nlines",
    "max_input_tokens": None,
    "stop_sequences": ["###", "\n\n", "\\n"],
    "alternate_greetings": ["The kettle is on.\nSit.", "Come in."],
    "parameters": {"temperature": 0.30000000000000004, "logit_bias": {"5": 1}},
    "wake": {"chance": 1},
    "busy": "queue",
    "lorebook": {"entries": []},
    "unknown": 7,
}


def untouched_fields(value: dict[str, object]) -> dict[str, str]:
    """Return the fields that a browser sends if nothing in the form is changed."""
    fields = {}
    for name, one in make_form_fields(value).items():
        for number, text in enumerate(one.texts):
            sent_as = f"{name}.{number}" if one.spec.kind == "texts" else name
            fields[sent_as] = re.sub(r"\r\n?|\n", "\r\n", text)
    return fields


def test_every_label_and_group_belongs_to_a_key_of_the_schema() -> None:
    template = PageRenderer(())._environment.get_template("presets/labels.html")
    shown: Any = template.make_module({"_": str})
    fields = make_form_fields(PRESET).keys()
    entry = make_entry_form({"entries": [{}]}, 1)
    assert entry is not None
    assert {name for _, group in shown.groups for name in group} <= fields
    assert shown.labels.keys() <= {*fields, *(one.label for one in entry.fields)}
    assert {choice for one in entry.fields for choice in one.spec.choices} <= shown.choices.keys()


def test_every_preset_key_has_a_field_or_is_listed_as_missing() -> None:
    everything = dict.fromkeys(Preset.model_fields, None)
    shown = {one.path[0] for one in list_field_specs()}
    assert {*shown, *list_keys_without_field(everything), "name", "version"} == everything.keys()
    assert {"messages", "lorebook", "fallbacks"} <= set(list_keys_without_field(everything))
    assert "parameters.n" in KEYS_NOT_IN_FORM


def test_untouched_form_changes_nothing() -> None:
    assert apply_form(PRESET, untouched_fields(PRESET)) == PRESET


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "persona": st.text(),
            "greeting": st.none() | st.text(),
            "alternate_greetings": st.lists(st.text(), max_size=3),
            "stop_sequences": st.lists(st.text(), max_size=3),
            "parameters": st.fixed_dictionaries(
                {}, optional={"temperature": st.floats(allow_nan=False), "top_k": st.integers()}
            ),
            "stream": st.booleans(),
            "wake": st.fixed_dictionaries({}, optional={"always": st.booleans()}) | st.integers(),
        },
    )
)
def test_untouched_form_of_any_preset_changes_nothing(value: dict[str, object]) -> None:
    fields = {
        name: text.replace("\r\n", "\n").replace("\r", "\n")
        for name, text in untouched_fields(value).items()
    }
    assert apply_form(value, fields) == value


def test_fields_are_converted_to_values_of_their_type() -> None:
    changed = apply_form(
        PRESET,
        {
            **untouched_fields(PRESET),
            "persona": "You mend\r\nclocks.",
            "parameters.temperature": "0.7",
            "max_output_tokens": "300",
            "stream": "false",
            "stop_sequences": "END\r\n\\n---\\n",
            "alternate_greetings.0": "",
            "alternate_greetings.2": "New.",
            "wake.chance": "",
            "busy.mode": "collect",
        },
    )
    assert "wake" not in changed
    assert changed["stop_sequences"] == ["END", "\n---\n"]
    assert changed["alternate_greetings"] == ["Come in.", "New."]
    assert changed["busy"] == {"mode": "collect"}
    assert (changed["persona"], changed["stream"]) == ("You mend\nclocks.", False)
    assert changed["max_output_tokens"] == 300
    assert changed["parameters"] == {"temperature": 0.7, "logit_bias": {"5": 1}}
    assert changed["unknown"] == 7


def test_invalid_numbers_are_left_for_validation() -> None:
    changed = apply_form({}, {"parameters.temperature": "warm", "cooldown_seconds": "1e999"})
    assert changed == {"parameters": {"temperature": "warm"}, "cooldown_seconds": "1e999"}


def test_schema_has_the_ranges_of_parameters() -> None:
    specs = {one.name: one for one in list_field_specs()}
    assert (specs["parameters.temperature"].minimum, specs["parameters.temperature"].maximum) == (
        0,
        5,
    )
    assert specs["parameters.top_k"].kind == "whole"


def test_sliders_end_at_the_highest_value_the_provider_accepts() -> None:
    def is_accepted(name: str, value: float) -> bool:
        return not anthropic.parameter_problems(None, {name: value})

    ends = {
        name: narrow_range(one, is_accepted).spec.maximum
        for name, one in make_form_fields({}).items()
        if name in {"parameters.temperature", "parameters.top_p", "parameters.min_p"}
    }
    assert ends == {"parameters.temperature": 1, "parameters.top_p": 1, "parameters.min_p": None}
