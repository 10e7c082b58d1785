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
_NAMING_MODE_BY_BEHAVIOR = {"none": "not_add", "force": "default", "always": "add"}


def instruct_preset_keys(data: Json) -> tuple[dict[str, object], list[str]]:
    """Convert a SillyTavern instruct template to preset keys and notes; raises `PresetError`."""
    read = JsonFields(data)
    expands_macros = bool(data.get("macro", True))
    texts = {
        key: _expand_texts(read.text(key), key) if expands_macros else read.text(key)
        for key in _SEQUENCE_KEYS
    }
    builder = _InstructTemplateBuilder(texts, data, expands_macros=expands_macros)
    keys: dict[str, object] = {
        "system": read.text("system_prompt").strip() or None,
        "macros": True,
        "user_name_in_message": builder.naming_mode,
        "stop_sequences": _stop_sequences(texts, data),
        "template": builder.jinja,
        "names_in_template": builder.has_names,
    }
    ignored_keys = [key for key in ("activation_regex", "last_system_sequence") if data.get(key)]
    return keys, [f"{key} is omitted" for key in ignored_keys]


# How SillyTavern writes messages, by position; the sequences replace the `$` variables.
_JINJA_LAYOUT = Template((Path(__file__).parent / "instruct.jinja").read_text("utf-8").rstrip("\n"))


class _InstructTemplateBuilder:
    """Builds a Jinja template from the sequences that come before and after messages."""

    def __init__(self, texts: Mapping[str, str], data: Json, *, expands_macros: bool) -> None:
        self._texts = texts
        self._newline = "\n" if data.get("wrap", True) else ""
        self._narrates_as_user = bool(data.get("system_same_as_user"))
        self._behavior = _names_behavior(data)
        self._expands_macros = expands_macros
        self._uses_name_macros = expands_macros and any(
            _MACRO.search(text) for key, text in texts.items() if key != "stop_sequence"
        )
        # `force` means names in groups only, which Troupe's own tags provide.
        self.has_names = self._uses_name_macros or self._behavior == "always"

    @property
    def naming_mode(self) -> str:
        """The value of `user_name_in_message`, which is "add" if the template has name macros."""
        return "add" if self._uses_name_macros else _NAMING_MODE_BY_BEHAVIOR[self._behavior]

    @property
    def jinja(self) -> str:
        texts, newline = self._texts, self._newline
        user, answer = texts["input_sequence"], texts["output_sequence"]
        first_user, last_user = texts["first_input_sequence"] or user, texts["last_input_sequence"]
        first_answer = texts["first_output_sequence"] or answer
        narrator = "input" if self._narrates_as_user else "system"
        story = texts["story_string_prefix"] or texts["system_sequence_prefix"]
        after_story = texts["story_string_suffix"] or texts["system_sequence_suffix"]
        if not story and not after_story:
            story, after_story = texts["system_sequence"], texts["system_suffix"] or newline
        before, after = texts[f"{narrator}_sequence"], texts[f"{narrator}_suffix"] or newline
        return _JINJA_LAYOUT.substitute(
            alignment=self._alignment_message(first_user),
            story=self._message_template(story, after_story, "'System'"),
            narration=self._message_template(before, after, "(name or 'System')"),
            newest_or_none="loop.index0" if last_user else "none",
            newest=self._turn_template(last_user, "input"),
            first=self._turn_template(first_user, "input"),
            question=self._turn_template(user, "input"),
            first_answer=self._turn_template(first_answer, "output"),
            answer=self._turn_template(answer, "output"),
            opening=self._character_opening(),
        )

    def _alignment_message(self, sequence: str) -> str:
        """Return the user message to put before a conversation that the character started."""
        text = self._texts["user_alignment_message"]
        name = "(user or '')"
        before = self._jinja_expression(self._put_on_own_line(sequence), name)
        suffix = self._jinja_expression(self._texts["input_suffix"] or self._newline, name)
        shown_name = self._shown_name(name)
        return _output_tag(before, shown_name, _quote(text), suffix) if text else ""

    def _turn_template(self, sequence: str, kind: str) -> str:
        suffix = self._texts[f"{kind}_suffix"] or self._newline
        return self._message_template(sequence, suffix, "name", self._shown_name("name"))

    def _message_template(self, before: str, after: str, name: str, shown_name: str = "") -> str:
        on_new_line = "true" if not self._newline or after.endswith("\n") else "false"
        return (
            _output_tag(self._jinja_expression(self._put_on_own_line(before), name), shown_name)
            + "{{- message.content -}}"
            + _output_tag(self._jinja_expression(after, name))
            + f"{{%- set ns.on_new_line = {on_new_line} -%}}"
        )

    def _character_opening(self) -> str:
        """Return the output sequence, followed by the character's name if names are shown."""
        output, last = self._texts["output_sequence"], self._texts["last_output_sequence"]
        sequence, name = last or output, "(char or '')"
        newline = "{%- if not ns.on_new_line -%}{{- '\\n' -}}{%- endif -%}" if self._newline else ""
        nameless_sequence = self._put_on_own_line(sequence.rstrip() if self._newline else sequence)
        plain_tag = _output_tag(self._jinja_expression(nameless_sequence, name))
        label = self._shown_name(name, separator=":")
        if not label:
            return newline + plain_tag
        # SillyTavern does this for Mistral's sequences.
        space = output[-1:] if last and output[-1:].isspace() and not last[-1:].isspace() else ""
        tag = _output_tag(self._jinja_expression(sequence + self._newline + space, name), label)
        return (
            f"{newline}{{%- if {self._name_condition} -%}}{tag}{{%- else -%}}"
            f"{plain_tag}{{%- endif -%}}"
        )

    @property
    def _name_condition(self) -> str:
        """The Jinja condition for showing names; SillyTavern's `force` means only in groups."""
        return "char and is_group" if self._behavior == "force" else "char"

    def _shown_name(self, name: str, separator: str = ": ") -> str:
        """Return a Jinja expression for the speaker's name before a text, or "" without names."""
        if self._behavior == "none" or not self.has_names:
            return ""
        return f"({name} ~ {_quote(separator)} if {name} and {self._name_condition} else '')"

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
        parts = [
            values[part.lower()] if index % 2 else _quote(part) for index, part in enumerate(pieces)
        ]
        return " ~ ".join(part for part in parts if part != '""')


