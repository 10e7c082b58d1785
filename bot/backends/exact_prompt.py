"""Reconstruct the exact prompt of an answer from its receipt."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from bot.backends.chat_completions.wire import describe_request, to_wire
from bot.backends.factory import make_backend
from bot.backends.spec import ProviderSettings
from bot.chat.prompt import PromptDescription
from bot.chat.receipt import Receipt
from bot.errors import BackendUnavailable
from bot.prompting.fit import prompt_tokens
from bot.templates.renderer import Renderer


class PastPromptWriter:
    """Writes complete prompts as text: includes the preset's instructions, but masks secrets."""

    def __init__(
        self,
        providers: Mapping[str, ProviderSettings],
        data_dir: Path,
        renderer: Renderer,
        mask_secrets: Callable[[str], str],
    ) -> None:
        self._providers = providers
        self._data_dir = data_dir
        self._renderer = renderer
        self.mask = mask_secrets

    async def format(self, receipt_number: int, receipt: Receipt) -> str:
        """Return a few lines about the prompt, a blank line, and the prompt itself."""
        description = await self._describe_with_secrets(receipt)
        version_note = f" (version {receipt.preset_version})" if receipt.preset_version else ""
        limit = f" of at most {receipt.limit}" if receipt.limit else ""
        fields = {
            "receipt": f"{receipt_number}, {receipt.preset}{version_note}",
            "model": f"{receipt.provider} / {description.model}",
            "tokens": f"{prompt_tokens(receipt)}{limit}",
            **description.details,
        }
        lines = [f"{name}: {value}" for name, value in fields.items()]
        text = self.mask("\n".join([*lines, "", description.text.rstrip("\n"), ""]))
        return text.replace("\0", "␀")  # PostgreSQL cannot store NUL

    async def describe(self, receipt: Receipt) -> PromptDescription:
        description = await self._describe_with_secrets(receipt)
        return replace(description, text=self.mask(description.text))

    async def _describe_with_secrets(self, receipt: Receipt) -> PromptDescription:
        settings = self._providers.get(receipt.provider)
        if settings is None:
            return _describe_messages(receipt, "its provider is no longer configured")
        backend = make_backend(receipt.provider, settings, self._data_dir, self._renderer)
        try:
            return await backend.describe(receipt.prompt)
        except BackendUnavailable as error:
            return _describe_messages(receipt, f"the prompt can no longer be rendered: {error}")
        finally:
            await backend.close()


def _describe_messages(receipt: Receipt, reason: str) -> PromptDescription:
    prompt = receipt.prompt
    description = describe_request(prompt.model, to_wire(prompt, prompt.model))
    return replace(description, details={"template": f"none; {reason}"})
