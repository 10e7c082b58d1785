"""Write and read memories: as JSON, as SillyTavern's World Info, or inside a character card.

In a file, "me" stands for the person who exported it. The person who imports the file takes that
role, on any platform. See docs/sources.md#sillytavern and docs/sources.md#cards.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import regex

from bot.chat.memory import Memory, MemoryKind, MemorySubject, SubjectKind
from bot.errors import UserError
from bot.importers.card import card_fields, to_card_entry
from bot.importers.chats import ExportedChat, chat_to_rows, parse_rows, read_chat
from bot.prompting.presets.preset import Preset
from bot.prompting.speakers import clean_name
from bot.prompting.text.jsonc import JsonFields, JsonSyntaxError, read_strict_json
from bot.value_class import value_class

MAX_MEMORY_CHARS = 500
MAX_MEMORIES = 1_000
"""The maximum number of memories in a file."""
_FORMAT_NAME = "troupe memories"
_TROUPE_KEY = "troupe"
"""The key of our additional data in World Info and cards; SillyTavern keeps it."""
_ABOUT_ME, _ABOUT_PLACE = "me", "place"
_ACTIVATION_KEY_PATTERN = regex.compile(r"\b(?:\p{Lu}\w{2,}|\p{Ll}{6,}\b)")
"""Matches a capitalized or long word, but never in scripts without capital letters."""
_MAX_KEYS_PER_ENTRY = 5


@value_class
class MemoryFile:
    """The contents of an imported file: memories, and possibly a chat or a character card."""

    memories: tuple[Memory, ...] = ()
    """The memories, with the importing person as author; a character's key is its name."""
    other_people: tuple[str, ...] = ()
    """The names of other people in the file; memories about them are not imported."""
    skipped_entry_count: int = 0
    """The number of entries without usable text."""
    chat: ExportedChat | None = None
    cleaned_card: bytes | None = None
    """The character card without its memories and chat, or None if the file is not a card."""


def encode_memories(memories: Sequence[Memory], person_id: str) -> str:
    """Return the memories as JSON; "me" stands for the person with the id `person_id`."""
    rows = [{"text": one.text, **_memory_fields(one, person_id)} for one in memories]
    return _dump_json({"format": _FORMAT_NAME, "version": 1, "memories": rows})


def encode_world_info(memories: Sequence[Memory], person_id: str) -> str:
    """Return the memories as a World Info file of SillyTavern."""
    rows = [world_info_entry(one, uid, person_id) for uid, one in enumerate(memories)]
    return _dump_json({"entries": {str(one["uid"]): one for one in rows}})


def encode_character_card(
    preset: Preset, memories: Sequence[Memory], chat: ExportedChat | None, person_id: str
) -> str:
    """Return a character card with memories after the lorebook entries, and the chat in a field."""
    fields = card_fields(preset)
    book = JsonFields(fields.get("character_book"))
    lore = book.list_of_objects("entries")
    entries = [world_info_entry(one, len(lore) + at, person_id) for at, one in enumerate(memories)]
    fields["character_book"] = {**book.values, "entries": [*lore, *map(to_card_entry, entries)]}
    fields["extensions"] = {_TROUPE_KEY: {"chat": chat_to_rows(chat) if chat is not None else []}}
    return _dump_json({"spec": "chara_card_v3", "spec_version": "3.0", "data": fields})


def world_info_entry(memory: Memory, uid: int, person_id: str = "") -> dict[str, object]:
    """Return a memory as a World Info entry; the names in its text become activation keys."""
    words = dict.fromkeys(_ACTIVATION_KEY_PATTERN.findall(memory.text))
    keys = sorted(words, key=str.islower)[:_MAX_KEYS_PER_ENTRY]  # names first
    return {
        "uid": uid,
        "key": keys,
        "keysecondary": [],
        "comment": f"{memory.subject.name} ({memory.kind})".strip(),
        "content": memory.text,
        "constant": memory.is_pinned or not keys,
        "selective": False,
        "order": 100,
        "position": 0,
        "disable": False,
        "extensions": {_TROUPE_KEY: _memory_fields(memory, person_id)},
    }


def add_to_lorebook(book: object, memory: Memory) -> dict[str, object]:
    """Return a copy of a preset's lorebook with the memory as an additional entry."""
    lorebook_fields = dict(JsonFields(book).values)
    entries = lorebook_fields.get("entries")
    old_entries = entries if isinstance(entries, dict) else {}
    uid = 1 + max((int(one) for one in old_entries if one.isdecimal()), default=-1)
    entry = world_info_entry(memory, len(entries) if isinstance(entries, list) else uid)
    del entry["extensions"]  # from now on, it is an ordinary lorebook entry
    if isinstance(entries, list):
        return {**lorebook_fields, "entries": [*entries, to_card_entry(entry)]}
    return {**lorebook_fields, "entries": {**old_entries, str(uid): entry}}


