"""Convert a character card to a preset with persona, greetings, examples, and lorebook."""

import re
from collections.abc import Sequence

from bot.importers.card import Card, Json
from bot.importers.sillytavern_settings import ignored_content_notes, read_regex_scripts
from bot.prompting.compose.card_macros import DEFAULT_INSTRUCTIONS, DEPTH_NOTE_ENTRY
from bot.prompting.lorebook.files import read_lorebook
from bot.prompting.presets.fields import MAX_NAME_CHARS, find_name_problem
from bot.prompting.presets.files import validate_preset
from bot.prompting.presets.preset import DEFAULT_MODEL, Preset
from bot.prompting.speakers import clean_name
from bot.prompting.text.jsonc import JsonFields

_MAX_DESCRIPTION_CHARS = 200
_DEFAULT_SAMPLING = {"temperature": 0.8}  # every service accepts it
_LOCAL_SAMPLING = {"temperature": 0.8, "top_p": 0.95, "repeat_penalty": 1.1}
_EXAMPLE_START = re.compile(r"^[ \t]*<START>[ \t]*$", re.IGNORECASE | re.MULTILINE)
# "fav" and "world" are for SillyTavern's own lists; a card contains its lorebook itself.
_KNOWN_EXTENSIONS = frozenset({"regex_scripts", "depth_prompt", "talkativeness", "fav", "world"})
_POSITION_AT_DEPTH = 4  # SillyTavern's number
_DEFAULT_DEPTH = 4
_ROLE_NUMBERS = {"system": 0, "user": 1, "assistant": 2}


def preset_from_card(
    card: Card,
    source: str,
    *,
    name: str | None = None,
    provider: str = "local",
    model: str = DEFAULT_MODEL,
    local_model: bool = True,
) -> Preset:
    """Convert a card from file `source`, adding sampling parameters, or raise `PresetError`."""
    fields = card.fields
    character_names = card.name, fields.text("nickname")
    data: dict[str, object] = {
        "name": name or _to_preset_name(card.name),
        "provider": provider,
        "model": model,
        "role_name": clean_name(character_names[1] or character_names[0]) or "character",
        "description": _first_line(fields.text("creator_notes")),
        "system": fields.text("system_prompt").strip() or DEFAULT_INSTRUCTIONS,
        "persona": fields.text("description").strip() or None,
        "personality": fields.text("personality").strip() or None,
        "scenario": fields.text("scenario").strip() or None,
        "messages": parse_example_turns(fields.text("mes_example"), character_names),
        "greeting": fields.text("first_mes") or None,
        "alternate_greetings": fields.texts("alternate_greetings"),
        "group_greetings": fields.texts("group_only_greetings"),
        "post_history_instructions": fields.text("post_history_instructions") or None,
        "lorebook": _read_lorebook(card, source),
        "macros": True,
        "regex_scripts": read_regex_scripts(card.extensions)[0],
        "parameters": _LOCAL_SAMPLING if local_model else _DEFAULT_SAMPLING,
        "talkativeness": _read_talkativeness(card),
        "adults_only": _is_for_adults(card) or None,
    }
    return validate_preset(data, source)


def card_notes(card: Card, preset: Preset) -> list[str]:
    """Return notes on what the preset omits or expresses differently than the card."""
    extra_keys = sorted(card.extensions.keys() - _KNOWN_EXTENSIONS)
    notes = [f"ignored extensions of the card: {', '.join(extra_keys)}"] if extra_keys else []
    return [*read_regex_scripts(card.extensions)[1], *notes, *ignored_content_notes(preset)]


def parse_example_turns(text: str, character_names: Sequence[str] = ()) -> list[Json]:
    """Split `mes_example` into messages; a line without a speaker continues the message before."""
    turns: list[tuple[str, str]] = []
    speaker_pattern = _compile_speaker_pattern(character_names)
    for block in _EXAMPLE_START.split(text):
        block_has_turn = False
        for line in block.strip().splitlines():
            speaker_match = speaker_pattern.match(line)
            if speaker_match:
                role = "user" if speaker_match["user"] else "assistant"
                turns.append((role, line[speaker_match.end() :].strip()))
            elif block_has_turn:
                role, content = turns[-1]
                turns[-1] = (role, f"{content}\n{line}")
            else:
                turns.append(("assistant", line))
            block_has_turn = True
    return [
        {"role": role, "content": content.strip()} for role, content in turns if content.strip()
    ]


def _compile_speaker_pattern(names: Sequence[str]) -> re.Pattern[str]:
    char_names = [r"\{\{char\}\}", "<bot>", "<char>", *(re.escape(name) for name in names if name)]
    user_tag = r"\{\{user\}\}|<user>"
    return re.compile(rf"\s*(?:(?P<user>{user_tag})|{'|'.join(char_names)})\s*[:：]", re.IGNORECASE)


def _read_talkativeness(card: Card) -> float | None:
    try:
        talkativeness = float(str(card.extensions.get("talkativeness")))
    except ValueError:
        return None
    return talkativeness if 0 <= talkativeness <= 1 else None  # NaN is out of range


def _is_for_adults(card: Card) -> bool:
    """Return whether a card has the tag `nsfw`, as in SillyTavern, or RisuAI's flag `nsfw`."""
    flag_containers = (card.fields.values, card.extensions, card.extensions.get("risuai"))
    has_nsfw_flag = any(JsonFields(one).values.get("nsfw") is True for one in flag_containers)
    return has_nsfw_flag or any(tag.strip().lower() == "nsfw" for tag in card.fields.texts("tags"))


def _read_lorebook(card: Card, source: str) -> Json | None:
    """Return the card's lorebook, or None; a depth prompt becomes a permanently active entry."""
    note = JsonFields(card.extensions.get("depth_prompt"))
    book = card.fields.object_or_none("character_book")
    if isinstance(entry_list := card.fields.values.get("character_book"), list):
        book = {"entries": entry_list}  # some programs write only the list
    if note.text("prompt").strip():
        entry = {
            "keys": [],
            "content": note.text("prompt"),
            "name": DEPTH_NOTE_ENTRY,
            "constant": True,
            "enabled": True,
            "insertion_order": 0,
            "extensions": {
                "position": _POSITION_AT_DEPTH,
                "depth": _DEFAULT_DEPTH if (depth := note.integer("depth")) is None else depth,
                "role": _ROLE_NUMBERS.get(note.text("role"), 0),
                "ignore_budget": True,
            },
        }
        entries = book.get("entries") if book else []
        rows = list(entries.values()) if isinstance(entries, dict) else entries
        book = {**(book or {}), "entries": [*(rows if isinstance(rows, list) else []), entry]}
    if book is None:
        return None
    read_lorebook(book, source)
    return book


def _to_preset_name(name: str) -> str:
    cleaned_name = clean_name(name).lstrip(".-~ ")[:MAX_NAME_CHARS] or "character"
    return cleaned_name if find_name_problem(cleaned_name) is None else f"card {cleaned_name}"


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:_MAX_DESCRIPTION_CHARS] if lines else ""
