"""Import SillyTavern's instruct and context templates as presets that render the same prompts."""

import json
import re
from collections.abc import Mapping, Sequence

from bot.errors import PresetError, TemplateError
from bot.importers.string_template_extraction import extract_string_templates
from bot.prompting.cards.story_string import parse_story_string
from bot.prompting.presets.files import validate_preset
from bot.prompting.presets.preset import DEFAULT_MODEL, Preset
from bot.prompting.text.json_fields import JsonFields
from bot.templates import JinjaTemplate

Json = Mapping[str, object]

_SEQUENCES = (
    "input_sequence", "output_sequence", "system_sequence", "first_output_sequence",
    "last_output_sequence", "first_input_sequence", "last_input_sequence", "last_system_sequence",
    "input_suffix", "output_suffix", "system_suffix", "system_sequence_prefix",
    "system_sequence_suffix", "story_string_prefix", "story_string_suffix", "stop_sequence",
    "user_alignment_message",
)  # fmt: skip
_UNSUPPORTED = ("first_input_sequence", "last_input_sequence", "last_system_sequence")
_MACRO = re.compile(r"\{\{(\w+)[^{}]*\}\}")
_NAME_MODES = {"none": "not_add", "force": "default", "always": "add"}
_CONTROL = re.compile(r"<[|/a-z]|\[/?(INST|SYSTEM)|<<", re.IGNORECASE)


def is_instruct(data: Json) -> bool:
    """Tell whether this is an instruct template, by the two sequences that each of them has."""
    return "input_sequence" in data and "output_sequence" in data


def is_context(data: Json) -> bool:
    """Tell whether this is a context template, by its `story_string`."""
    return isinstance(data.get("story_string"), str)


def preset_from_instruct(
    data: Json, source: str, name: str | None = None
) -> tuple[Preset, list[str]]:
    """Convert an instruct template to a preset that renders SillyTavern's prompts, and notes.

    Raises:
        PresetError: the template uses something that presets do not support; the text names it.
    """
    read = JsonFields(data, source)
    texts = {key: read.text(key) for key in _SEQUENCES}
    for key, text in texts.items():
        if found := _MACRO.search(text):
            raise PresetError(
                f"{source}: {key}: the macro {found[0]} is not supported in a template; replace it"
                " with a fixed word"
            )
    for key in _UNSUPPORTED:
        if texts[key]:
            raise PresetError(f"{source}: {key} is not supported; empty it in SillyTavern")
    wrap = bool(data.get("wrap", True))
    jinja = _jinja(texts, wrap=wrap, same=bool(data.get("system_same_as_user")))
    extracted = extract_string_templates(JinjaTemplate(jinja))
    exact = extracted is not None and extracted.exact and not texts["user_alignment_message"]
    preset = validate_preset(
        {
            "name": name or _template_name(data, "instruct"),
            "provider": "local",
            "model": DEFAULT_MODEL,
            "system": read.text("system_prompt").strip() or None,
            "macros": True,
            "user_name_in_message": _name_mode(data),
            "stop_sequences": _stop_sequences(texts, data),
            **({"parameters": extracted.templates} if exact and extracted else {"template": jinja}),
        },
        source,
    )
    notes = ["converted to string templates" if exact else "converted to a Jinja template"]
    if data.get("activation_regex"):
        notes.append("activation_regex is left out: a preset names its model itself")
    return preset, notes


def preset_from_context(
    data: Json, source: str, name: str | None = None
) -> tuple[Preset, list[str]]:
    """Convert a context template to a preset with this `story_string`, and notes.

    Raises:
        PresetError: the `story_string` uses something that is not supported; the text names it.
    """
    text, notes = _without_control_tokens(JsonFields(data, source).text("story_string"))
    try:
        parse_story_string(text)
    except TemplateError as error:
        raise PresetError(f"{source}: {error}") from None
    preset = validate_preset(
        {
            "name": name or _template_name(data, "context"),
            "provider": "local",
            "model": DEFAULT_MODEL,
            "story_string": text,
            "macros": True,
        },
        source,
    )
    return preset, notes


