"""Convert SillyTavern's and KoboldCpp's instruct and context templates to preset keys."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from bot.errors import PresetError
from bot.prompting.text.jsonc import JsonFields

Json = Mapping[str, object]

_SEQUENCE_KEYS = (
    "input_sequence", "output_sequence", "system_sequence", "first_output_sequence",
    "last_output_sequence", "first_input_sequence", "last_input_sequence",
    "input_suffix", "output_suffix", "system_suffix", "system_sequence_prefix",
    "system_sequence_suffix", "story_string_prefix", "story_string_suffix", "stop_sequence",
    "user_alignment_message",
)  # fmt: skip
_MACRO = re.compile(r"\{\{([^\W\d]\w*)[^{}]*\}\}")
_NAME_MACROS = {"name", "user", "char"}
_TEXT_MACROS = {"newline": "\n", "noop": "", "trim": ""}
_NAMES_BEHAVIORS = {"none", "force", "always"}
_TAG_MODE_BY_BEHAVIOR = {"none": "not_add", "force": "default", "always": "add"}


def convert_instruct_template(data: Json) -> tuple[dict[str, object], list[str]]:
    """Convert a SillyTavern instruct template to preset keys and notes; raise `PresetError`."""
    fields = JsonFields(data)
    expands_macros = bool(data.get("macro", True))
    texts = {
        key: _expand_text_macros(fields.text(key), key) if expands_macros else fields.text(key)
        for key in _SEQUENCE_KEYS
    }
    builder = _InstructTemplateBuilder(texts, data, expands_macros=expands_macros)
    preset_keys: dict[str, object] = {
        "system": fields.text("system_prompt").strip() or None,
        "macros": True,
        "user_name_in_message": builder.tag_mode,
        "stop_sequences": _stop_sequences(texts, data),
        "template": builder.jinja_source,
        "names_in_template": builder.has_names,
    }
    ignored_keys = [key for key in ("activation_regex", "last_system_sequence") if data.get(key)]
    return preset_keys, [f"{key} is omitted" for key in ignored_keys]


# How SillyTavern writes messages, by position; the sequences replace the `$` variables.
_JINJA_LAYOUT = Template((Path(__file__).parent / "instruct.jinja").read_text("utf-8").rstrip("\n"))


class _InstructTemplateBuilder:
    """Builds a Jinja template from the sequences that come before and after messages."""

    def __init__(self, texts: Mapping[str, str], data: Json, *, expands_macros: bool) -> None:
        self._texts = texts
        self._newline = "\n" if data.get("wrap", True) else ""
        self._formats_system_as_user = bool(data.get("system_same_as_user"))
        self._names_behavior = _read_names_behavior(data)
        self._expands_macros = expands_macros
        self._uses_name_macros = expands_macros and any(
            _MACRO.search(text) for key, text in texts.items() if key != "stop_sequence"
        )
        # `force` means names in groups only, which Troupe's own tags provide.
        self.has_names = self._uses_name_macros or self._names_behavior == "always"

    @property
    def tag_mode(self) -> str:
        """The value of `user_name_in_message`, which is "add" if the template has name macros."""
        return "add" if self._uses_name_macros else _TAG_MODE_BY_BEHAVIOR[self._names_behavior]

    @property
    def jinja_source(self) -> str:
        texts, newline = self._texts, self._newline
        input_sequence, output_sequence = texts["input_sequence"], texts["output_sequence"]
        first_input_sequence = texts["first_input_sequence"] or input_sequence
        newest_input_sequence = texts["last_input_sequence"]
        first_output_sequence = texts["first_output_sequence"] or output_sequence
        system_kind = "input" if self._formats_system_as_user else "system"
        story_prefix = texts["story_string_prefix"] or texts["system_sequence_prefix"]
        story_suffix = texts["story_string_suffix"] or texts["system_sequence_suffix"]
        if not story_prefix and not story_suffix:
            story_prefix, story_suffix = texts["system_sequence"], texts["system_suffix"] or newline
        prefix, suffix = texts[f"{system_kind}_sequence"], texts[f"{system_kind}_suffix"] or newline
        return _JINJA_LAYOUT.substitute(
            alignment=self._alignment_message(first_input_sequence),
            story=self._message_template(story_prefix, story_suffix, "'System'"),
            narration=self._message_template(prefix, suffix, "(name or 'System')"),
            newest_or_none="loop.index0" if newest_input_sequence else "none",
            newest=self._turn_template(newest_input_sequence, "input"),
            first=self._turn_template(first_input_sequence, "input"),
            question=self._turn_template(input_sequence, "input"),
            first_answer=self._turn_template(first_output_sequence, "output"),
            answer=self._turn_template(output_sequence, "output"),
            opening=self._character_opening(),
        )

    def _alignment_message(self, first_input_sequence: str) -> str:
        """Return the user message to put before a conversation that the character started."""
        text = self._texts["user_alignment_message"]
        name = "(user or '')"
        prefix = self._jinja_expression(self._put_on_own_line(first_input_sequence), name)
        suffix = self._jinja_expression(self._texts["input_suffix"] or self._newline, name)
        label = self._name_label_expression(name)
        return _output_tag(prefix, label, _quote(text), suffix) if text else ""

    def _turn_template(self, sequence: str, kind: str) -> str:
        suffix = self._texts[f"{kind}_suffix"] or self._newline
        return self._message_template(sequence, suffix, "name", self._name_label_expression("name"))

    def _message_template(self, prefix: str, suffix: str, name: str, label: str = "") -> str:
        on_new_line = "true" if not self._newline or suffix.endswith("\n") else "false"
        return (
            _output_tag(self._jinja_expression(self._put_on_own_line(prefix), name), label)
            + "{{- message.content -}}"
            + _output_tag(self._jinja_expression(suffix, name))
            + f"{{%- set ns.on_new_line = {on_new_line} -%}}"
        )

    def _character_opening(self) -> str:
        """Return the output sequence, followed by the character's name if names are shown."""
        output, last = self._texts["output_sequence"], self._texts["last_output_sequence"]
        sequence, name = last or output, "(char or '')"
        newline = "{%- if not ns.on_new_line -%}{{- '\\n' -}}{%- endif -%}" if self._newline else ""
        nameless_sequence = self._put_on_own_line(sequence.rstrip() if self._newline else sequence)
        plain_tag = _output_tag(self._jinja_expression(nameless_sequence, name))
        label = self._name_label_expression(name, separator=":")
        if not label:
            return newline + plain_tag
        # SillyTavern does this for Mistral's sequences.
        space = output[-1:] if last and output[-1:].isspace() and not last[-1:].isspace() else ""
        tag = _output_tag(self._jinja_expression(sequence + self._newline + space, name), label)
        return (
            f"{newline}{{%- if {self._condition_for_names} -%}}{tag}{{%- else -%}}"
            f"{plain_tag}{{%- endif -%}}"
        )

    @property
    def _condition_for_names(self) -> str:
        """The Jinja condition for showing names; SillyTavern's `force` means only in groups."""
        return "char and is_group" if self._names_behavior == "force" else "char"

    def _name_label_expression(self, name: str, separator: str = ": ") -> str:
        """Return a Jinja expression for the speaker's name before a text, or "" without names."""
        if self._names_behavior == "none" or not self.has_names:
            return ""
        return f"({name} ~ {_quote(separator)} if {name} and {self._condition_for_names} else '')"

    def _put_on_own_line(self, sequence: str) -> str:
        return sequence + self._newline if sequence else ""

    def _jinja_expression(self, text: str, name: str) -> str:
        """Return a sequence as a Jinja expression, with variables for its macros."""
        if not self._expands_macros:
            return _quote(text)
        values = {"name": name, "char": "(char or '')", "user": "(user or '')"}
        if name == "name":  # a message's user is its author
            values["user"] = "(name if message.role == 'user' else (user or ''))"
        # Text, macro name, text, ...
        pieces = _MACRO.split(text)
        expressions = [
            values[part.lower()] if index % 2 else _quote(part) for index, part in enumerate(pieces)
        ]
        return " ~ ".join(part for part in expressions if part != '""')


