"""The form of a preset, made from the JSON schema of presets: what a key takes, and its value."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias

from bot.console.presets.form.labels import GROUPS, LABELS, LONG_TEXTS, NOT_IN_FORM
from bot.frozen_dataclass import frozen_dataclass
from bot.prompting.presets.preset import Preset
from bot.texts.stored import looked_up
from bot.texts.text import Text, translatable

FieldKind: TypeAlias = Literal[
    "text", "long", "number", "whole", "choice", "flag", "lines", "texts"
]
"""`lines`: a list with a text in each line; `texts`: a list of texts of several lines."""
_Schema: TypeAlias = Mapping[str, Any]
_CHARS_PER_ROW = 62
_MAX_ROWS = 12
_FURTHER = translatable("Further")


@frozen_dataclass
class FieldSpec:
    """What the schema says of one key."""

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
        found: object = preset
        for step in self.path:
            found = found.get(step) if isinstance(found, Mapping) else None
        return found


@frozen_dataclass
class FormField:
    """A key with its value in one preset."""

    spec: FieldSpec
    label: Text
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
        """Return how many lines a text of the field takes about, within bounds."""
        lines = sum(1 + len(line) // _CHARS_PER_ROW for line in text.split("\n"))
        return max(1 if self.spec.kind == "texts" else 2, min(_MAX_ROWS, lines))

    @property
    def default_text(self) -> str:
        """What holds where nothing is given; empty if that is nothing."""
        if self.spec.default is None:
            return ""
        return written_texts(self.spec, self.spec.default)[0]


@frozen_dataclass
class FormGroup:
    """Fields that belong together."""

    title: Text
    fields: Sequence[FormField]


def form_groups(value: Mapping[str, object]) -> list[FormGroup]:
    """Return the form of a preset.

    Args:
        value: the preset as JSON, valid or not.
    """
    specs = {one.name: one for one in field_specs()}
    groups = [
        FormGroup(title, [_field(specs.pop(name), value) for name in names])
        for title, names in GROUPS
    ]
    rest = [_field(one, value) for one in specs.values()]
    return [*groups, FormGroup(_FURTHER, rest)] if rest else groups


def keys_without_field(value: Mapping[str, object]) -> list[str]:
    """Return the keys of a preset that only the JSON shows."""
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


def _field(spec: FieldSpec, value: Mapping[str, object]) -> FormField:
    found = spec.value_in(value)
    label = LABELS.get(spec.name) or looked_up(spec.name)
    return FormField(spec, label, written_texts(spec, found), found is not None)


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
    """Write a text of a list in one line."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")
