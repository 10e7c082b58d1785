"""The form for a preset: its fields follow from the JSON schema of presets."""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal, TypeAlias

from bot.prompting.presets.preset import Preset
from bot.value_class import value_class

LONG_TEXT_FIELDS = frozenset({
    "system", "persona", "personality", "scenario", "greeting", "post_history_instructions",
    "story_string", "template", "system_template", "user_template", "assistant_template",
})  # fmt: skip
KEYS_NOT_IN_FORM = frozenset({
    "name", "version",  # what the preset is, not how it answers
    "parameters.n", "parameters.best_of",  # Troupe asks for one answer
})  # fmt: skip

FieldKind: TypeAlias = Literal[
    "text", "long", "number", "whole", "choice", "flag", "lines", "texts"
]
"""The kind `lines` is a list of one-line texts; `texts` is a list of multi-line texts."""
_Schema: TypeAlias = Mapping[str, Any]
_CHARS_PER_ROW = 62
_MAX_TEXT_AREA_ROWS = 12


def value_at(value: object, path: Sequence[str]) -> object:
    """Return the value at a path of keys in JSON; None if missing."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def set_value_at(document: dict[str, Any], path: Sequence[str], new_value: object) -> None:
    """Put a value at a path of keys in JSON; None removes the key."""
    *outer_keys, key = path
    for outer_key in outer_keys:
        if not isinstance(document.get(outer_key), dict):
            if new_value is None:
                return
            document[outer_key] = {}
        document = document[outer_key]
    if new_value is None:
        document.pop(key, None)
    else:
        document[key] = new_value


@value_class
class FieldSpec:
    path: tuple[str, ...]
    kind: FieldKind
    default: object = None
    minimum: float | None = None
    maximum: float | None = None
    choices: Sequence[str] = ()

    @property
    def name(self) -> str:
        return ".".join(self.path)


@value_class
class FormField:
    spec: FieldSpec
    label: str
    """The key of its label in templates/presets/labels.html."""
    texts: Sequence[str]
    """The texts in the field: several if its kind is `texts`, otherwise one."""

    @property
    def is_long(self) -> bool:
        is_text = self.spec.kind == "text" and "\n" in self.texts[0]
        return is_text or self.spec.kind in {"long", "lines"}

    def count_rows(self, text: str) -> int:
        lines = sum(1 + len(line) // _CHARS_PER_ROW for line in text.split("\n"))
        return max(1 if self.spec.kind == "texts" else 2, min(_MAX_TEXT_AREA_ROWS, lines))

    @property
    def default_text(self) -> str:
        return value_to_texts(self.spec, self.spec.default)[0]


def make_form_fields(value: Mapping[str, object]) -> Mapping[str, FormField]:
    return {
        spec.name: FormField(spec, spec.name, value_to_texts(spec, value_at(value, spec.path)))
        for spec in list_field_specs()
    }


def narrow_range(field: FormField, is_accepted: Callable[[str, float], bool]) -> FormField:
    """Lower a sampling parameter's maximum to the highest hundredth that its provider accepts."""
    spec = field.spec
    if spec.path[0] != "parameters" or spec.kind != "number" or spec.maximum is None:
        return field
    steps = range(round(100 * (spec.minimum or 0)), round(100 * spec.maximum) + 1)
    at = bisect_left(steps, True, key=lambda step: not is_accepted(spec.path[1], step / 100))
    return replace(field, spec=replace(spec, maximum=steps[at - 1] / 100 if at else None))


def list_keys_without_field(value: Mapping[str, object]) -> list[str]:
    known_keys = {one.path[0] for one in list_field_specs()} | KEYS_NOT_IN_FORM
    return [key for key in value if key not in known_keys]


@cache
def list_field_specs() -> tuple[FieldSpec, ...]:
    schema = Preset.model_json_schema()
    return tuple(_collect_specs(schema, schema.get("$defs", {}), ()))


def _collect_specs(schema: _Schema, defs: _Schema, path: tuple[str, ...]) -> Iterator[FieldSpec]:
    for key, spec in schema["properties"].items():
        inner_path = (*path, key)
        if ".".join(inner_path) in KEYS_NOT_IN_FORM:
            continue
        one = _resolve_schema(spec, defs)
        if "properties" in one and not path:
            yield from _collect_specs(one, defs, inner_path)
        elif (kind := _choose_field_kind(one, inner_path)) is not None:
            minimum, maximum, choices = one.get("minimum"), one.get("maximum"), one.get("enum", ())
            yield FieldSpec(inner_path, kind, spec.get("default"), minimum, maximum, tuple(choices))