def _names_behavior(data: Json) -> str:
    """Return when to show names: "none", "force" (in groups) or "always"; also read old flags."""
    behavior = data.get("names_behavior")
    if isinstance(behavior, str) and behavior in _NAMES_BEHAVIORS:
        return behavior
    if data.get("names"):
        return "always"
    return "force" if data.get("names_force_groups", True) else "none"


def _expand_texts(text: str, key: str) -> str:
    """Expand macros except those for names; raises `PresetError` for unknown macros."""

    def expand(macro: re.Match[str]) -> str:
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

    return _MACRO.sub(expand, text)


def _output_tag(*expressions: str) -> str:
    parts = [each for each in expressions if each and each != '""']
    return f"{{{{- {' ~ '.join(parts)} -}}}}" if parts else ""


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _stop_sequences(texts: Mapping[str, str], data: Json) -> Sequence[str]:
    """Return the stop sequences, except for speaker names, which end an answer anyway."""
    stops = [texts["stop_sequence"]]
    if data.get("sequences_as_stop_strings", True):
        stops.append(texts["input_sequence"].strip().partition("\n")[0])
    stripped = (stop.strip() for stop in stops if not _MACRO.search(stop))
    return list(dict.fromkeys(stop for stop in stripped if stop))


_CONTROL_TOKEN = re.compile(r"<[|/a-z]|\[/?(INST|SYSTEM)|<<", re.IGNORECASE)


def context_preset_keys(data: Json) -> tuple[dict[str, object], list[str]]:
    read = JsonFields(data)
    notes = [
        f"{key} is omitted: a template has its own separators between messages"
        for key in ("chat_start", "example_separator")
        if read.text(key).strip()
    ]
    story = _without_control_tokens(read.text("story_string"))
    return {"story_string": story, "macros": True}, notes


def system_prompt_preset_keys(data: Json) -> tuple[dict[str, object], list[str]]:
    read = JsonFields(data)
    keys: dict[str, object] = {
        "system": read.text("content").strip() or None,
        "post_history_instructions": read.text("post_history").strip() or None,
        "macros": True,
    }
    return keys, []


def _without_control_tokens(text: str) -> str:
    """Remove control tokens around the story; older files have them, but the template adds them."""
    first, last = text.find("{{"), text.rfind("}}") + 2
    if first < 0:
        return text
    head, story, tail = text[:first], text[first:last], text[last:]
    head, tail = ("" if _CONTROL_TOKEN.search(part) else part for part in (head, tail))
    return head + story + tail


_DEFAULT_STARTS = {
    "system": "\n### Instruction:\n",
    "user": "\n### Instruction:\n",
    "assistant": "\n### Response:\n",
}


def adapter_preset_keys(data: Json) -> tuple[dict[str, object], list[str]]:
    """Convert a KoboldCpp adapter to preset keys and notes; missing texts are Alpaca's."""
    read = JsonFields(data)
    starts = {
        role: default if data.get(f"{role}_start") is None else read.text(f"{role}_start")
        for role, default in _DEFAULT_STARTS.items()
    }
    ends = {role: read.text(f"{role}_end") for role in starts}
    opening = read.text("assistant_gen") or starts["assistant"]
    blocks = "".join(
        f"{{%- {'if' if role == 'system' else 'elif'} message.role == '{role}' -%}}"
        + _output_tag(_quote(start), "message.content", _quote(ends[role]))
        for role, start in starts.items()
    )
    jinja = (
        f"{{%- for message in messages -%}}{blocks}{{%- endif -%}}{{%- endfor -%}}"
        f"{{%- if add_generation_prompt -%}}{_output_tag(_quote(opening))}{{%- endif -%}}"
    )
    stops = (each.strip().partition("\n")[0] for each in (ends["assistant"], starts["user"]))
    keys: dict[str, object] = {
        "stop_sequences": list(dict.fromkeys(each for each in stops if each)),
        "template": jinja,
    }
    notes = ["the texts around tools are omitted"] if read.text("tools_start") else []
    return keys, notes
