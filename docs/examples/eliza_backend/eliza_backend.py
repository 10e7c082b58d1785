"""A backend for Troupe without a model: some rules of Weizenbaum's ELIZA (1966).

    TROUPE_PLUGINS=eliza TROUPE_PROVIDERS__DOCTOR__KIND=eliza

Presets then use it with `"provider": "doctor", "model": "doctor"`.
"""

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Literal

from pydantic import Field

from bot.backends.chat_completions.wire import describe_request, to_wire
from bot.backends.spec import BackendSpec, ProviderSettings
from bot.chat.prompt import Delta, Finish, FinishReason, Prompt, PromptDescription, Usage
from bot.ports import Backend, TextTokenCounter
from bot.templates.renderer import Renderer

TROUPE_API = 1
_RULES = (
    (r"\bi need (.+)", "Why do you need {}?"),
    (r"\bi am (.+)", "How long have you been {}?"),
    (r"\bi feel (.+)", "Do you often feel {}?"),
    (r"\bmy (\w+)", "Tell me more about your {}."),
)


class ElizaSettings(ProviderSettings):
    kind: Literal["eliza"] = "eliza"
    otherwise: str = Field("Please go on.", description="What it says if no rule matches.")


class ElizaBackend(Backend):
    def __init__(self, settings: ElizaSettings) -> None:
        self._settings = settings

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Delta | Finish, None]:
        said = [one.content for one in prompt.messages if one.role == "user"][-1]
        for rule, answer in _RULES:
            if found := re.search(rule, said, re.IGNORECASE):
                text = answer.format(found[1].rstrip(".!? "))
                break
        else:
            text = self._settings.otherwise
        yield Delta(text)
        usage = Usage(prompt_tokens=await self.count_tokens(prompt), output_tokens=len(text))
        yield Finish(FinishReason.STOP, usage)

    async def count_tokens(self, prompt: Prompt) -> int:
        return sum((await self.text_counter(prompt))([one.content for one in prompt.messages]))

    async def text_counter(self, prompt: Prompt) -> TextTokenCounter:
        return lambda texts: [len(one) for one in texts]

    async def describe(self, prompt: Prompt) -> PromptDescription:
        return describe_request(prompt.model, to_wire(prompt, prompt.model))

    async def check(self) -> str:
        return f"ELIZA with {len(_RULES)} rules"

    async def close(self) -> None:
        pass


def make(_provider: str, settings: ElizaSettings, _data: Path, _renderer: Renderer) -> Backend:
    return ElizaBackend(settings)


ELIZA = BackendSpec(kind="eliza", settings=ElizaSettings, factory="eliza_backend:make")
