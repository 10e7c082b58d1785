"""A character card as one value: read from PNG, JSON or CHARX, and written back without a loss.

V1 is a flat object of six texts, V2 and V3 keep their fields under `data`. Whatever a card says
beyond what we know (extensions, keys of other programs) stays in `content`, and goes out again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath

from bot.errors import PresetError
from bot.importers.cards import charx as cards_charx
from bot.importers.cards import png as cards_png
from bot.importers.cards.safe_json import MAX_FILE_BYTES, Json, dump, load
from bot.prompting.text.json_fields import JsonFields

__all__ = ["MAX_FILE_BYTES", "Card", "CardContainer", "CardSpec", "read_card", "write_card"]

_V1_TEXTS = ("name", "description", "personality", "scenario", "first_mes", "mes_example")
_MAX_NAME_CHARS = 1000
_V2_BLANKS: Json = {
    "creator_notes": "",
    "system_prompt": "",
    "post_history_instructions": "",
    "alternate_greetings": [],
    "tags": [],
    "creator": "",
    "character_version": "",
    "extensions": {},
}


class CardSpec(StrEnum):
    V1 = "v1"
    V2 = "v2"
    V3 = "v3"


class CardContainer(StrEnum):
    """The kinds of files that carry a card."""

    JSON = "json"
    PNG = "png"
    CHARX = "charx"


@dataclass(frozen=True, slots=True)
class Card:
    """What a card says. The typed fields are read from `content`, which is the card's own JSON."""

    spec: CardSpec
    content: Json
    name: str
    nickname: str = ""  # V3: what {{char}} becomes, where it is given
    description: str = ""
    personality: str = ""
    scenario: str = ""
    first_mes: str = ""
    mes_example: str = ""
    creator_notes: str = ""
    system_prompt: str = ""
    post_history_instructions: str = ""
    creator: str = ""
    character_version: str = ""
    alternate_greetings: tuple[str, ...] = ()
    group_only_greetings: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    character_book: Json | None = None
    extensions: Json = field(default_factory=dict)
    # A PNG may carry a second card for programs that do not read V3; it is kept as it was.
    older: Json | None = None
    image: bytes | None = None  # a PNG without its cards
    assets: Mapping[str, bytes] = field(default_factory=dict)  # of a CHARX, by path


def read_card(data: bytes, source: str) -> Card:
    """Tell the kind of file by its first bytes, whatever it is called.

    Raises:
        PresetError: it carries no card, or is broken or too large; the text names `source`.
    """
    if len(data) > MAX_FILE_BYTES:
        limit = MAX_FILE_BYTES // 2**20
        raise PresetError(f"{source} is larger than {limit} MiB; shrink its images")
    if data.startswith(cards_png.SIGNATURE):
        found = cards_png.read(data, source)
        newest = found.v3 or found.v2
        older = load(found.v2, source) if found.v2 and found.v3 else None
        return _card(load(newest, source), source, image=found.image, older=older)
    if data.startswith(b"PK\x03\x04"):
        text, assets = cards_charx.read(data, source)
        return _card(load(text, source), source, assets=assets)
    if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return _card(load(data, source), source)
    raise PresetError(f"{source} is no character card: it is neither a PNG, a CHARX nor JSON")


def write_card(card: Card, container: CardContainer) -> bytes:
    """Write a card in any container; its fields and its image stay what they are."""
    match container:
        case CardContainer.JSON:
            return dump(card.content, indent=2)
        case CardContainer.PNG:
            newest = dump(card.content) if card.spec is CardSpec.V3 else None
            older = card.older or (_as_v2(card) if card.spec is CardSpec.V3 else card.content)
            return cards_png.write(_picture(card), v2=dump(older), v3=newest)
        case CardContainer.CHARX:
            assets = dict(card.assets)
            if card.image is not None and not assets:
                assets[cards_charx.MAIN_ICON] = card.image
            return cards_charx.write(dump(_as_v3(card), indent=2), assets)


def _card(
    content: Json,
    source: str,
    *,
    image: bytes | None = None,
    older: Json | None = None,
    assets: Mapping[str, bytes] | None = None,
) -> Card:
    spec, fields = _spec_and_fields(content, source)
    read = JsonFields(fields, source)
    if not read.text("name").strip():
        raise PresetError(f"{source}: the card has no name; give it one in the field `name`")
    if max(len(read.text("name")), len(read.text("nickname"))) > _MAX_NAME_CHARS:
        raise PresetError(f"{source}: its name is over {_MAX_NAME_CHARS} characters; shorten it")
    return Card(
        spec=spec,
        content=content,
        name=read.text("name"),
        nickname=read.text("nickname"),
        description=read.text("description"),
        personality=read.text("personality"),
        scenario=read.text("scenario"),
        first_mes=read.text("first_mes"),
        mes_example=read.text("mes_example"),
        creator_notes=read.text("creator_notes"),
        system_prompt=read.text("system_prompt"),
        post_history_instructions=read.text("post_history_instructions"),
        creator=read.text("creator"),
        character_version=read.text("character_version"),
        alternate_greetings=read.texts("alternate_greetings"),
        group_only_greetings=read.texts("group_only_greetings"),
        tags=read.texts("tags"),
        character_book=read.object_or_none("character_book"),
        extensions=read.object_or_none("extensions") or {},
        older=older,
        image=image,
        assets=assets or {},
    )


def _spec_and_fields(content: Json, source: str) -> tuple[CardSpec, Json]:
    kinds = {"chara_card_v2": CardSpec.V2, "chara_card_v3": CardSpec.V3}
    spec, fields = content.get("spec"), content.get("data")
    if isinstance(spec, str) and isinstance(fields, dict):
        if spec in kinds:
            return kinds[spec], fields
        raise PresetError(
            f"{source}: the card's spec {spec!r} is unknown; chara_card_v2 and chara_card_v3 are"
            " read, so export it as one of them"
        )
    if "name" in content and any(key in content for key in ("first_mes", "description")):
        return CardSpec.V1, content
    raise PresetError(f"{source} is JSON, but no character card: it has no `spec` with `data`")


def _as_v2(card: Card) -> Json:
    if card.spec is CardSpec.V1:
        known = {key: card.content.get(key, "") for key in _V1_TEXTS}
        return {
            "spec": "chara_card_v2",
            "spec_version": "2.0",
            "data": {**known, **_V2_BLANKS, **card.content},
        }
    return {**card.content, "spec": "chara_card_v2", "spec_version": "2.0"}


def _as_v3(card: Card) -> Json:
    if card.spec is CardSpec.V3:
        return card.content
    content = _as_v2(card)
    fields = content["data"]
    if not isinstance(fields, dict):
        raise TypeError("a card's data is an object")
    return {
        **content,
        "spec": "chara_card_v3",
        "spec_version": "3.0",
        "data": {"group_only_greetings": [], **fields},
    }


def _picture(card: Card) -> bytes:
    """Give the card's own image, an icon among its assets, or a plain one."""
    if card.image is not None:
        return card.image
    icons = [
        data
        for path, data in card.assets.items()
        if data.startswith(cards_png.SIGNATURE) and "icon" in PurePath(path).parts
    ]
    return icons[0] if icons else cards_png.plain_image()
