"""Read and write character cards (V1, V2, V3) without loss (docs/sources.md#cards)."""

import json
import re
from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Any

from bot.errors import PresetError, UserError
from bot.importers import archives as charx
from bot.importers import png
from bot.prompting.presets.preset import Preset
from bot.prompting.text.jsonc import JsonFields, JsonSyntaxError, read_strict_json
from bot.value_class import value_class

Json = dict[str, object]

MAX_FILE_BYTES = 10 * 2**20


def _load_json(data: bytes) -> Json:
    try:
        value = read_strict_json(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise PresetError.translatable("the card's text is not UTF-8; export it again") from None
    except JsonSyntaxError as error:
        raise PresetError.translatable(
            "the card is not valid JSON ({problem}); export it again", problem=error.problem
        ) from None
    if not isinstance(value, dict):
        raise PresetError.translatable("the card is not a JSON object {{...}}; export it again")
    return value


def dump_json(content: Json, *, indent: int | None = None) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=indent, allow_nan=False).encode()


_V1_TEXT_KEYS = ("name", "description", "personality", "scenario", "first_mes", "mes_example")
_V2_TEXT_KEYS = (
    *("creator_notes", "system_prompt", "post_history_instructions", "creator"),
    "character_version",
)
_MAX_NAME_CHARS = 1000
_V2_DEFAULTS: Json = {
    **dict.fromkeys(_V2_TEXT_KEYS, ""),
    "alternate_greetings": [],
    "tags": [],
    "extensions": {},
}


class CardSpec(StrEnum):
    V1 = "v1"
    V2 = "v2"
    V3 = "v3"


class CardContainer(StrEnum):
    JSON = "json"
    PNG = "png"
    CHARX = "charx"


@value_class
class Card:
    """A character card: its JSON, and the rest of its file."""

    spec: CardSpec
    content: Json
    fields: JsonFields = field(compare=False)
    v2_twin: Json | None = None
    """The V2 card that a PNG may contain for programs that cannot read V3."""
    bare_png: bytes | None = None
    """The PNG without the cards in it."""
    assets: Mapping[str, bytes] = field(default_factory=dict)
    """The other files in a CHARX, by path."""

    @property
    def name(self) -> str:
        return self.fields.text("name")

    @property
    def extensions(self) -> Json:
        return self.fields.object_or_none("extensions") or {}


def read_card(data: bytes, source: str) -> Card:
    """Parse a card from a file of any kind; raise `PresetError` if it is not a card.

    `source` is the file's name in errors.
    """
    try:
        return _parse_card(data)
    except PresetError as error:
        raise error.prefixed_with(source) from None


def _parse_card(data: bytes) -> Card:
    if len(data) > MAX_FILE_BYTES:
        limit = MAX_FILE_BYTES // 2**20
        raise PresetError.translatable(
            "it is larger than {limit} MiB; shrink its images", limit=limit
        )
    if data.startswith(png.SIGNATURE):
        image, v2_json, v3_json = png.read_png(data)
        v2_card = _load_json(v2_json) if v2_json and v3_json else None
        return replace(_make_card(_load_json(v3_json or v2_json)), bare_png=image, v2_twin=v2_card)
    if data.startswith(b"PK\x03\x04"):
        card_json, assets = charx.read_charx(data)
        return replace(_make_card(_load_json(card_json)), assets=assets)
    if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return _make_card(_load_json(data))
    raise PresetError.translatable("it is not a character card (PNG, CHARX, or a JSON object)")


def encode_card(card: Card, container: CardContainer) -> bytes:
    """Return the bytes of a file that contains the card with all its fields and its image."""
    match container:
        case CardContainer.JSON:
            return dump_json(card.content, indent=2)
        case CardContainer.PNG:
            is_v3 = card.spec is CardSpec.V3
            v3_json = dump_json(card.content) if is_v3 else None
            v2_card = card.v2_twin or (_to_v2(card) if is_v3 else card.content)
            image = find_character_image(card) or png.blank_image()
            return png.encode_png(image, v2_json=dump_json(v2_card), v3_json=v3_json)
        case CardContainer.CHARX:
            assets = dict(card.assets)
            if card.bare_png is not None and not assets:
                assets[charx.MAIN_ICON_PATH] = card.bare_png
            return charx.encode_charx(dump_json(_to_v3(card), indent=2), assets)


def _make_card(content: Json) -> Card:
    spec, fields = _find_spec_and_fields(content)
    text_fields = JsonFields(fields)
    if not text_fields.text("name").strip():
        raise PresetError.translatable("the card has no name; set the field `name`")
    if max(len(text_fields.text("name")), len(text_fields.text("nickname"))) > _MAX_NAME_CHARS:
        raise PresetError.translatable(
            "the name is longer than {limit} characters; shorten it", limit=_MAX_NAME_CHARS
        )
    return Card(spec, content, text_fields)


