"""SillyTavern's instruct and context templates, as presets that write the same prompts."""

import json
import re
from collections.abc import Mapping, Sequence

from bot.errors import PresetError, TemplateError
from bot.importers.string_template_extraction import extract_string_templates
from bot.prompting.cards.story_string import parse_story_string
from bot.prompting.presets.files import preset_from
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
_WHO_CHANGES = ("first_input_sequence", "last_input_sequence", "last_system_sequence")
_MACRO = re.compile(r"\{\{(\w+)[^{}]*\}\}")
_NAMES = {"none": "not_add", "force": "default", "always": "add"}
_CONTROL = re.compile(r"<[|/a-z]|\[/?(INST|SYSTEM)|<<", re.IGNORECASE)


def is_instruct(data: Json) -> bool:
    """Tell an instruct template by the two sequences that every one has."""
    return "input_sequence" in data and "output_sequence" in data


def is_context(data: Json) -> bool:
    """Tell a context template by its story_string."""
    return isinstance(data.get("story_string"), str)


def preset_from_instruct(
    data: Json, source: str, name: str | None = None
) -> tuple[Preset, list[str]]:
    """Give a preset whose prompts read as SillyTavern's, and what to say about it.

    Raises:
        PresetError: something in the template cannot be said here; the text names it.
    """
    read = JsonFields(data, source)
    texts = {key: read.text(key) for key in _SEQUENCES}
    for key, text in texts.items():
        if found := _MACRO.search(text):
            raise PresetError(
                f"{source}: {key}: the macro {found[0]} cannot stand in a template here; replace it"
                " by a fixed word"
            )
    for key in _WHO_CHANGES:
        if texts[key]:
            raise PresetError(f"{source}: {key} cannot be said here; empty it in SillyTavern")
    wrap = bool(data.get("wrap", True))
    jinja = _jinja(texts, wrap=wrap, same=bool(data.get("system_same_as_user")))
    found_roles = extract_string_templates(JinjaTemplate(jinja))
    exact = found_roles is not None and found_roles.exact and not texts["user_alignment_message"]
    preset = preset_from(
        {
            "name": name or _name(data, "instruct"),
            "provider": "local",
            "model": DEFAULT_MODEL,
            "system": read.text("system_prompt").strip() or None,
            "macros": True,
            "user_name_in_message": _names(data),
            "stop_sequences": _stops(texts, data),
            **(
                {"parameters": found_roles.templates}
                if exact and found_roles
                else {"template": jinja}
            ),
        },
        source,
    )
    remarks = ["it became string templates" if exact else "it became a Jinja template"]
    if data.get("activation_regex"):
        remarks.append("activation_regex is left out: a preset here says its model itself")
    return preset, remarks


def preset_from_context(
    data: Json, source: str, name: str | None = None
) -> tuple[Preset, list[str]]:
    """Give a preset whose system message is laid out as the `story_string` says.

    Raises:
        PresetError: the story_string uses what is unknown here; the text names it.
    """
    text, remarks = _without_control_tokens(JsonFields(data, source).text("story_string"))
    try:
        parse_story_string(text)
    except TemplateError as error:
        raise PresetError(f"{source}: {error}") from None
    preset = preset_from(
        {
            "name": name or _name(data, "context"),
            "provider": "local",
            "model": DEFAULT_MODEL,
            "story_string": text,
            "macros": True,
        },
        source,
    )
    return preset, remarks


def _jinja(texts: Mapping[str, str], *, wrap: bool, same: bool) -> str:
    """Write the template: each message between its sequences, and the last output's at the end."""
    break_ = "\n" if wrap else ""
    system = texts["input_sequence" if same else "system_sequence"]
    system_suffix = texts["input_suffix" if same else "system_suffix"] or break_
    first = texts["story_string_prefix"] or texts["system_sequence_prefix"]
    first_suffix = texts["story_string_suffix"] or texts["system_sequence_suffix"]
    if not first and not first_suffix:
        first, first_suffix = texts["system_sequence"], texts["system_suffix"] or break_
    user = _wrapped(texts["input_sequence"], break_), texts["input_suffix"] or break_
    answer = _wrapped(texts["output_sequence"], break_), texts["output_suffix"] or break_
    greeting = _wrapped(texts["first_output_sequence"] or texts["output_sequence"], break_)
    end = _wrapped(texts["last_output_sequence"] or texts["output_sequence"], break_)
    opening = texts["user_alignment_message"]
    align = (
        "{%- if message.role == 'assistant' and not ns.heard -%}"
        f"{{{{- {_quoted(user[0] + opening + user[1])} -}}}}"
        "{%- endif -%}"
        if opening
        else ""
    )
    return (
        "{%- set ns = namespace(heard=false) -%}"
        "{%- for message in messages -%}"
        + align
        + "{%- if message.role == 'system' and loop.first -%}"
        + _around((_wrapped(first, break_), first_suffix))
        + "{%- elif message.role == 'system' -%}"
        + _around((_wrapped(system, break_), system_suffix))
        + "{%- elif message.role == 'user' -%}"
        + _around(user)
        + "{%- elif not ns.heard -%}"
        + _around((greeting, answer[1]))
        + "{%- else -%}"
        + _around(answer)
        + "{%- endif -%}"
        + "{%- if message.role != 'system' -%}{%- set ns.heard = true -%}{%- endif -%}"
        + "{%- endfor -%}"
        + f"{{%- if add_generation_prompt -%}}{{{{- {_quoted(end)} -}}}}{{%- endif -%}}"
    )


def _wrapped(sequence: str, break_: str) -> str:
    """With `wrap`, a sequence that is there stands on a line of its own."""
    return sequence + break_ if sequence else ""


def _around(pair: tuple[str, str]) -> str:
    before, after = pair
    return f"{{{{- {_quoted(before)} -}}}}{{{{- message.content -}}}}{{{{- {_quoted(after)} -}}}}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _names(data: Json) -> str:
    behaviour = data.get("names_behavior")
    if isinstance(behaviour, str) and behaviour in _NAMES:
        return _NAMES[behaviour]
    if data.get("names"):
        return "add"
    return "default" if data.get("names_force_groups", True) else "not_add"


def _stops(texts: Mapping[str, str], data: Json) -> Sequence[str]:
    stops = [texts["stop_sequence"]]
    if data.get("sequences_as_stop_strings", True):
        stops.append(texts["input_sequence"])
    return list(dict.fromkeys(stop.strip() for stop in stops if stop.strip()))


def _without_control_tokens(text: str) -> tuple[str, list[str]]:
    """Take off what older files write around the story themselves: that is the template's work."""
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
    return kept, ["its control tokens are left out: the model's template writes them"]


def _name(data: Json, otherwise: str) -> str:
    name = data.get("name")
    return name if isinstance(name, str) and name else otherwise
