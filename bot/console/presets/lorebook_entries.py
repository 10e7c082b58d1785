"""Forms for lorebook entries, both those of SillyTavern's World Info and those of cards.

Keys without a form field stay unchanged. docs/sources.md#sillytavern and docs/sources.md#cards
describe the keys.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bot.console.presets.form import (
    FieldSpec,
    FormField,
    normalize_lines,
    set_value_at,
    texts_to_value,
    value_at,
    value_to_texts,
)
from bot.prompting.lorebook.files import ENTRY_POSITIONS, KEY_LOGICS, MAX_ENTRIES, ROLES
from bot.value_class import value_class

FIELD_PREFIX = "lorebook."
"""Prefix of field names: "lorebook.3.keys" belongs to the third entry."""
_NUMBERED_CHOICES: Mapping[str, Sequence[str]] = {
    "logic": [one.value for one in KEY_LOGICS],
    "position": [one.value for one in ENTRY_POSITIONS],
    "role": ROLES,
}
"""Names shown in the form for JSON numbers: the first stands for 0, the next for 1, and so on."""
_FIELD_SPECS = (
    FieldSpec(("name",), "text"),
    FieldSpec(("keys",), "lines"),
    FieldSpec(("content",), "long"),
    FieldSpec(("order",), "whole", 100),
    FieldSpec(("constant",), "flag", default=False),
    FieldSpec(("enabled",), "flag", default=True),
    FieldSpec(("position",), "choice", "before_char", choices=_NUMBERED_CHOICES["position"]),
    FieldSpec(("depth",), "whole", 4, 0, 9999),
    FieldSpec(("role",), "choice", "system", choices=ROLES),
    FieldSpec(("secondary_keys",), "lines"),
    FieldSpec(("logic",), "choice", "and_any", choices=_NUMBERED_CHOICES["logic"]),
    FieldSpec(("probability",), "number", 100, 0, 100),
    FieldSpec(("scan_depth",), "whole"),
    FieldSpec(("case_sensitive",), "flag"),
    FieldSpec(("match_whole_words",), "flag"),
)
_WORLD_INFO_KEYS: Mapping[str, tuple[str, ...]] = {
    "name": ("comment",),
    "keys": ("key",),
    "secondary_keys": ("keysecondary",),
    "logic": ("selectiveLogic",),
    "scan_depth": ("scanDepth",),
    "case_sensitive": ("caseSensitive",),
    "match_whole_words": ("matchWholeWords",),
}
_CARD_PATHS: Mapping[str, tuple[str, ...]] = {
    "order": ("insertion_order",),
    "logic": ("extensions", "selectiveLogic"),
    **{
        name: ("extensions", name)
        for name in ("depth", "role", "probability", "scan_depth", "match_whole_words")
    },
}
"""The paths of fields that cards store under other names; see `_find_field_path`."""
_REQUIRED_FIELDS: Mapping[str, object] = {"keys": [], "content": ""}
"""Keys that cards must have even if empty."""


@value_class
class EntryForm:
    number: int
    """The position of the entry in the lorebook, starting at 1."""
    title: str
    fields: Sequence[FormField]


def make_entry_form(lorebook: object, number: int) -> EntryForm | None:
    """Return an entry's form; None if the entry is missing or not an object."""
    entry = _find_entry(lorebook, number)
    if entry is None:
        return None
    fields = []
    for spec in _FIELD_SPECS:
        name = spec.path[0]
        field_spec = replace(spec, path=(FIELD_PREFIX.rstrip("."), str(number), name))
        texts = value_to_texts(spec, _get_value(lorebook, entry, name))
        fields.append(FormField(field_spec, f"entry.{name}", texts))
    title = str(_get_value(lorebook, entry, "name") or "") or fields[1].texts[0].replace("\n", ", ")
    return EntryForm(number, title, fields)


def apply_entry_forms(value: Mapping[str, object], fields: Mapping[str, str]) -> dict[str, object]:
    """Return a preset's JSON with a form's values for its lorebook entries.

    Fields have names such as "lorebook.3.keys"; missing entries are ignored.
    """
    new_value: dict[str, Any] = json.loads(json.dumps(value))
    lorebook = new_value.get("lorebook")
    entry_numbers = {name.split(".")[1] for name in fields if name.startswith(FIELD_PREFIX)}
    for number in sorted(int(one) for one in entry_numbers if one.isascii() and one.isdecimal()):
        entry = _find_entry(lorebook, number)
        for spec in _FIELD_SPECS if entry is not None else ():
            name = spec.path[0]
            new_text = fields.get(f"{FIELD_PREFIX}{number}.{name}")
            old_text = normalize_lines(value_to_texts(spec, _get_value(lorebook, entry, name))[0])
            if new_text is not None and normalize_lines(new_text) != old_text:
                _set_value(lorebook, entry, name, texts_to_value(spec, [normalize_lines(new_text)]))
    return new_value


