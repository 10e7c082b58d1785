"""Put what a form sends into the JSON of a preset; what is empty is left to the default."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bot.console.presets.form.fields import FieldSpec, field_specs, written_texts

_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t"}


def apply_form(value: Mapping[str, object], fields: Mapping[str, str]) -> dict[str, object]:
    """Return the JSON of a preset with the values of a form.

    Args:
        value: the preset as it was; keys without a field stay.
        fields: by the name of the field; the texts of a list are "greetings.0", "greetings.1".
    """
    changed: dict[str, Any] = json.loads(json.dumps(value))
    for spec in field_specs():
        before = map(plain_lines, written_texts(spec, spec.value_in(value)))
        given = _texts_of(spec, fields)
        if given and list(given) != list(before):  # what was not touched stays to the letter
            _put(changed, spec, read_texts(spec, given))
    return changed


def write_preset_json(value: Mapping[str, object]) -> str:
    """Return the text of a preset, as its export is written."""
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _texts_of(spec: FieldSpec, fields: Mapping[str, str]) -> Sequence[str]:
    """Return what the form sent of a field; empty if it sent nothing."""
    if spec.kind != "texts":
        return [plain_lines(fields[spec.name])] if spec.name in fields else []
    prefix = f"{spec.name}."
    numbers = (name.removeprefix(prefix) for name in fields if name.startswith(prefix))
    known = sorted(int(one) for one in numbers if one.isascii() and one.isdecimal())
    return [plain_lines(fields[f"{prefix}{number}"]) for number in known]


def read_texts(spec: FieldSpec, texts: Sequence[str]) -> object:
    """Return the value of texts; None: the key is left out. What is no number stays a text."""
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
    """Return a number; a text that is none is left to the check, which tells its line."""
    try:
        number = float(text)
    except ValueError:
        return text
    if number != number or abs(number) == float("inf"):
        return text
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else number


def _put(value: dict[str, Any], spec: FieldSpec, new: object) -> None:
    *outer, key = spec.path
    target = value
    for step in outer:
        inner = target.get(step)
        if not isinstance(inner, dict):
            if new is None:
                return
            inner = target[step] = {}
        target = inner
    if new is not None:
        target[key] = new
    elif target.get(key) is not None:  # null says something: the model's own limit
        del target[key]
    if outer and not target:
        value.pop(outer[0], None)


def plain_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as browsers send texts


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), text)
