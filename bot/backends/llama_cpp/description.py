"""Describe what a model on this machine reads for a prompt: the text that a template writes."""

import asyncio
import json
from pathlib import Path

from bot.backends.chat_completions.stop_strings import stop_strings_of
from bot.backends.chat_completions.wire import parameters
from bot.backends.llama_cpp.images import insert_image_placeholders
from bot.backends.model_files.gguf import read_special_tokens
from bot.chat.prompt import Prompt, PromptDescription, TemplateChoice
from bot.templates.families.detection import detect_family
from bot.templates.renderer import FALLBACK_TEMPLATE, ModelTemplate, Renderer


async def describe_rendered(
    prompt: Prompt, model_file: Path, renderer: Renderer
) -> PromptDescription:
    """Render a prompt as its model would read it, without loading the model.

    Raises:
        SettingsError: the file is not a model.
        TemplateError: the template cannot be used.
    """
    own = await read_model_template(model_file)
    rendered = await renderer.render(
        insert_image_placeholders(prompt.messages), prompt.template, own, has_prefill=True
    )
    stop = list(dict.fromkeys([*stop_strings_of(prompt), *rendered.stop]))
    limit = {} if prompt.max_output_tokens is None else {"max_tokens": prompt.max_output_tokens}
    template = name_template(prompt.template, own)
    source = prompt.template.source or own.source or ""
    dated = "; the date that it writes is today's" if "strftime_now" in source else ""
    details = {
        "template": f"{template}; text from people is read as plain text{dated}",
        "parameters": json.dumps({**parameters(prompt), **limit}, ensure_ascii=False),
        "stop": json.dumps(stop, ensure_ascii=False),
    }
    return PromptDescription(model_file.stem, details, rendered.text, is_rendered=True)


async def read_model_template(model_file: Path) -> ModelTemplate:
    """Read the template from a model's file; raises `SettingsError` if it is no model."""
    tokens = await asyncio.to_thread(read_special_tokens, model_file)
    return ModelTemplate(tokens.chat_template, tokens.bos_token, tokens.eos_token)


def name_template(choice: TemplateChoice, own: ModelTemplate) -> str:
    """Say in a few words which template writes a prompt."""
    if choice.named is not None:
        return f"{choice.named}, as the preset says"
    if choice.strings is not None:
        return "the preset's own string templates"
    if choice.role_texts is not None:
        return "the preset's own texts around each role"
    if choice.source is not None:
        return "the preset's own Jinja template"
    if own.source is None:
        return f"{FALLBACK_TEMPLATE}, because the model has none"
    family = detect_family(own.source)
    return f"the model's own ({family})" if family else "the model's own"
