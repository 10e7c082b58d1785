"""Templates of published models from the golden vectors, and their capabilities."""

import asyncio
import json
from collections.abc import Sequence
from functools import cache

from bot.chat.prompt import TemplateCapabilities
from bot.errors import TemplateError
from bot.templates import JinjaTemplate
from bot.templates.capabilities import detect_capabilities, has_content_parts
from bot.templates.control_tokens import ChatTemplate, render_messages
from bot.templates.jinja_template import Message
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


def detect_all_capabilities(template: ChatTemplate) -> TemplateCapabilities:
    async def render(messages: Sequence[Message]) -> str:
        if has_content_parts(messages) and not isinstance(template, JinjaTemplate):
            raise TemplateError("lists of parts")
        return render_messages(template, messages)

    return asyncio.run(detect_capabilities(render))