def read_memory_file(data: bytes, base_memory: Memory) -> MemoryFile:
    """Read memories, a character card with memories, or a chat; raise `UserError` if invalid.

    `base_memory` is about the importing person; imported memories get its place and author.
    """
    try:
        value = JsonFields(read_strict_json(data.decode("utf-8-sig")))
    except (UnicodeDecodeError, JsonSyntaxError):
        value = JsonFields(None)  # `read_chat` reports the problem
    match value.values:
        case {"format": str(name), "memories": list(rows)} if name == _FORMAT_NAME:
            return _read_rows([(JsonFields(one).text("text"), one) for one in rows], base_memory)
        case {"spec": _, "data": dict(fields)}:
            return _read_card(value.values, fields, base_memory)
        case {"entries": list() | dict() as entries}:
            rows = [*entries.values()] if isinstance(entries, dict) else entries
            return _read_rows(_read_entries(rows), base_memory)
        case _:
            return MemoryFile(chat=read_chat(data))


def _read_card(
    card: Mapping[str, object], fields: Mapping[str, object], base_memory: Memory
) -> MemoryFile:
    book = JsonFields(JsonFields(fields.get("character_book")).values)
    entries = book.list_of_objects("entries")
    memory_entries = [one for one in entries if _find_troupe_fields(one) is not None]
    lore_entries = [one for one in entries if _find_troupe_fields(one) is None]
    extensions = {**(JsonFields(fields).object_or_none("extensions") or {})}
    rows = JsonFields(extensions.pop(_TROUPE_KEY, None)).list_of_objects("chat")
    cleaned_fields = {**fields, "extensions": extensions}
    if memory_entries:
        cleaned_fields["character_book"] = {**book.values, "entries": lore_entries}
    return replace(
        _read_rows(_read_entries(memory_entries), base_memory),
        chat=parse_rows([JsonFields(one) for one in rows]) if rows else None,
        cleaned_card=json.dumps({**card, "data": cleaned_fields}, ensure_ascii=False).encode(),
    )


def _read_entries(rows: Sequence[object]) -> list[tuple[str, object]]:
    """Return each entry's text and stored fields; an entry without fields is about the channel."""
    entries, default = map(JsonFields, rows), {"about": _ABOUT_PLACE}
    return [(one.text("content"), _find_troupe_fields(one.values) or default) for one in entries]


def _find_troupe_fields(entry: Mapping[str, object]) -> Mapping[str, object] | None:
    return JsonFields(entry.get("extensions")).object_or_none(_TROUPE_KEY)


def _read_rows(texts_and_fields: Sequence[tuple[str, object]], base_memory: Memory) -> MemoryFile:
    if len(texts_and_fields) > MAX_MEMORIES:
        raise UserError.translatable(
            "The file has {count} memories; at most {limit} are allowed.",
            count=len(texts_and_fields),
            limit=MAX_MEMORIES,
        )
    memories, other_names, skipped_entry_count = [], dict[str, None](), 0
    for text, fields in texts_and_fields:
        match _read_memory(text, JsonFields(fields), base_memory):
            case Memory() as memory:
                memories.append(memory)
            case str(name):
                other_names[name] = None
            case None:
                skipped_entry_count += 1
    return MemoryFile(tuple(memories), tuple(other_names), skipped_entry_count)


def _read_memory(text: str, fields: JsonFields, base_memory: Memory) -> Memory | str | None:
    """Return a memory, or the name of the other person it is about, or None if it is unusable."""
    text = " ".join(text.split())
    match fields.values.get("about"):
        case "me":
            subject = base_memory.subject
        case "place":
            place = base_memory.place
            subject = MemorySubject(SubjectKind.PLACE, place.channel, "")
        case {"character": str(name)} if clean_name(name):
            subject = MemorySubject(SubjectKind.CHARACTER, clean_name(name), clean_name(name))
        case {"person": str(name)} if clean_name(name):
            return clean_name(name)
        case _:
            return None
    if not 0 < len(text) <= MAX_MEMORY_CHARS:
        return None
    kind = fields.text("kind")
    return replace(
        base_memory,
        subject=subject,
        text=text,
        kind=MemoryKind(kind) if kind in list(MemoryKind) else MemoryKind.FACT,
        is_pinned=fields.flag("pinned"),
        since=_parse_time(fields.text("since")) or base_memory.since,
    )


def _memory_fields(memory: Memory, person_id: str) -> dict[str, object]:
    subject = memory.subject
    about_value: object = _ABOUT_PLACE
    if subject.kind is SubjectKind.PERSON:
        about_value = _ABOUT_ME if subject.key == person_id else {"person": subject.name}
    elif subject.kind is SubjectKind.CHARACTER:
        about_value = {"character": subject.name}
    fields: dict[str, object] = {"about": about_value, "kind": memory.kind.value}
    if memory.since:
        fields["since"] = datetime.fromtimestamp(memory.since, UTC).isoformat()
    return fields | ({"pinned": True} if memory.is_pinned else {})


def _parse_time(text: str) -> float | None:
    try:
        parsed_time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (parsed_time if parsed_time.tzinfo else parsed_time.replace(tzinfo=UTC)).timestamp()


def _dump_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
