"""Parse a lorebook: SillyTavern's World Info file, or a card's `character_book` (V2, V3).

See docs/sources.md#sillytavern and docs/sources.md#cards.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from bot.chat.prompt import Role
from bot.errors import PresetError
from bot.prompting.lorebook.entries import (
    EntryPosition,
    KeyLogic,
    Lorebook,
    LoreEntry,
    compile_key,
    estimate_compiled_size,
    is_regex,
)
from bot.prompting.text.jsonc import JsonFields
from bot.texts.text import Text, translatable

T = TypeVar("T")

MAX_ENTRIES = 10_000
_MAX_KEYS, _MAX_TOTAL_KEY_CHARS = 50_000, 2_000_000  # for all entries together
# Limits for a book's regular expressions, so that parsing takes at most a second.
_MAX_COMPILED_SIZE, _MIN_COMPILED_SIZE = 60_000, 40
_CASE_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])")
# Indexed by SillyTavern's numbers.
KEY_LOGICS, ENTRY_POSITIONS = tuple(KeyLogic), tuple(EntryPosition)
ROLES: tuple[Role, ...] = ("system", "user", "assistant")


class LocatedPresetError(PresetError, ValueError):
    """A part of a JSON value is invalid; `path` lists the keys and indexes that lead there."""

    def __init__(self, problem: str, path: tuple[str | int, ...]) -> None:
        super().__init__(problem)
        self.path = path


def read_lorebook(data: object, source: str) -> Lorebook:
    """Parse a lorebook's JSON; raise `PresetError` if it is invalid.

    Its `problems` list what could not be used. `source` is the lorebook's name in messages.
    """
    if isinstance(data, list):
        data = {"entries": data}
    if not isinstance(data, Mapping) or not isinstance(data.get("entries") or [], dict | list):
        raise PresetError.translatable(
            "{source}: a lorebook is a JSON object with `entries`; export it from SillyTavern"
            " as World Info",
            source=source,
        )
    entries_field = data.get("entries") or []
    rows = list(entries_field.values()) if isinstance(entries_field, dict) else entries_field
    if len(rows) > MAX_ENTRIES:
        raise PresetError.translatable(
            "{source}: more than {limit} entries; split the lorebook",
            source=source,
            limit=MAX_ENTRIES,
        )
    in_card = isinstance(entries_field, list)
    entry_keys = list(range(len(rows)) if in_card else entries_field)
    pairs = enumerate(rows)
    entries = [_parse_entry(row, index, entry_keys[index], in_card, source) for index, row in pairs]
    _check_keys([entry for entry in entries if entry], source)
    problems = _find_problems(rows, entries, source)
    book = JsonFields(data)
    return Lorebook(
        entries=tuple(_make_ids_unique(entries)),
        name=book.text("name"),
        scan_depth=_or_default(book.integer("scan_depth"), 2),
        token_budget=book.integer("token_budget") or None,
        recursive=book.flag("recursive_scanning"),
        case_sensitive=book.flag("case_sensitive"),
        match_whole_words=_or_default(book.optional_flag("match_whole_words"), default=True),
        problems=tuple(problems),
    )


def _parse_entry(
    row: object, index: int, entry_key: str | int, in_card: bool, source: str
) -> LoreEntry | None:
    """Parse the entry with key or index `entry_key`; return None if the row is not an object."""
    if not isinstance(row, Mapping):
        return None
    fields = JsonFields(row)
    order_key = "insertion_order" if "insertion_order" in row else "order"
    order = fields.integer(order_key)
    has_valid_order = order is not None or row.get(order_key) is None
    if not isinstance(row.get("content") or "", str) or not has_valid_order:
        problem = translatable(
            "{where}: `content` must be text and `{order}` must be a number",
            where=_describe_location(source, index),
            order=order_key,
        )
        raise LocatedPresetError(problem, ("entries", entry_key))
    in_card = "keys" in row or (in_card and "key" not in row)
    return _apply_decorators(_parse_row(row, in_card=in_card, order=_or_default(order, 100)))


def _describe_location(source: str, index: int) -> Text:
    return translatable("{source}: lorebook entry {number}", source=source, number=index + 1)


def _check_keys(entries: Iterable[LoreEntry], source: str) -> None:
    keys = [key for entry in entries for key in (*entry.keys, *entry.secondary_keys)]
    if len(keys) > _MAX_KEYS or sum(map(len, keys)) > _MAX_TOTAL_KEY_CHARS:
        raise PresetError.translatable(
            "{source}: more than {keys} keys, or {characters} characters in them; split the"
            " lorebook",
            source=source,
            keys=f"{_MAX_KEYS:,}",
            characters=f"{_MAX_TOTAL_KEY_CHARS:,}",
        )


def _find_problems(
    rows: Sequence[object], entries: Sequence[LoreEntry | None], source: str
) -> Iterator[Text]:
    compiled_size_left = _MAX_COMPILED_SIZE
    for index, (row, entry) in enumerate(zip(rows, entries, strict=True)):
        location = _describe_location(source, index)
        if entry is None or not isinstance(row, Mapping):
            yield translatable("{where} is skipped: it is not an object", where=location)
            continue
        if not 0 <= _read_position_number(row) < len(ENTRY_POSITIONS):
            yield translatable(
                "{where}: the position {number} is not supported; the entry goes before the "
                "character's description",
                where=location,
                number=_read_position_number(row),
            )
        for key in filter(is_regex, (*entry.keys, *entry.secondary_keys)):
            if isinstance(problem := compile_key(key), str):
                yield translatable(
                    "{where}: the key {key} is matched as plain text: {problem}",
                    where=location,
                    key=repr(key[:60]),
                    problem=problem,
                )
                continue
            compiled_size_left -= max(estimate_compiled_size(key), _MIN_COMPILED_SIZE)
            if compiled_size_left < 0:
                raise PresetError.translatable(
                    "{source}: too many regular expressions, or too long ones; split the lorebook",
                    source=source,
                )


def _parse_row(row: Mapping[str, object], *, in_card: bool, order: int) -> LoreEntry:
    """Parse an entry of a SillyTavern file, or of a card, which has `extensions`.

    The field `scanDepth` of files is named `scan_depth` in extensions. `use_regex` is ignored,
    because SillyTavern writes it into every entry of a card, but never reads it.
    """
    fields = JsonFields(row)
    values = JsonFields(row.get("extensions")).values if in_card else row
    extensions = JsonFields({_CASE_BOUNDARY.sub("_", key).lower(): values[key] for key in values})
    is_selective = fields.flag("selective", default=not in_card)
    ignores_probability = not extensions.flag("use_probability", default=True)
    level = extensions.values.get("delay_until_recursion")
    return LoreEntry(
        uid=str(row.get("id" if in_card else "uid", "")),
        content=fields.text("content"),
        name=fields.text("name") or fields.text("comment"),
        keys=_read_keys(fields, "keys" if in_card else "key"),
        secondary_keys=_read_keys(fields, "secondary_keys" if in_card else "keysecondary")
        if is_selective
        else (),
        logic=_select_by_number(KEY_LOGICS, extensions.integer("selective_logic")),
        enabled=fields.flag("enabled", default=True) and not fields.flag("disable"),
        constant=fields.flag("constant"),
        vectorized=extensions.flag("vectorized"),
        order=order,
        position=_select_by_number(ENTRY_POSITIONS, _read_position_number(row)),
        depth=_or_default(extensions.integer("depth"), 4),
        outlet=extensions.text("outlet_name").strip(),
        role=_select_by_number(ROLES, extensions.integer("role")),
        probability=100
        if ignores_probability
        else _or_default(extensions.number("probability"), 100),
        ignores_budget=extensions.flag("ignore_budget"),
        exclude_recursion=extensions.flag("exclude_recursion"),
        prevent_recursion=extensions.flag("prevent_recursion"),
        delay_until_recursion=max(0, level) if isinstance(level, int) else 0,  # true: level 1
        scan_depth=extensions.integer("scan_depth"),
        case_sensitive=_or_default(
            extensions.optional_flag("case_sensitive"), fields.optional_flag("case_sensitive")
        ),
        match_whole_words=extensions.optional_flag("match_whole_words"),
        sticky=extensions.integer("sticky") or 0,
        cooldown=extensions.integer("cooldown") or 0,
        delay=extensions.integer("delay") or 0,
        groups=tuple(name.strip() for name in extensions.text("group").split(",") if name.strip()),
        group_weight=_or_default(extensions.number("group_weight"), 100),
        group_override=extensions.flag("group_override"),
    )


def _select_by_number(values: Sequence[T], number: int | None) -> T:
    return values[number] if number and 0 <= number < len(values) else values[0]


def _read_keys(fields: JsonFields, name: str) -> tuple[str, ...]:
    value = fields.values.get(name)
    if isinstance(value, str):
        # A regular expression may contain commas.
        value = [value] if is_regex(value.strip()) else value.split(",")
    keys = value if isinstance(value, list) else []
    texts = [str(key).strip() for key in keys if isinstance(key, str | int | float)]
    return JsonFields({name: texts}).texts(name)


def _read_position_number(row: Mapping[str, object]) -> int:
    """Return SillyTavern's position number, which cards store in `extensions`."""
    position_numbers = [JsonFields(one).integer("position") for one in (row.get("extensions"), row)]
    numbers = [number for number in position_numbers if number is not None]
    return numbers[0] if numbers else int(row.get("position") == "after_char")


