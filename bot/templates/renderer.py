"""From a conversation to a local model's prompt: which template writes it, and where it runs.

The template is the preset's choice, else the model's own, else ChatML. Ours render here; those that
people wrote, in a preset or in a GGUF, in a render process that may be killed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from bot.chat.prompt import Message, TemplateChoice
from bot.errors import TemplateError
from bot.templates.capabilities import Capabilities, adapt_messages, capabilities
from bot.templates.control_tokens import ChatTemplate, leading_control_token
from bot.templates.families.detection import detect_family
from bot.templates.families.family_templates import FamilyTemplate
from bot.templates.jinja.jinja_template import JinjaTemplate
from bot.templates.lmdeploy.role_template import BaseTemplate
from bot.templates.registry import get
from bot.templates.render_process.pool import RenderProcessPool
from bot.templates.string_template import StringTemplate
from bot.templates.text_spans import TextSpan, pieces, render_messages

FALLBACK_TEMPLATE: Final = "chatml"
MAX_CACHED_TEMPLATES: Final = 256  # templates whose ways are remembered
_ANSWER, _NEXT = "probe answer 1", "probe question 2"
_EXCHANGE = (
    {"role": "user", "content": "probe question 1"},
    {"role": "assistant", "content": _ANSWER},
    {"role": "user", "content": _NEXT},
)


@dataclass(frozen=True, slots=True)
class ModelTemplate:
    """What a model brings along; without a source its prompts are written in ChatML."""

    source: str | None = None
    bos_token: str = ""
    eos_token: str = ""


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt, and the words at which an answer to it ends."""

    spans: tuple[TextSpan, ...]
    stop: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.spans)


class Renderer:
    """Used with `async with`. The render processes start when the first foreign template comes."""

    def __init__(self) -> None:
        self._prepared: dict[object, _PreparedTemplate] = {}
        self._open = AsyncExitStack()
        self._worker: RenderProcessPool | None = None
        self._one_start_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._open.aclose()

    async def render(
        self, messages: Sequence[Message], choice: TemplateChoice, own: ModelTemplate
    ) -> RenderedPrompt:
        """Write a conversation as one text that ends where the assistant is to go on.

        What the template refuses is said in a form that it accepts (adaptation.py). Raises
        TemplateError when it cannot be read, fails, or takes too long.
        """
        ready = await self._prepare(choice, own)
        said = [{"role": message.role, "content": message.content} for message in messages]
        fitted = adapt_messages(said, ready.able, trim_inputs=choice.trim_inputs)
        return RenderedPrompt(tuple(await self._cut(ready.template, fitted)), ready.stop)

    async def _prepare(self, choice: TemplateChoice, own: ModelTemplate) -> "_PreparedTemplate":
        key = (choice.named, choice.source, tuple((choice.strings or {}).items()), own)
        if key not in self._prepared:
            template = _template(choice, own)
            able = await self._capabilities(template)
            stop = await self._stop(template, adapt_messages(_EXCHANGE, able))
            if len(self._prepared) >= MAX_CACHED_TEMPLATES:
                self._prepared.clear()
            self._prepared[key] = _PreparedTemplate(template, able, stop)
        return self._prepared[key]

    async def _cut(
        self, template: "ChatTemplate | _UntrustedTemplate", messages: Sequence[Mapping[str, Any]]
    ) -> list[TextSpan]:
        if isinstance(template, _UntrustedTemplate):
            worker = await self._running_worker()
            return await worker.pieces(template.source, messages, **template.options)
        return pieces(template, messages, **_options(template))

    async def _capabilities(self, template: "ChatTemplate | _UntrustedTemplate") -> Capabilities:
        if isinstance(template, _UntrustedTemplate):
            worker = await self._running_worker()
            return await worker.capabilities(template.source, **template.options)
        return capabilities(template, **_options(template))

    async def _stop(
        self, template: "ChatTemplate | _UntrustedTemplate", exchange: Sequence[Mapping[str, Any]]
    ) -> tuple[str, ...]:
        """The words that the template itself ends an answer with, and those that it declares."""
        declared: Sequence[str] = ()
        try:
            if isinstance(template, _UntrustedTemplate):
                worker = await self._running_worker()
                text = await worker.render(template.source, exchange, **template.options)
            else:
                text = render_messages(template, exchange, **_options(template))
                if isinstance(template, FamilyTemplate | BaseTemplate):
                    declared = template.stop_words or ()
        except TemplateError:  # whatever is wrong shows when the conversation is rendered
            return tuple(declared)
        return tuple(dict.fromkeys([*declared, *_turn_end(text)]))

    async def _running_worker(self) -> RenderProcessPool:
        async with self._one_start_at_a_time:
            if self._worker is None:
                self._worker = await self._open.enter_async_context(RenderProcessPool())
        return self._worker


@dataclass(frozen=True, slots=True)
class _UntrustedTemplate:
    """A template that people wrote; only the render processes read it."""

    source: str
    bos_token: str
    eos_token: str

    @property
    def options(self) -> dict[str, Any]:
        tokens = {"bos_token": self.bos_token, "eos_token": self.eos_token}
        return {**tokens, "add_generation_prompt": True}


@dataclass(frozen=True, slots=True)
class _PreparedTemplate:
    template: ChatTemplate | _UntrustedTemplate
    able: Capabilities
    stop: tuple[str, ...]


def _template(choice: TemplateChoice, own: ModelTemplate) -> ChatTemplate | _UntrustedTemplate:
    tokens = {"bos_token": own.bos_token, "eos_token": own.eos_token}
    source = choice.source
    if choice.named is not None:
        return _made(choice.named)
    if choice.strings is not None:
        return StringTemplate(**choice.strings)
    if source is None:
        if own.source is None:
            return _made(FALLBACK_TEMPLATE)
        if family := detect_family(own.source):
            return _made(family, **tokens)
        source = own.source
    return _UntrustedTemplate(source, **tokens)


def _made(name: str, **tokens: str) -> ChatTemplate:
    template: ChatTemplate = get(name)(**tokens)
    return template


def _options(template: ChatTemplate) -> dict[str, Any]:
    return {"add_generation_prompt": True} if isinstance(template, JinjaTemplate) else {}


def _turn_end(prompt: str) -> tuple[str, ...]:
    """Read from a rendered exchange what stands between an answer and the next question."""
    between = prompt.partition(_ANSWER)[2].partition(_NEXT)[0].strip()
    if not between:
        return ()
    marker = leading_control_token(between)
    # A template without control words tells its roles apart by headings at the start of a line.
    return (marker,) if marker else ("\n" + between.splitlines()[0],)
