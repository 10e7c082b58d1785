"""Characters as files: a card comes in as a preset with the card kept beside it, and goes out."""

import json
from collections.abc import Mapping
from pathlib import Path

from bot.errors import UserError
from bot.importers.cards.card import MAX_FILE_BYTES, Card, CardContainer, read_card, write_card
from bot.importers.cards.card_to_preset import preset_from_card
from bot.prompting.presets.files import export_preset, find_preset
from bot.prompting.presets.preset import Preset

_KEPT_IN = "cards"  # a folder in that of the presets


def import_character(file: Path, folder: Path, answers_like: Preset, name: str | None) -> Preset:
    """Write the preset of a card into the presets' folder, and keep the card as it is.

    It answers through the provider and the model of `answers_like`.

    Raises:
        UserError: the file cannot be read, or there is such a preset already.
        PresetError: it holds no card that can be used.
    """
    data = _read(file)
    card = read_card(data, str(file))
    preset = preset_from_card(
        card, str(file), name=name, provider=answers_like.provider, model=answers_like.model
    )
    target, kept = folder / f"{preset.id}.json", folder / _KEPT_IN / f"{preset.id}.card"
    if target.exists():
        raise UserError(f"{target} exists already; take it away first or choose another --name")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(data)
        target.write_text(export_preset(preset), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}") from None
    return preset


def export_character(
    name: str,
    presets: Mapping[str, Preset],
    folder: Path,
    file: Path,
    container: CardContainer | None,
) -> Preset:
    """Write a preset's kept card, or a card made of the preset, to a file.

    Without a container, the file's ending says which.
    """
    preset = find_preset(presets, name)
    if container is None:
        ending = file.suffix.lower().removeprefix(".")
        if ending not in {one.value for one in CardContainer}:
            raise UserError(f"{file} ends in no kind of card; say --as json, png or charx")
        container = CardContainer(ending)
    try:
        file.write_bytes(write_card(card_of(preset, folder), container))
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None
    return preset


def card_of(preset: Preset, folder: Path) -> Card:
    """The card that a preset came from, or one that says what the preset says."""
    kept = folder / _KEPT_IN / f"{preset.id}.card"
    if kept.is_file():
        return read_card(_read(kept), str(kept))
    return read_card(json.dumps(_as_card(preset)).encode(), preset.name)


def described(preset: Preset, card: Card) -> str:
    """Tell what a character brings along, for people to read."""
    book = preset.book
    facts = {
        "name": card.name,
        "plays as": preset.plays_as,
        "card": f"{card.spec.value.upper()} {card.character_version}".rstrip(),
        "by": card.creator,
        "tags": ", ".join(card.tags),
        "greetings": str(sum(map(bool, (preset.greeting, *preset.alternate_greetings)))),
        "example turns": str(len(preset.messages)),
        "lorebook": f"{len(book.entries)} entries" if book else "",
        "notes": card.creator_notes.strip(),
    }
    return "\n".join(f"{key}: {value}" for key, value in facts.items() if value and value != "0")


def _as_card(preset: Preset) -> dict[str, object]:
    said = [
        f"{'{{user}}' if one.role == 'user' else '{{char}}'}: {one.text}" for one in preset.messages
    ]
    fields: dict[str, object] = {
        "name": preset.plays_as,
        "description": preset.persona or "",
        "personality": "",
        "scenario": "",
        "first_mes": preset.greeting or "",
        "mes_example": "\n".join(["<START>", *said]) if said else "",
        "creator_notes": preset.description,
        "system_prompt": preset.system or "",
        "post_history_instructions": preset.post_history_instructions or "",
        "alternate_greetings": list(preset.alternate_greetings),
        "group_only_greetings": [],
        "tags": [],
        "creator": "",
        "character_version": str(preset.version),
        "extensions": {},
    }
    if isinstance(preset.lorebook, dict) and isinstance(preset.lorebook.get("entries"), list):
        fields["character_book"] = preset.lorebook
    return {"spec": "chara_card_v3", "spec_version": "3.0", "data": fields}


def _read(file: Path) -> bytes:
    """Read a file, but never more of it than a card may have."""
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
