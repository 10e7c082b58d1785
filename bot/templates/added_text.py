"""Find the text that a model's own chat template adds to every prompt.

A GGUF from any source includes a template. Most add only control tokens and role names; one that
adds sentences speaks to the model before the preset's persona does.
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from bot.chat.prompt import Message, TemplateChoice
from bot.errors import TemplateError
from bot.templates.control_tokens import TextSpan
from bot.templates.family_templates import detect_family
from bot.templates.registry import names
from bot.templates.renderer import ModelTemplate, Renderer

_PROBE = (
    Message("system", "Zq system zq."),
    Message("user", "Zq question zq."),
    Message("assistant", "Zq answer zq."),
    Message("user", "Zq question zq."),
)
_MARKUP = re.compile(r"<[^<>\s]{1,40}>|\[/?(?:[A-Z_]{2,20}|gMASK)\]")
_WORD = re.compile(r"[^\W\d_]+")
_ROLES = frozenset(
    {
        *("system", "sys", "user", "human", "assistant", "ai", "bot", "gpt", "model", "developer"),
        *("tool", "instruction", "instructions", "input", "response", "question", "answer", "sop"),
        *("系统", "用户", "助手", "人类", "问", "答"),
    }
)
_MIN_SIMILARITY = 0.3


async def find_added_text(template: ModelTemplate, renderer: Renderer) -> tuple[str, str | None]:
    """Return the text that a model's template adds, and the closest registered template.

    Templates published with our families count as adding nothing, because we reviewed them. Raises
    as `Renderer.render` does.
    """
    if template.source is None or detect_family(template.source) is not None:
        return "", None
    rendered = await renderer.render(_PROBE, TemplateChoice(), template)
    added = _template_text(rendered.spans)
    plain = " ".join(_MARKUP.sub(" ", added).split())
    if all(word.casefold() in _ROLES for word in _WORD.findall(plain)):
        return "", None
    return plain, await _nearest(added, renderer)


async def _nearest(added: str, renderer: Renderer) -> str | None:
    """Return the registered template with the most similar control tokens, if any is close."""
    tokens = _MARKUP.findall(added)
    best, best_similarity = None, _MIN_SIMILARITY
    for name in names():
        try:
            rendered = await renderer.render(_PROBE, TemplateChoice(named=name), ModelTemplate())
        except TemplateError:
            continue
        theirs = _MARKUP.findall(_template_text(rendered.spans))
        similarity = SequenceMatcher(None, tokens, theirs, autojunk=False).ratio()
        if similarity > best_similarity:
            best, best_similarity = name, similarity
    return best


def _template_text(spans: Sequence[TextSpan]) -> str:
    return " ".join(span.text for span in spans if span.trusted)