def _read_names_behavior(data: Json) -> str:
    """Return when to show names: "none", "force" (in groups) or "always"; also read old flags."""
    names_behavior = data.get("names_behavior")
    if isinstance(names_behavior, str) and names_behavior in _NAMES_BEHAVIORS:
        return names_behavior
    if data.get("names"):
        return "always"
    return "force" if data.get("names_force_groups", True) else "none"


def _expand_text_macros(text: str, key: str) -> str:
    """Expand macros except those for names; raise `PresetError` for unknown macros."""

    def expand_macro(macro: re.Match[str]) -> str:
        name = macro[1].lower()
        if name in _NAME_MACROS:
            return macro[0]
        if name in _TEXT_MACROS:
            return _TEXT_MACROS[name]
        raise PresetError.translatable(
            "{where}: the macro {macro} is not supported in a template; replace"
            " it with a fixed word",
            where=key,
            macro=macro[0],
        )

    return _MACRO.sub(expand_macro, text)


def _output_tag(*expressions: str) -> str:
    parts = [each for each in expressions if each and each != '""']
    return f"{{{{- {' ~ '.join(parts)} -}}}}" if parts else ""


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _stop_sequences(texts: Mapping[str, str], data: Json) -> Sequence[str]:
    """Return the stop sequences, except for speaker names, which end an answer anyway."""
    stop_texts = [texts["stop_sequence"]]
    if data.get("sequences_as_stop_strings", True):
        stop_texts.append(texts["input_sequence"].strip().partition("\n")[0])
    stripped_texts = (stop.strip() for stop in stop_texts if not _MACRO.search(stop))
    return list(dict.fromkeys(stop for stop in stripped_texts if stop))


