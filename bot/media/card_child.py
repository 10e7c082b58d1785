"""A child process with limited resources that converts an untrusted character card to a preset.

It reads the card from stdin and writes JSON to stdout: the preset's text, or the problem in every
language. A card cannot choose a provider, a model or tools.
"""

import base64
import json
import sys
from importlib import import_module  # noqa: TID251 # its libraries are an extra
from pathlib import Path

from bot.errors import PresetError, UserError
from bot.importers.card import Card, find_character_image, read_card
from bot.importers.card_to_preset import preset_from_card
from bot.importers.file_kinds import CHARACTER_KINDS, FileKind, detect_file_kind
from bot.prompting.presets.files import export_preset
from bot.runtime.addresses import is_http_address
from bot.runtime.operating_system import limit_process
from bot.texts.text import LANGUAGES, error_text, marked, translatable, translate

_MAX_MEMORY_BYTES = 1024 * 1024 * 1024
_MAX_CPU_SECONDS = 10
_MAX_OPEN_FILES = 64
_PLACEHOLDER_PROVIDER = "active"
"""A placeholder for the provider, which the channel's active preset determines."""


def main() -> None:
    limit_process(_MAX_MEMORY_BYTES, _MAX_OPEN_FILES, _MAX_CPU_SECONDS)
    sys.stdout.write(json.dumps(convert_card(sys.stdin.buffer.read())))


def convert_card(data: bytes) -> dict[str, object]:
    """Convert a character card to a preset.

    Return "preset", the preset's text, and "picture", the embedded picture in base64. The picture
    is None if the card contains a picture's URL, or no readable picture. If the card cannot be
    converted, return "problem": the reason by language.
    """
    try:
        kind = detect_file_kind(data)
        if kind is FileKind.IMAGE:
            return _build_problem_result(kind.describe(Path("card")))
        if kind not in CHARACTER_KINDS | {FileKind.UNKNOWN}:
            text = marked("This is {kind}. Attach a character card: PNG, JSON or CHARX.")
            return _build_problem_result(translatable(text, kind=translatable(kind.value[0])))
        card = read_card(data, "card")
        preset = preset_from_card(card, "card", provider=_PLACEHOLDER_PROVIDER, local_model=False)
    except (PresetError, UserError) as error:
        return _build_problem_result(error_text(error))
    address = _find_picture_url(card)
    text = export_preset(preset.model_copy(update={"avatar": address}))
    return {"preset": text, "picture": None if address else _extract_picture(card)}


def _build_problem_result(text: str) -> dict[str, object]:
    return {"problem": {language: translate(text, language) for language in LANGUAGES}}


def _find_picture_url(card: Card) -> str | None:
    """Return the first http(s) URL of a picture in the card, or None."""
    assets = card.fields.values.get("assets")
    icon_urls = [
        asset.get("uri")
        for asset in (assets if isinstance(assets, list) else [])
        if isinstance(asset, dict) and asset.get("type") == "icon"
    ]
    urls = [url for url in (*icon_urls, card.fields.values.get("avatar")) if isinstance(url, str)]
    return next((url for url in urls if is_http_address(url)), None)


def _extract_picture(card: Card) -> str | None:
    image_bytes = find_character_image(card)
    if image_bytes is None:
        return None
    try:
        face_png = import_module("bot.media.conversion_child").crop_face(image_bytes)
        return base64.b64encode(face_png).decode()
    except Exception:  # noqa: BLE001 # missing library, or any error on a hostile file
        return None


if __name__ == "__main__":
    main()