def add_entry(value: Mapping[str, object]) -> tuple[dict[str, object], int]:
    """Return the preset with an empty lorebook entry, and its number, or raise `ValueError`."""
    new_value: dict[str, Any] = json.loads(json.dumps(value))
    lorebook = new_value.get("lorebook")
    if lorebook is None:
        lorebook = new_value["lorebook"] = {"entries": []}
    entries = lorebook.get("entries") if isinstance(lorebook, dict) else None
    if not isinstance(entries, dict | list) or len(entries) >= MAX_ENTRIES:
        raise ValueError(lorebook)
    if isinstance(entries, list):
        entries.append(
            {"keys": [], "content": "", "extensions": {}, "enabled": True, "insertion_order": 100}
        )
    else:
        uid = 1 + max((int(one) for one in entries if one.isdecimal()), default=-1)
        entries[str(uid)] = {"uid": uid, "key": [], "content": "", "comment": "", "order": 100}
    return new_value, len(entries)


def remove_entry(value: Mapping[str, object], number: int) -> dict[str, object]:
    """Return a preset's JSON without one entry; raises `KeyError` if there is none."""
    new_value: dict[str, Any] = json.loads(json.dumps(value))
    lorebook: Any = new_value.get("lorebook")
    if not 1 <= number <= len(_list_entries(lorebook)):
        raise KeyError(number)
    entries = lorebook["entries"]
    del entries[number - 1 if isinstance(entries, list) else list(entries)[number - 1]]
    return new_value


def _list_entries(lorebook: object) -> Sequence[Any]:
    entries = lorebook.get("entries") if isinstance(lorebook, Mapping) else None
    if isinstance(entries, Mapping):
        return list(entries.values())
    return entries if isinstance(entries, list) else []


def _find_entry(lorebook: object, number: int) -> Any:
    entries = _list_entries(lorebook)
    entry = entries[number - 1] if 1 <= number <= len(entries) else None
    return entry if isinstance(entry, Mapping) else None


def _is_character_book(lorebook: object) -> bool:
    return isinstance(lorebook, Mapping) and isinstance(lorebook.get("entries"), list)


def _find_field_path(lorebook: object, entry: Mapping[str, object], name: str) -> tuple[str, ...]:
    """Return the path of an entry's field; if a card stores it twice, the one that takes effect."""
    if not _is_character_book(lorebook):
        return _WORLD_INFO_KEYS.get(name, (name,))
    if name == "name" and not entry.get("name") and entry.get("comment"):
        return ("comment",)
    if name in {"case_sensitive", "position"} and value_at(entry, ("extensions", name)) is not None:
        return ("extensions", name)
    return _CARD_PATHS.get(name, (name,))


def _get_value(lorebook: object, entry: Mapping[str, object], name: str) -> object:
    """Return a field's value for the form; None means the default."""
    value = value_at(entry, _find_field_path(lorebook, entry, name))
    choice_names = _NUMBERED_CHOICES.get(name, ())
    if name == "enabled" and not _is_character_book(lorebook):
        disable_flag = entry.get("disable")
        return not disable_flag if isinstance(disable_flag, bool) else disable_flag
    if choice_names and type(value) is int and 0 <= value < len(choice_names):
        return choice_names[value]
    return value


def _set_value(lorebook: object, entry: dict[str, Any], name: str, new_value: object) -> None:
    """Set an entry's field; None means the default."""
    path, choice_names = _find_field_path(lorebook, entry, name), _NUMBERED_CHOICES.get(name, ())
    value = _REQUIRED_FIELDS.get(name) if new_value is None else new_value
    if new_value in choice_names:
        value = choice_names.index(str(new_value))
    if name == "position":
        entry.pop("position", None)
        path = ("extensions", "position") if _is_character_book(lorebook) else path
    elif name == "enabled" and not _is_character_book(lorebook):
        path, value = ("disable",), None if new_value is None else not new_value
    elif name == "secondary_keys" and new_value is not None:
        entry["selective"] = True  # otherwise secondary keys are ignored
    elif name == "probability" and value_at(entry, (*path[:-1], "useProbability")) is False:
        set_value_at(entry, (*path[:-1], "useProbability"), True)
    set_value_at(entry, path, value)