_CONTROL_TOKEN = re.compile(r"<[|/a-z]|\[/?(INST|SYSTEM)|<<", re.IGNORECASE)


def convert_context_template(data: Json) -> tuple[dict[str, object], list[str]]:
    fields = JsonFields(data)
    notes = [
        f"{key} is omitted: a template has its own separators between messages"
        for key in ("chat_start", "example_separator")
        if fields.text(key).strip()
    ]
    story_string = _without_control_tokens(fields.text("story_string"))
    return {"story_string": story_string, "macros": True}, notes


def convert_system_prompt(data: Json) -> tuple[dict[str, object], list[str]]:
    fields = JsonFields(data)
    keys: dict[str, object] = {
        "system": fields.text("content").strip() or None,
        "post_history_instructions": fields.text("post_history").strip() or None,
        "macros": True,
    }
    return keys, []


def _without_control_tokens(text: str) -> str:
    """Remove control tokens around the story; older files have them, but the template adds them."""
    story_start, story_end = text.find("{{"), text.rfind("}}") + 2
    if story_start < 0:
        return text
    head, story, tail = text[:story_start], text[story_start:story_end], text[story_end:]
    head, tail = ("" if _CONTROL_TOKEN.search(part) else part for part in (head, tail))
    return head + story + tail


_ALPACA_START_TEXTS = {
    "system": "\n### Instruction:\n",
    "user": "\n### Instruction:\n",
    "assistant": "\n### Response:\n",
}


def convert_koboldcpp_adapter(data: Json) -> tuple[dict[str, object], list[str]]:
    """Convert a KoboldCpp adapter to preset keys and notes; missing texts are Alpaca's."""
    fields = JsonFields(data)
    prefixes = {
        role: default if data.get(f"{role}_start") is None else fields.text(f"{role}_start")
        for role, default in _ALPACA_START_TEXTS.items()
    }
    suffixes = {role: fields.text(f"{role}_end") for role in prefixes}
    opening_text = fields.text("assistant_gen") or prefixes["assistant"]
    role_blocks = "".join(
        f"{{%- {'if' if role == 'system' else 'elif'} message.role == '{role}' -%}}"
        + _output_tag(_quote(start), "message.content", _quote(suffixes[role]))
        for role, start in prefixes.items()
    )
    template = (
        f"{{%- for message in messages -%}}{role_blocks}{{%- endif -%}}{{%- endfor -%}}"
        f"{{%- if add_generation_prompt -%}}{_output_tag(_quote(opening_text))}{{%- endif -%}}"
    )
    stops = (each.strip().partition("\n")[0] for each in (suffixes["assistant"], prefixes["user"]))
    keys: dict[str, object] = {
        "stop_sequences": list(dict.fromkeys(each for each in stops if each)),
        "template": template,
    }
    notes = ["the texts around tools are omitted"] if fields.text("tools_start") else []
    return keys, notes
