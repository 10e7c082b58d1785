"""A backend that repeats its prompt without a model, for tests and for trying out presets."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path

from typing_extensions import override

from bot.backends.chat_completions.wire import describe_request, to_wire
from bot.backends.spec import ProviderSettings
from bot.chat.prompt import Delta, Finish, FinishReason, Prompt, PromptDescription, Usage
from bot.errors import BackendUnavailable
from bot.ports import Backend, Clock, TextTokenCounter
from bot.prompting.text.tokens import get_counter
from bot.runtime.clock import SystemClock
from bot.templates.renderer import Renderer


class EchoBackend(Backend):
    """Repeats the user's newest message, word by word.

    A preset controls it with three parameters: `echo_answer` replaces the answer, `echo_chunks`
    sets the number of deltas, and `echo_delay_seconds` sets the pause before each delta.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    @override
    async def generate(self, prompt: Prompt) -> AsyncGenerator[Delta | Finish, None]:
        texts = [message.content for message in prompt.messages if message.role == "user"]
        parameters = prompt.parameters
        answer = str(parameters.get("echo_answer", texts[-1] if texts else ""))
        delay_seconds = _read_number(parameters.get("echo_delay_seconds", 0))
        chunks = re.findall(r"\s*\S+(?:\s+\Z)?|\A\s+\Z", answer)
        if "echo_chunks" in parameters:
            chunks = _split_evenly(answer, max(1, int(_read_number(parameters["echo_chunks"]))))
        for chunk in chunks:
            if delay_seconds:
                await self._clock.sleep(delay_seconds)
            yield Delta(chunk)
        output_tokens = sum((await self.text_counter(prompt))([answer]))
        usage = Usage(prompt_tokens=await self.count_tokens(prompt), output_tokens=output_tokens)
        yield Finish(FinishReason.STOP, usage)

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        return await get_counter("cl100k").count_prompt(prompt)

    @override
    async def text_counter(self, prompt: Prompt) -> TextTokenCounter:
        return get_counter("cl100k")

    @override
    async def describe(self, prompt: Prompt) -> PromptDescription:
        return describe_request(prompt.model, to_wire(prompt, prompt.model))

    @override
    async def check(self) -> str:
        return "repeats prompts without a model"

    @override
    async def close(self) -> None:
        pass


def make(
    _provider: str, _settings: ProviderSettings, _data_dir: Path, _renderer: Renderer
) -> Backend:
    return EchoBackend()


def _split_evenly(text: str, part_count: int) -> list[str]:
    part_length = max(1, -(-len(text) // part_count))
    return [text[start : start + part_length] for start in range(0, len(text), part_length)]


def _read_number(value: object) -> float:
    if isinstance(value, int | float) and value >= 0:
        return value
    raise BackendUnavailable(f"an echo parameter must be a number of at least 0, not {value!r}")