def _jinja(texts: Mapping[str, str], *, wrap: bool, same: bool) -> str:
    """Write the Jinja template: each message between its sequences, then the output sequence."""
    newline = "\n" if wrap else ""
    system = texts["input_sequence" if same else "system_sequence"]
    system_suffix = texts["input_suffix" if same else "system_suffix"] or newline
    first = texts["story_string_prefix"] or texts["system_sequence_prefix"]
    first_suffix = texts["story_string_suffix"] or texts["system_sequence_suffix"]
    if not first and not first_suffix:
        first, first_suffix = texts["system_sequence"], texts["system_suffix"] or newline
    user = _on_own_line(texts["input_sequence"], newline), texts["input_suffix"] or newline
    answer = _on_own_line(texts["output_sequence"], newline), texts["output_suffix"] or newline
    greeting = _on_own_line(texts["first_output_sequence"] or texts["output_sequence"], newline)
    end = _on_own_line(texts["last_output_sequence"] or texts["output_sequence"], newline)
    opening = texts["user_alignment_message"]
    align = (
        "{%- if message.role == 'assistant' and not ns.has_turns -%}"
        f"{{{{- {_quoted(user[0] + opening + user[1])} -}}}}"
        "{%- endif -%}"
        if opening
        else ""
    )
    return (
        "{%- set ns = namespace(has_turns=false) -%}"
        "{%- for message in messages -%}"
        + align
        + "{%- if message.role == 'system' and loop.first -%}"
        + _render_between((_on_own_line(first, newline), first_suffix))
        + "{%- elif message.role == 'system' -%}"
        + _render_between((_on_own_line(system, newline), system_suffix))
        + "{%- elif message.role == 'user' -%}"
        + _render_between(user)
        + "{%- elif not ns.has_turns -%}"
        + _render_between((greeting, answer[1]))
        + "{%- else -%}"
        + _render_between(answer)
        + "{%- endif -%}"
        + "{%- if message.role != 'system' -%}{%- set ns.has_turns = true -%}{%- endif -%}"
        + "{%- endfor -%}"
        + f"{{%- if add_generation_prompt -%}}{{{{- {_quoted(end)} -}}}}{{%- endif -%}}"
    )


def _on_own_line(sequence: str, newline: str) -> str:
    """Put a sequence that is not empty on a line of its own, if `wrap` is set."""
    return sequence + newline if sequence else ""


def _render_between(pair: tuple[str, str]) -> str:
    before, after = pair
    return f"{{{{- {_quoted(before)} -}}}}{{{{- message.content -}}}}{{{{- {_quoted(after)} -}}}}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _name_mode(data: Json) -> str:
    behavior = data.get("names_behavior")
    if isinstance(behavior, str) and behavior in _NAME_MODES:
        return _NAME_MODES[behavior]
    if data.get("names"):
        return "add"
    return "default" if data.get("names_force_groups", True) else "not_add"


def _stop_sequences(texts: Mapping[str, str], data: Json) -> Sequence[str]:
    stops = [texts["stop_sequence"]]
    if data.get("sequences_as_stop_strings", True):
        stops.append(texts["input_sequence"])
    return list(dict.fromkeys(stop.strip() for stop in stops if stop.strip()))


def _without_control_tokens(text: str) -> tuple[str, list[str]]:
    """Remove control tokens around the story, which older files hold; the template writes them."""
    first, last = text.find("{{"), text.rfind("}}")
    if first < 0:
        return text, []
    head, tail = text[:first], text[last + 2 :]
    kept = text
    if _CONTROL.search(tail):
        kept = kept[: last + 2]
    if _CONTROL.search(head):
        kept = kept[first:]
    if kept == text:
        return text, []
    return kept, ["control tokens are left out: the model's template writes them"]


def _template_name(data: Json, default: str) -> str:
    name = data.get("name")
    return name if isinstance(name, str) and name else default
