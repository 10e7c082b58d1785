"""Write out the exact prompt of an answer from its receipt, as the model read it, secrets removed.

What runs here reads a text, which the same template writes once more; a service reads messages, and
the body of the request is made once more by what made it then.
"""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bot.backends.chat_completions.stop_strings import stop_strings_of
from bot.backends.chat_completions.wire import parameters, to_wire
from bot.backends.llama_cpp.images import marked
from bot.backends.model_files import store as model_store
from bot.backends.model_files.gguf import read_special_tokens
from bot.chat.prompt import Prompt, TemplateChoice
from bot.chat.receipt import Receipt
from bot.errors import SettingsError, TemplateError
from bot.prompting.draft.token_shares import prompt_tokens
from bot.settings import ProviderSettings, Settings, secrets_of
from bot.telemetry.logs import SecretMasker
from bot.templates.families.detection import detect_family
from bot.templates.renderer import FALLBACK_TEMPLATE, ModelTemplate, Renderer

_READ_PLAINLY = "what people wrote is read as plain text"
_MOST_URL_CHARS = 80  # of an image: a `data:` URI has millions


@dataclass(frozen=True, slots=True)
class _Written:
    model: str
    head: dict[str, str]  # what else is worth knowing, by its name
    text: str


class ExactPrompts:
    """Used by whoever may see everything: a prompt holds a preset's instructions."""

    def __init__(self, settings: Settings, renderer: Renderer) -> None:
        self._settings = settings
        self._renderer = renderer
        self.mask = SecretMasker(secrets_of(settings)).mask

    async def write_out(self, number: int, receipt: Receipt) -> str:
        """A few lines on what this is, a blank one, and the prompt to the letter."""
        written = await self._written(receipt)
        version = f" (version {receipt.preset_version})" if receipt.preset_version else ""
        limit = f" of at most {receipt.limit}" if receipt.limit else ""
        head = {
            "receipt": f"{number}, {receipt.preset}{version}",
            "model": f"{receipt.provider} / {written.model}",
            "tokens": f"{prompt_tokens(receipt)}{limit}",
            **written.head,
        }
        lines = [f"{name}: {value}" for name, value in head.items()]
        text = self.mask("\n".join([*lines, "", written.text.rstrip("\n"), ""]))
        return text.replace("\0", "␀")  # PostgreSQL keeps no text with it

    async def _written(self, receipt: Receipt) -> _Written:
        provider = self._settings.providers.get(receipt.provider)
        if provider is None:
            return _as_messages(receipt.prompt, "its provider is not set up any more")
        if provider.kind != "llama_cpp":
            return _as_sent(receipt.prompt, provider)
        try:
            return await self._rendered(receipt.prompt, provider)
        except (SettingsError, TemplateError) as error:
            return _as_messages(receipt.prompt, f"the text cannot be written any more: {error}")

    async def _rendered(self, prompt: Prompt, provider: ProviderSettings) -> _Written:
        file = model_store.find_model(prompt.model, provider, self._settings.data_dir)
        own = await asyncio.to_thread(template_in, file)
        rendered = await self._renderer.render(marked(prompt.messages), prompt.template, own)
        stop = list(dict.fromkeys([*stop_strings_of(prompt), *rendered.stop]))
        limit = {} if prompt.max_output_tokens is None else {"max_tokens": prompt.max_output_tokens}
        head = {
            "template": f"{named(prompt.template, own)}; {_READ_PLAINLY}{_dated(prompt, own)}",
            "parameters": _json({**parameters(prompt), **limit}),
            "stop": _json(stop),
        }
        return _Written(file.stem, head, rendered.text)


def template_in(model: Path) -> ModelTemplate:
    """What a model's file brings along; raises SettingsError when it is no model."""
    tokens = read_special_tokens(model)
    return ModelTemplate(tokens.chat_template, tokens.bos_token, tokens.eos_token)


def named(choice: TemplateChoice, own: ModelTemplate) -> str:
    """Say which template writes the text."""
    if choice.named is not None:
        return f"{choice.named}, as the preset says"
    if choice.strings is not None:
        return "the preset's own texts around each message"
    if choice.source is not None:
        return "the preset's own Jinja"
    if own.source is None:
        return f"{FALLBACK_TEMPLATE}, for the model brings none"
    family = detect_family(own.source)
    return f"the model's own ({family})" if family else "the model's own"


def _dated(prompt: Prompt, own: ModelTemplate) -> str:
    source = prompt.template.source or own.source or ""
    return "; the date that it writes is today's" if "strftime_now" in source else ""


def _as_sent(prompt: Prompt, provider: ProviderSettings) -> _Written:
    model = prompt.model if prompt.model != "default" else provider.model or prompt.model
    body = _body(prompt, model, names=bool(provider.message_names))
    return _Written(model, {"template": "the service's own; it was sent messages"}, body)


def _as_messages(prompt: Prompt, why: str) -> _Written:
    return _Written(prompt.model, {"template": f"none; {why}"}, _body(prompt, prompt.model))


def _body(prompt: Prompt, model: str, *, names: bool = False) -> str:
    """The body of a request in chat completions' form, with its images cut short."""
    body: dict[str, Any] = msgspec.json.decode(to_wire(prompt, model, names=names))
    for message in body["messages"]:
        parts = message["content"] if isinstance(message["content"], list) else ()
        for part in parts:
            if image := part.get("image_url"):
                image["url"] = _short(image["url"])
    return json.dumps(body, ensure_ascii=False, indent=2)


def _short(url: str) -> str:
    return url if len(url) <= _MOST_URL_CHARS else f"{url[:_MOST_URL_CHARS]}… ({len(url)} letters)"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
