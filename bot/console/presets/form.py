"""The form of a preset, made from its JSON schema: labels, fields, values."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias

from bot.prompting.presets.preset import Preset
from bot.value_class import value_class

LONG_TEXTS = frozenset({
    "system", "persona", "personality", "scenario", "greeting", "post_history_instructions",
    "story_string", "template", "system_template", "user_template", "assistant_template",
})  # fmt: skip

NOT_IN_FORM = frozenset({
    "name", "version",  # what the preset is, not how it answers
    "parameters.n", "parameters.best_of",  # one answer is asked for
})  # fmt: skip

FieldKind: TypeAlias = Literal[
    "text", "long", "number", "whole", "choice", "flag", "lines", "texts"
]
"""`lines`: a list with a text in each line; `texts`: a list of texts of several lines."""
_Schema: TypeAlias = Mapping[str, Any]
_CHARS_PER_ROW = 62
_MAX_ROWS = 12


def value_at(value: object, path: Sequence[str]) -> object:
    """Return the value at a path of keys in JSON; None if there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def put_at(value: dict[str, Any], path: Sequence[str], new: object) -> None:
    """Put a value at a path of keys in JSON; None removes the key."""
    *outer, key = path
    for step in outer:
        if not isinstance(value.get(step), dict):
            if new is None:
                return
            value[step] = {}
        value = value[step]
    if new is None:
        value.pop(key, None)
    else:
        value[key] = new


@value_class
class FieldSpec:
    """The schema of one key."""

    path: tuple[str, ...]
    kind: FieldKind
    default: object = None
    minimum: float | None = None
    maximum: float | None = None
    choices: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The key as it is written in the form: "parameters.temperature"."""
        return ".".join(self.path)

    def value_in(self, preset: Mapping[str, object]) -> object:
        """Return the value of the key in a preset; None if it is not given."""
        return value_at(preset, self.path)


@value_class
class FormField:
    """A key with its value in one preset."""

    spec: FieldSpec
    label: str
    """The key of its label in templates/presets/labels.html."""
    texts: Sequence[str]
    """As it is written in the form; several for `texts`, else one."""
    is_given: bool
    """Whether the preset has the key; else the default holds."""

    @property
    def is_long(self) -> bool:
        """Whether it is written in several lines."""
        is_text = self.spec.kind == "text" and "\n" in self.texts[0]
        return is_text or self.spec.kind in {"long", "lines"}

    def rows(self, text: str) -> int:
        """Return about how many rows a text of the field needs, within bounds."""
        lines = sum(1 + len(line) // _CHARS_PER_ROW for line in text.split("\n"))
        return max(1 if self.spec.kind == "texts" else 2, min(_MAX_ROWS, lines))

    @property
    def default_text(self) -> str:
        """The default, as it is written in the form."""
        if self.spec.default is None:
            return ""
        return written_texts(self.spec, self.spec.default)[0]


def form_fields(value: Mapping[str, object]) -> Mapping[str, FormField]:
    """Return a preset's form fields by name; its JSON may be invalid."""
    fields = {}
    for spec in field_specs():
        found = spec.value_in(value)
        texts = written_texts(spec, found)
        fields[spec.name] = FormField(spec, spec.name, texts, found is not None)
    return fields


def keys_without_field(value: Mapping[str, object]) -> list[str]:
    """Return a preset's keys that have no form field."""
    shown = {one.path[0] for one in field_specs()} | NOT_IN_FORM
    return [key for key in value if key not in shown]


@cache
def field_specs() -> tuple[FieldSpec, ...]:
    """Return the keys that have a field, in the order of the schema."""
    schema = Preset.model_json_schema()
    return tuple(_specs(schema, schema.get("$defs", {}), ()))


def _specs(schema: _Schema, parts: _Schema, path: tuple[str, ...]) -> Iterator[FieldSpec]:
    for key, given in schema["properties"].items():
        inner = (*path, key)
        if ".".join(inner) in NOT_IN_FORM:
            continue
        one = _resolved(given, parts)
        if "properties" in one and not path:
            yield from _specs(one, parts, inner)
        elif (kind := _kind(one, inner)) is not None:
            yield FieldSpec(
                inner,
                kind,
                given.get("default"),
                one.get("minimum"),
                one.get("maximum"),
                tuple(one.get("enum", ())),
            )


def _resolved(schema: _Schema, parts: _Schema) -> _Schema:
    """Return the schema of a value that is not null."""
    if "$ref" in schema:
        part: _Schema = parts[schema["$ref"].rpartition("/")[2]]
        return part
    given = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return _resolved(given[0], parts) if len(given) == 1 else schema


def _kind(schema: _Schema, path: tuple[str, ...]) -> FieldKind | None:
    """Return how a value is written in a form; None: only as JSON."""
    match schema:
        case {"enum": _}:
            return "choice"
        case {"type": "string"}:
            return "long" if path[-1] in LONG_TEXTS else "text"
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


def written_texts(spec: FieldSpec, value: object) -> Sequence[str]:
    """Return a value as it is written in the form."""
    match value:
        case None:
            return [""]
        case bool():
            return ["true" if value else "false"]
        case list() | tuple() if spec.kind == "texts":
            return [*map(str, value), ""]
        case list() | tuple():
            return ["\n".join(_escaped(str(one)) for one in value)]
        case float() | int():
            return [json.dumps(value)]
        case _:
            return [str(value)]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t"}


def apply_form(value: Mapping[str, object], fields: Mapping[str, str]) -> dict[str, object]:
    """Return the JSON of a preset with the values of a form; keys without a field stay.

    The texts of a list are the fields "greetings.0", "greetings.1".
    """
    changed: dict[str, Any] = json.loads(json.dumps(value))
    for spec in field_specs():
        before = map(plain_lines, written_texts(spec, spec.value_in(value)))
        given = _texts_of(spec, fields)
        if given and list(given) != list(before):  # untouched values stay exactly as they were
            put_at(changed, spec.path, read_texts(spec, given))
            if len(spec.path) > 1 and changed.get(spec.path[0]) == {}:
                del changed[spec.path[0]]
    return changed


def write_preset_json(value: Mapping[str, object]) -> str:
    """Return the text of a preset, as its export is written."""
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _texts_of(spec: FieldSpec, fields: Mapping[str, str]) -> Sequence[str]:
    if spec.kind != "texts":
        return [plain_lines(fields[spec.name])] if spec.name in fields else []
    prefix = f"{spec.name}."
    numbers = (name.removeprefix(prefix) for name in fields if name.startswith(prefix))
    known = sorted(int(one) for one in numbers if one.isascii() and one.isdecimal())
    return [plain_lines(fields[f"{prefix}{number}"]) for number in known]


def read_texts(spec: FieldSpec, texts: Sequence[str]) -> object:
    """Return the value of a field's texts, invalid numbers as text; None: leave the key out."""
    text = texts[0]
    if spec.kind == "texts":
        return [one for one in texts if one] or None
    if not text:
        return None
    match spec.kind:
        case "flag":
            return text == "true"
        case "number" | "whole":
            return _number(text)
        case "lines":
            return [_unescaped(line) for line in text.split("\n") if line] or None
        case _:
            return text


def _number(text: str) -> float | str:
    """Return a number, or the text itself if it is not one: the check reports its line."""
    try:
        number = float(text)
    except ValueError:
        return text
    if number != number or abs(number) == float("inf"):
        return text
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else number


def plain_lines(text: str) -> str:
    """Return a text with the line breaks of JSON; browsers send others."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), text)
