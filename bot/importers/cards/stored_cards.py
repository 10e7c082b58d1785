"""The cards that presets were imported from, kept unchanged beside the presets."""

import json
from pathlib import Path

from bot.errors import UserError
from bot.importers.cards.card import Card, read_card
from bot.prompting.presets.preset import Preset
from bot.texts.text import translatable

_CARDS_FOLDER = "cards"


def card_file(folder: Path, preset: Preset) -> Path:
    """Return where the card of a preset is kept, inside the presets folder."""
    return folder / _CARDS_FOLDER / f"{preset.id}.card"


def load_card(preset: Preset, folder: Path) -> Card:
    """Return the card that a preset was imported from, or one made of the preset.

    Raises:
        UserError: the card cannot be read.
        PresetError: it is none.
    """
    file = card_file(folder, preset)
    if not file.is_file():
        return read_card(json.dumps(_as_card(preset)).encode(), preset.name)
    try:
        return read_card(file.read_bytes(), str(file))
    except OSError as error:
        raise UserError(
            translatable("{file} cannot be read: {reason}", file=file, reason=error.strerror)
        ) from None


def _as_card(preset: Preset) -> dict[str, object]:
    examples = [
        f"{'{{user}}' if one.role == 'user' else '{{char}}'}: {one.text}" for one in preset.messages
    ]
    fields: dict[str, object] = {
        "name": preset.character_name,
        "description": preset.persona or "",
        "personality": preset.personality or "",
        "scenario": preset.scenario or "",
        "first_mes": preset.greeting or "",
        "mes_example": "\n".join(["<START>", *examples]) if examples else "",
        "creator_notes": preset.description,
        "system_prompt": preset.system or "",
        "post_history_instructions": preset.post_history_instructions or "",
        "alternate_greetings": list(preset.alternate_greetings),
        "group_only_greetings": list(preset.group_greetings),
        "tags": [],
        "creator": "",
        "character_version": str(preset.version),
        "extensions": {},
    }
    if isinstance(preset.lorebook, dict) and isinstance(preset.lorebook.get("entries"), list):
        fields["character_book"] = preset.lorebook
    return {"spec": "chara_card_v3", "spec_version": "3.0", "data": fields}