def _find_spec_and_fields(content: Json) -> tuple[CardSpec, Json]:
    known_specs = {"chara_card_v2": CardSpec.V2, "chara_card_v3": CardSpec.V3}
    spec, fields = content.get("spec"), content.get("data")
    if isinstance(spec, str) and isinstance(fields, dict):
        if spec in known_specs:
            return known_specs[spec], fields
        raise PresetError.translatable(
            "the card's spec {spec} is unknown; export it as chara_card_v2 or chara_card_v3",
            spec=repr(spec),
        )
    if "name" in content and any(key in content for key in ("first_mes", "description")):
        return CardSpec.V1, content
    raise PresetError.translatable(
        "it is JSON, but not a character card: it has no `spec` with `data`"
    )


def _to_v2(card: Card) -> Json:
    if card.spec is CardSpec.V1:
        v1_fields = {key: card.content.get(key, "") for key in _V1_TEXT_KEYS}
        return {
            "spec": "chara_card_v2",
            "spec_version": "2.0",
            "data": {**v1_fields, **_V2_DEFAULTS, **card.content},
        }
    return {**card.content, "spec": "chara_card_v2", "spec_version": "2.0"}


def _to_v3(card: Card) -> Json:
    if card.spec is CardSpec.V3:
        return card.content
    content: dict[str, Any] = _to_v2(card)
    fields = {"group_only_greetings": [], **content["data"]}
    return {**content, "spec": "chara_card_v3", "spec_version": "3.0", "data": fields}


def find_character_image(card: Card) -> bytes | None:
    """Return the character's PNG in a card's file, or None."""
    if card.bare_png is not None:
        return card.bare_png
    for path, data in card.assets.items():
        if data.startswith(png.SIGNATURE) and "icon" in PurePath(path).parts:
            return data
    return None


_CARDS_FOLDER = "cards"


def card_file(folder: Path, preset: Preset) -> Path:
    """Return the path of a preset's card in the presets folder."""
    return folder / _CARDS_FOLDER / f"{preset.id}.card"


def load_card(preset: Preset, folder: Path) -> Card:
    """Return the card from which a preset was imported, or a new card for the preset.

    Raises `UserError` or `PresetError`.
    """
    file = card_file(folder, preset)
    if not file.is_file():
        card_json = {"spec": "chara_card_v3", "spec_version": "3.0", "data": card_fields(preset)}
        return read_card(json.dumps(card_json).encode(), preset.name)
    try:
        return read_card(file.read_bytes(), str(file))
    except OSError as error:
        raise UserError.translatable(
            "{file} cannot be read: {reason}", file=file, reason=error.strerror
        ) from None


def card_fields(preset: Preset) -> Json:
    """Return the `data` of a card that is created from a preset."""
    example_lines = [
        f"{'{{user}}' if one.role == 'user' else '{{char}}'}: {one.text}" for one in preset.messages
    ]
    fields: Json = {
        "name": preset.character_name,
        "description": preset.persona or "",
        "personality": preset.personality or "",
        "scenario": preset.scenario or "",
        "first_mes": preset.greeting or "",
        "mes_example": "\n".join(["<START>", *example_lines]) if example_lines else "",
        "creator_notes": preset.description,
        "system_prompt": preset.system or "",
        "post_history_instructions": preset.post_history_instructions or "",
        "alternate_greetings": list(preset.alternate_greetings),
        "group_only_greetings": list(preset.group_greetings),
        "tags": ["nsfw"] if preset.adults_only else [],
        "creator": "",
        "character_version": str(preset.version),
        "extensions": {},
    }
    book = preset.lorebook
    if isinstance(book, dict) and isinstance(entries := book.get("entries"), list | dict):
        rows = entries if isinstance(entries, list) else map(to_card_entry, entries.values())
        fields["character_book"] = {**book, "entries": [*rows]}
    return fields


_CARD_KEYS = {
    "uid": "id",
    "key": "keys",
    "keysecondary": "secondary_keys",
    "order": "insertion_order",
    **{name: name for name in ("comment", "content", "constant", "selective")},
}
_CASE_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])")
_UNCHANGED_KEYS = frozenset({"selectiveLogic", "useProbability"})


def to_card_entry(entry: object) -> object:
    """Convert a World Info entry to an entry of a card's `character_book`, like SillyTavern."""
    if not isinstance(entry, dict):
        return entry
    converted_keys = {*_CARD_KEYS, "disable", "extensions"}
    other_fields = {
        name if name in _UNCHANGED_KEYS else _CASE_BOUNDARY.sub("_", name).lower(): value
        for name, value in entry.items()
        if name not in converted_keys
    }
    return {
        **{_CARD_KEYS[name]: value for name, value in entry.items() if name in _CARD_KEYS},
        "enabled": not entry.get("disable"),
        "position": "after_char" if entry.get("position") else "before_char",
        "extensions": {**other_fields, **JsonFields(entry.get("extensions")).values},
    }