def _apply_decorators(entry: LoreEntry) -> LoreEntry:
    """Apply and remove the `@@name value` lines that V3 cards allow before the content."""
    lines = entry.content.split("\n")
    while lines and lines[0].startswith("@@"):
        name, _, value = lines.pop(0).lstrip("@").strip().partition(" ")
        entry = _apply_decorator(entry, name, value.strip())
    return replace(entry, content="\n".join(lines))


def _apply_decorator(entry: LoreEntry, name: str, value: str) -> LoreEntry:
    number = int(value) if value.isascii() and value.isdecimal() and len(value) < 7 else None
    match name:
        case "activate":
            return replace(entry, constant=True)
        case "dont_activate":
            return replace(entry, never_active=True)
        case "depth" if number is not None:
            return replace(entry, position=EntryPosition.AT_DEPTH, depth=number)
        case "scan_depth" if number is not None:
            return replace(entry, scan_depth=number)
        case "activate_only_after" if number is not None:
            return replace(entry, delay=number)
        case "role" if value in ROLES:
            return replace(entry, role=ROLES[ROLES.index(value)])
        case _:
            return entry


def _make_ids_unique(entries: Iterable[LoreEntry | None]) -> list[LoreEntry]:
    """Drop None entries, and replace missing and repeated ids with the entries' positions."""
    used_ids: set[str] = set()
    unique_entries = []
    for index, entry in enumerate(entries):
        if entry is None:
            continue
        unique_id = entry.uid if entry.uid and entry.uid not in used_ids else f"#{index}"
        used_ids.add(unique_id)
        unique_entries.append(replace(entry, uid=unique_id))
    return unique_entries


def _or_default(value: T | None, default: T) -> T:
    return default if value is None else value
