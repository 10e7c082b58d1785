"""Read and write exported chats: SillyTavern's `.jsonl`, and Character.AI's as JSON.

See docs/sources.md#chats.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

from bot.errors import UserError
from bot.prompting.speakers import clean_name
from bot.prompting.text.jsonc import JsonFields, JsonSyntaxError, read_strict_json
from bot.texts.text import translatable
from bot.value_class import value_class

MAX_CHAT_LINES = 5_000
MAX_LINE_CHARS = 20_000
_DEFAULT_PERSON, _DEFAULT_CHARACTER = "You", "Character"
"""The names for a chat that contains none."""
_SYSTEM_MESSAGE_TYPES = frozenset({"narrator", "comment"})
"""SillyTavern's types of messages that no participant of the chat wrote."""
_NOT_A_CHAT_ERROR = translatable(
    "This is not a chat. Attach a chat exported from SillyTavern (.jsonl) or Character.AI (JSON)."
)


@value_class
class ChatLine:
    """A message of an exported chat."""

    name: str
    text: str
    is_person: bool
    """Whether the person wrote the message; otherwise a character did."""
    sent_at_ms: int | None = None
    """In Unix milliseconds; written to files, but never read from them."""


@value_class
class ExportedChat:
    """A chat between a person and one or more characters, oldest message first."""

    person: str
    character: str
    """The first character's name."""
    lines: tuple[ChatLine, ...]
    unusable_message_count: int = 0
    """The number of omitted messages: those without text or not from a participant."""


def encode_chat(chat: ExportedChat) -> str:
    """Return a chat as SillyTavern's `.jsonl`: a header line, then one message per line."""
    header = {"user_name": chat.person, "character_name": chat.character, "chat_metadata": {}}
    rows = (header, *chat_to_rows(chat))
    return "".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in rows)


def chat_to_rows(chat: ExportedChat) -> list[dict[str, object]]:
    """Return the messages of a chat as SillyTavern stores them."""
    return [
        {
            "name": one.name,
            "is_user": one.is_person,
            "is_system": False,
            "send_date": one.sent_at_ms or "",
            "mes": one.text,
            "extra": {},
        }
        for one in chat.lines
    ]


def read_chat(data: bytes) -> ExportedChat:
    """Read an exported chat; raise `UserError` if it is not a valid chat."""
    try:
        text = data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise UserError(_NOT_A_CHAT_ERROR) from None
    first_line, _, other_lines = text.partition("\n")
    if first_line.rstrip().endswith("}") and other_lines.strip():  # several lines, not one object
        rows = [_load_json(line, number) for number, line in enumerate(text.split("\n"), 1)]
        return parse_rows([one for one in rows if one.values])
    value = _load_json(text)
    match value.values:
        case {"histories": _}:
            return _merge_histories(value)
        case {"turns": _}:
            turns = _sort_oldest_first(value.list_of_objects("turns"), "create_time")
            return _make_chat([_read_turn(JsonFields(one)) for one in turns])
        case _:
            return parse_rows([value])


def parse_rows(rows: Sequence[JsonFields]) -> ExportedChat:
    """Read a SillyTavern chat, with or without a header; raise `UserError` if it is invalid."""
    if not any("mes" in one.values or "user_name" in one.values for one in rows):
        raise UserError(_NOT_A_CHAT_ERROR)
    header = rows[0] if "mes" not in rows[0].values else JsonFields({})
    exported_names = (header.text("user_name"), header.text("character_name"))
    person_name, character_name = ("" if one == "unused" else one for one in exported_names)
    lines = [_read_row(one) for one in rows if one is not header]
    return _make_chat(lines, person_name, character_name)


def _load_json(text: str, line: int = 1) -> JsonFields:
    try:
        return JsonFields(read_strict_json(text) if text.strip() else None)
    except JsonSyntaxError as error:
        raise UserError.translatable(
            "Line {line} of the file is not valid JSON: {problem}",
            line=line + error.line_number - 1,
            problem=error.problem,
        ) from None


def _read_row(row: JsonFields) -> ChatLine | None:
    """Return a message, or None if it is hidden or was written by SillyTavern itself."""
    message_type = JsonFields(row.values.get("extra")).text("type")
    if row.flag("is_system") or message_type in _SYSTEM_MESSAGE_TYPES:
        return None
    text = row.text("mes") or JsonFields(row.values.get("mes")).text("message")  # as Chub writes
    return ChatLine(row.text("name"), text, row.flag("is_user"))


def _merge_histories(file: JsonFields) -> ExportedChat:
    """Read all chats with a character, as exported from Character.AI's first version."""
    histories = JsonFields(file.values.get("histories")).list_of_objects("histories")
    lines = []
    for history in _sort_oldest_first(histories, "created"):
        for row in map(JsonFields, JsonFields(history).list_of_objects("msgs")):
            author = JsonFields(row.values.get("src"))
            lines.append(ChatLine(author.text("name"), row.text("text"), author.flag("is_human")))
    return _make_chat(lines)


def _read_turn(turn: JsonFields) -> ChatLine:
    """Read a turn of Character.AI's second version: its chosen candidate, else the first one."""
    author = JsonFields(turn.values.get("author"))
    candidates = [JsonFields(one) for one in turn.list_of_objects("candidates")]
    chosen_candidate_id = turn.text("primary_candidate_id")
    candidates.sort(key=lambda one: one.text("candidate_id") != chosen_candidate_id)
    text = candidates[0].text("raw_content") if candidates else ""  # a stopped turn may have none
    return ChatLine(author.text("name"), text, author.flag("is_human"))


def _sort_oldest_first(
    items: Sequence[Mapping[str, object]], date_key: str
) -> Sequence[Mapping[str, object]]:
    """Sort items by ISO 8601 date; if a date is missing, reverse them, as the newest is first."""
    if all(isinstance(one.get(date_key), str) for one in items):
        return sorted(items, key=lambda one: str(one[date_key]))
    return items[::-1]


def _make_chat(
    lines: Sequence[ChatLine | None], person: str = "", character: str = ""
) -> ExportedChat:
    """Clean names and texts, and drop empty messages; raise `UserError` if the chat is invalid."""
    messages = [one for one in lines if one is not None and one.text.strip()]
    if not messages:
        raise UserError(translatable("This file contains no messages."))
    if len(messages) > MAX_CHAT_LINES or any(len(one.text) > MAX_LINE_CHARS for one in messages):
        raise UserError.translatable(
            "A chat may have up to {lines} messages of up to {characters} characters.",
            lines=f"{MAX_CHAT_LINES:,}",
            characters=f"{MAX_LINE_CHARS:,}",
        )
    person = clean_name(person) or _pick_name(messages, is_person=True) or _DEFAULT_PERSON
    character = clean_name(character) or _pick_name(messages, is_person=False) or _DEFAULT_CHARACTER
    names = {True: person, False: character}
    cleaned_lines = [
        ChatLine(clean_name(one.name) or names[one.is_person], one.text.strip(), one.is_person)
        for one in messages
    ]
    return ExportedChat(person, character, tuple(cleaned_lines), len(lines) - len(messages))


def _pick_name(lines: Iterable[ChatLine], *, is_person: bool) -> str:
    names = (clean_name(one.name) for one in lines if one.is_person is is_person)
    return next(filter(None, names), "")
