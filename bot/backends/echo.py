"""A backend without a model: it says what it is told to, for tests and for trying out presets."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path

from typing_extensions import override

from bot.chat.prompt import Delta, Finish, FinishReason, Prompt, Usage
from bot.errors import BackendUnavailable
from bot.ports import Backend, Clock, TokenCountingBackend
from bot.prompting.text.token_counter import get_counter
from bot.runtime.clock import SystemClock
from bot.settings import ProviderSettings
from bot.templates.renderer import Renderer


class Echo(Backend, TokenCountingBackend):
    """Repeats the newest message of the user, word by word.

    Three parameters of a preset script it: `echo_answer` is said instead, `echo_chunks` is the
    number of deltas, `echo_delay_seconds` passes before each of them.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    @override
    async def generate(self, prompt: Prompt) -> AsyncGenerator[Delta | Finish, None]:
        heard = [message.content for message in prompt.messages if message.role == "user"]
        script = prompt.parameters
        answer = str(script.get("echo_answer", heard[-1] if heard else ""))
        delay = _number(script.get("echo_delay_seconds", 0))
        pieces = _words(answer)
        if "echo_chunks" in script:
            pieces = _parts(answer, max(1, int(_number(script["echo_chunks"]))))
        for piece in pieces:
            if delay:
                await self._clock.sleep(delay)
            yield Delta(piece)
        prompt_words = sum(len(message.content.split()) for message in prompt.messages)
        usage = Usage(prompt_tokens=prompt_words, output_tokens=len(answer.split()))
        yield Finish(FinishReason.STOP, usage)

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        return await get_counter("cl100k").count_prompt(prompt)

    @override
    async def max_prompt_tokens(self, prompt: Prompt) -> int | None:
        return None

    @override
    async def check(self) -> str:
        return "an echo"

    @override
    async def close(self) -> None:
        pass


def make(_name: str, _settings: ProviderSettings, _data_dir: Path, _renderer: Renderer) -> Backend:
    return Echo()


def _words(text: str) -> list[str]:
    return re.findall(r"\s*\S+(?:\s+\Z)?|\A\s+\Z", text)


def _parts(text: str, count: int) -> list[str]:
    size = max(1, -(-len(text) // count))
    return [text[start : start + size] for start in range(0, len(text), size)]


def _number(value: object) -> float:
    if isinstance(value, int | float) and value >= 0:
        return value
    raise BackendUnavailable(f"an echo parameter is {value!r}; it must be a number")