def _resolve_schema(schema: _Schema, definitions: _Schema) -> _Schema:
    """Return the schema that a reference or an optional value stands for."""
    if "$ref" in schema:
        definition: _Schema = definitions[schema["$ref"].rpartition("/")[2]]
        return definition
    alternatives = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return _resolve_schema(alternatives[0], definitions) if len(alternatives) == 1 else schema


def _choose_field_kind(schema: _Schema, path: tuple[str, ...]) -> FieldKind | None:
    """Return the kind of form field for a value; None if only JSON can express it."""
    match schema:
        case {"enum": _}:
            return "choice"
        case {"type": "string"}:
            return "long" if path[-1] in LONG_TEXT_FIELDS else "text"
        case {"type": "boolean"}:
            return "flag"
        case {"type": "integer"}:
            return "whole"
        case {"type": "number"}:
            return "number"
        case {"type": "array", "items": {"type": "string"}}:
            return "texts" if path[-1].endswith("greetings") else "lines"
        case _:
            return None


def value_to_texts(spec: FieldSpec, value: object) -> Sequence[str]:
    """Return a value as strings for the form."""
    match value:
        case None:
            return [""]
        case bool():
            return ["true" if value else "false"]
        case list() | tuple() if spec.kind == "texts":
            return [*map(str, value), ""]
        case list() | tuple():
            return ["\n".join(_escape_line(str(one)) for one in value)]
        case float() | int():
            return [json.dumps(value)]
        case _:
            return [str(value)]


def _escape_line(text: str) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")
    return text.replace("\r", "\\r")


_ESCAPE_PATTERN = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def apply_form(value: Mapping[str, object], fields: Mapping[str, str]) -> dict[str, object]:
    """Return a preset's JSON with a form's values; keys without a field stay unchanged."""
    new_value: dict[str, Any] = json.loads(json.dumps(value))
    for spec in list_field_specs():
        old_texts = map(normalize_lines, value_to_texts(spec, value_at(value, spec.path)))
        new_texts = _read_submitted_texts(spec, fields)
        if new_texts and list(new_texts) != list(old_texts):  # an untouched value stays as it is
            set_value_at(new_value, spec.path, texts_to_value(spec, new_texts))
            if len(spec.path) > 1 and new_value.get(spec.path[0]) == {}:
                del new_value[spec.path[0]]
    return new_value


def write_preset_json(value: Mapping[str, object]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _read_submitted_texts(spec: FieldSpec, fields: Mapping[str, str]) -> Sequence[str]:
    if spec.kind != "texts":
        return [normalize_lines(fields[spec.name])] if spec.name in fields else []
    prefix = f"{spec.name}."
    number_texts = (name.removeprefix(prefix) for name in fields if name.startswith(prefix))
    sorted_numbers = sorted(int(one) for one in number_texts if one.isascii() and one.isdecimal())
    return [normalize_lines(fields[f"{prefix}{number}"]) for number in sorted_numbers]


def texts_to_value(spec: FieldSpec, texts: Sequence[str]) -> object:
    """Return a form field's value, or None to omit the key; invalid numbers stay strings."""
    text = texts[0]
    if spec.kind == "texts":
        return [one for one in texts if one] or None
    if not text:
        return None
    match spec.kind:
        case "flag":
            return text == "true"
        case "number" | "whole":
            return _parse_number(text)
        case "lines":
            return [_unescape_line(line) for line in text.split("\n") if line] or None
        case _:
            return text


def _parse_number(text: str) -> float | str:
    """Parse a number; return other text unchanged, so that the check reports it."""
    try:
        number = float(text)
    except ValueError:
        return text
    if number != number or abs(number) == float("inf"):
        return text
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else number


def normalize_lines(text: str) -> str:
    """Replace a browser's CRLF and CR line breaks with LF, as used in JSON."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _unescape_line(text: str) -> str:
    return _ESCAPE_PATTERN.sub(lambda found: _ESCAPES.get(found[1], found[1]), text)
