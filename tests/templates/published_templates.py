"""Published models' own templates, from the golden vectors."""

import json
from functools import cache

from bot.templates import JinjaTemplate
from tests.shared_data import shared_folder


@cache
def published_templates() -> dict[str, JinjaTemplate]:
    path = shared_folder() / "golden" / "chat_templates.templates.json"
    entries = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: JinjaTemplate(
            entry["template"], bos_token=entry["bos_token"], eos_token=entry["eos_token"]
        )
        for name, entry in entries.items()
    }
