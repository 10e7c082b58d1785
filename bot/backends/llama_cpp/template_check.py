"""Check the chat template in a model's file: its pinned hash, and words of its own."""

import hashlib
from pathlib import Path

import structlog

from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.model_files.gguf import read_special_tokens
from bot.errors import SettingsError, TemplateError
from bot.templates.added_text import find_added_text
from bot.templates.renderer import ModelTemplate, Renderer

_log = structlog.get_logger(__name__)
_MAX_TEXT_CHARS = 300


def check_template_pin(model: Path, settings: LlamaCppSettings, provider: str) -> None:
    """Compare the template with the pinned hash, if there is one.

    Raises:
        SettingsError: it is another template, or the file is no model.
    """
    if settings.template_sha256 is None:
        return
    found = _sha256(read_special_tokens(model).chat_template or "")
    if found != settings.template_sha256:
        raise SettingsError(
            f"the chat template in {model.name} has the SHA-256 {found}, not the one in"
            f" {_pin(provider)}; use the file that you pinned, or pin this one"
        )


async def warn_of_added_text(
    model: Path,
    template: ModelTemplate,
    renderer: Renderer,
    settings: LlamaCppSettings,
    provider: str,
) -> None:
    """Log what the template says to the model in every prompt, unless the template is pinned."""
    if settings.template_sha256 is not None:
        return
    try:
        added = await find_added_text(template, renderer)
    except TemplateError as error:  # the first prompt will report it
        _log.info("model_template_unchecked", model=model.name, reason=str(error))
        return
    if added.text:
        other = f'set "template": "{added.nearest}" in the preset, or ' if added.nearest else ""
        _log.warning(
            "model_template_adds_text",
            model=model.name,
            text=added.text[:_MAX_TEXT_CHARS],
            sha256=_sha256(template.source or ""),
            remedy=f"{other}accept it and pin it with {_pin(provider)}",
        )


def _pin(provider: str) -> str:
    return f"TROUPE_PROVIDERS__{provider.upper()}__TEMPLATE_SHA256"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
