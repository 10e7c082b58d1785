"""Render a conversation to a prompt for a local model: choose the template and where it runs.

The template is the preset's choice, the model's own, or ChatML. Untrusted templates (from a preset
or a GGUF) are rendered in a process that can be killed.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from bot.chat.prompt import (
    Message,
    TemplateCapabilities,
    TemplateChoice,
    TemplateNames,
    ToolExchange,
    ToolSpec,
)
from bot.errors import TemplateError
from bot.templates.capabilities import (
    adapt_messages,
    detect_capabilities,
    has_content_parts,
    render_or_none,
)
from bot.templates.control_tokens import (
    ChatTemplate,
    TextSpan,
    leading_control_token,
    render_messages,
    render_spans,
)
from bot.templates.jinja_template import JinjaTemplate
from bot.templates.registry import detect_family, get
from bot.templates.render_pool import RenderProcessPool
from bot.templates.role_template import RoleTemplate, StringTemplate
from bot.templates.tool_forms import (
    PROBE_SCHEMAS,
    TOOL_PROBES,
    ToolCallFormat,
    detect_tool_call_format,
    to_template_messages,
    to_template_tools,
)
from bot.value_class import value_class

FALLBACK_TEMPLATE: Final = "chatml"
MAX_CACHED_TEMPLATES: Final = 256
_PROBE_ANSWER, _PROBE_QUESTION = "probe answer 1", "probe question 2"
_TURN_END_PROBE = (
    {"role": "user", "content": "probe question 1"},
    {"role": "assistant", "content": _PROBE_ANSWER},
    {"role": "user", "content": _PROBE_QUESTION},
)


@value_class
class ModelTemplate:
    """The chat template in a model's file, and its special tokens."""

    source: str | None = None
    """Jinja source, or None if the model has no template and gets ChatML."""
    bos_token: str = ""
    eos_token: str = ""


@value_class
class ToolUse:
    """The tools to offer in a prompt, and the earlier calls with their results."""

    specs: Sequence[ToolSpec] = ()
    exchanges: Sequence[ToolExchange] = ()
    special_tokens: Sequence[str] = ()
    """The texts of the model's special tokens, which must not occur in tools and calls."""


@value_class
class RenderedPrompt:
    spans: tuple[TextSpan, ...]
    stop: tuple[str, ...]
    tool_call_format: ToolCallFormat | None = None

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)


class Renderer(AsyncExitStack):
    """Renders prompts. The first untrusted template starts the render processes."""

    def __init__(self) -> None:
        super().__init__()
        self._prepared_templates: dict[object, _PreparedTemplate] = {}
        self._pool: RenderProcessPool | None = None
        self._pool_start_lock = asyncio.Lock()

    async def render(
        self,
        messages: Sequence[Message],
        choice: TemplateChoice,
        model_template: ModelTemplate,
        tools: ToolUse | None = None,
        *,
        has_prefill: bool = False,
    ) -> RenderedPrompt:
        """Render a conversation as a prompt that ends where the assistant should continue.

        With `has_prefill`, a final assistant message is the start of the answer. Messages are
        adapted to what the template accepts (see `capabilities`). Tools are omitted if the template
        has no form for tool calls. Raises `TemplateError`, or `RenderUnavailable` if a retry may
        help because the machine is busy or the render process was killed.
        """
        prepared_template = await self._choose_and_probe_template(choice, model_template)
        call_format = await self.find_tool_call_format(choice, model_template) if tools else None
        prefill_spans: list[TextSpan] = []
        if has_prefill and messages and messages[-1].role == "assistant":
            if not (tools and tools.exchanges):  # after tool results, a new answer starts
                prefill_spans.append(TextSpan(messages[-1].content.rstrip(), trusted=False))
            messages = messages[:-1]
        names = choice.names
        chat: list[Mapping[str, Any]] = [_to_plain_message(one, names) for one in messages]
        template_tools: list[Mapping[str, Any]] = []
        if tools is not None and call_format is not None:
            chat += to_template_messages(tools.exchanges, call_format, tools.special_tokens)
            template_tools = to_template_tools(tools.specs, tools.special_tokens)
        chat = adapt_messages(chat, prepared_template.capabilities, trim_inputs=choice.trim_inputs)
        options = {"tools": template_tools} if template_tools else {}
        spans = await prepared_template.template.render_spans(chat, names, **options)
        return RenderedPrompt((*spans, *prefill_spans), prepared_template.stop, call_format)

    async def find_tool_call_format(
        self, choice: TemplateChoice, model_template: ModelTemplate
    ) -> ToolCallFormat | None:
        """Return how a template writes tool calls, or None if it cannot; raises like `render`."""
        prepared_template = await self._choose_and_probe_template(choice, model_template)
        if not prepared_template.was_tool_format_probed:
            prepared_template.tool_call_format = await self._detect_format(prepared_template)
            prepared_template.was_tool_format_probed = True
        return prepared_template.tool_call_format

    async def _detect_format(self, prepared_template: "_PreparedTemplate") -> ToolCallFormat | None:
        template = prepared_template.template
        if isinstance(template, _TrustedTemplate) and not template.is_jinja:
            return None  # these templates do not support tools
        for probe in TOOL_PROBES:
            messages = adapt_messages(probe, prepared_template.capabilities)
            text = await render_or_none(partial(template.render, tools=PROBE_SCHEMAS), messages)
            if text is not None and (call_format := detect_tool_call_format(text)):
                return call_format
        return None

    async def _choose_and_probe_template(
        self, choice: TemplateChoice, model_template: ModelTemplate
    ) -> "_PreparedTemplate":
        key = (
            choice.named,
            choice.source,
            tuple((choice.strings or {}).items()),
            json.dumps(choice.role_texts, sort_keys=True),
            model_template,
        )
        if key not in self._prepared_templates:
            template = self._choose_template(choice, model_template)
            capabilities = await detect_capabilities(template.render)
            probe_messages = adapt_messages(_TURN_END_PROBE, capabilities)
            text = await render_or_none(template.render, probe_messages) or ""
            stop = tuple(dict.fromkeys([*template.stop_words, *_turn_end_strings(text)]))
            if len(self._prepared_templates) >= MAX_CACHED_TEMPLATES:
                self._prepared_templates.clear()
            self._prepared_templates[key] = _PreparedTemplate(template, capabilities, stop)
        return self._prepared_templates[key]

    def _choose_template(
        self, choice: TemplateChoice, model_template: ModelTemplate
    ) -> "_TrustedTemplate | _UntrustedTemplate":
        tokens = {"bos_token": model_template.bos_token, "eos_token": model_template.eos_token}
        source = choice.source
        if choice.named is not None:
            return _TrustedTemplate(get(choice.named)())
        if choice.strings is not None:
            return _TrustedTemplate(StringTemplate(**choice.strings))
        if choice.role_texts is not None:
            return _TrustedTemplate(RoleTemplate.from_json(choice.role_texts))
        if source is None:
            if model_template.source is None:
                return _TrustedTemplate(get(FALLBACK_TEMPLATE)())
            if family := detect_family(model_template.source):
                return _TrustedTemplate(get(family)(**tokens))
            source = model_template.source
        return _UntrustedTemplate(self._get_running_pool, source, tokens)

    async def _get_running_pool(self) -> RenderProcessPool:
        async with self._pool_start_lock:
            if self._pool is None:
                self._pool = await self.enter_async_context(RenderProcessPool())
        return self._pool


@value_class
class _TrustedTemplate:
    template: ChatTemplate

    @property
    def is_jinja(self) -> bool:
        return isinstance(self.template, JinjaTemplate)

    @property
    def stop_words(self) -> Sequence[str]:
        return () if isinstance(self.template, StringTemplate) else self.template.stop_words or ()

    def _with_defaults(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"add_generation_prompt": True, **options} if self.is_jinja else options

    async def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        if not self.is_jinja and has_content_parts(messages):
            raise TemplateError("a message with several content parts needs a Jinja template")
        return render_messages(self.template, messages, **self._with_defaults(options))

    async def render_spans(
        self, messages: Sequence[Mapping[str, Any]], names: TemplateNames | None, **options: Any
    ) -> list[TextSpan]:
        return render_spans(self.template, messages, **self._with_defaults(options))


@value_class
class _UntrustedTemplate:
    get_pool: Callable[[], Awaitable[RenderProcessPool]]
    source: str
    tokens: Mapping[str, str]
    stop_words: Sequence[str] = ()

    async def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        variables = {"add_generation_prompt": True, **self.tokens, **options}
        return await (await self.get_pool()).render(self.source, messages, **variables)

    async def render_spans(
        self, messages: Sequence[Mapping[str, Any]], names: TemplateNames | None, **options: Any
    ) -> list[TextSpan]:
        name_variables = {} if names is None else asdict(names)
        all_variables = {"add_generation_prompt": True, **self.tokens, **options, **name_variables}
        return await (await self.get_pool()).render_spans(self.source, messages, **all_variables)


@dataclass(slots=True)
class _PreparedTemplate:
    template: _TrustedTemplate | _UntrustedTemplate
    capabilities: TemplateCapabilities
    stop: tuple[str, ...]
    was_tool_format_probed: bool = False
    tool_call_format: ToolCallFormat | None = None


def _to_plain_message(message: Message, names: TemplateNames | None) -> dict[str, str]:
    """Return a message for templates; with `names`, its speaker is in a separate field."""
    if names is None or message.role == "system":
        return {"role": message.role, "content": message.content}
    if message.name is None:  # an example in the preset
        name = names.char if message.role == "assistant" else names.user
        return {"role": message.role, "content": message.content, "name": name}
    text = message.content.removeprefix(f"{message.name}:")
    return {"role": message.role, "content": text, "name": message.name}


def _turn_end_strings(prompt: str) -> tuple[str, ...]:
    turn_end_text = prompt.partition(_PROBE_ANSWER)[2].partition(_PROBE_QUESTION)[0].strip()
    if not turn_end_text:
        return ()
    token = leading_control_token(turn_end_text)
    # Templates without control tokens mark roles with headings at the start of a line.
    return (token,) if token else ("\n" + turn_end_text.splitlines()[0],)


_ADDED_TEXT_PROBE = (
    Message("system", "Zq system zq."),
    Message("user", "Zq question zq."),
    Message("assistant", "Zq answer zq."),
    Message("user", "Zq question zq."),
)
_TEMPLATE_MARKUP = re.compile(r"<[^<>\s]{1,40}>|\[/?(?:[A-Z_]{2,20}|gMASK)\]")
_WORD = re.compile(r"[^\W\d_]+")
_ROLE_WORDS = frozenset(
    {
        *("system", "sys", "user", "human", "assistant", "ai", "bot", "gpt", "model", "developer"),
        *("tool", "instruction", "instructions", "input", "response", "question", "answer", "sop"),
        *("系统", "用户", "助手", "人类", "问", "答"),
    }
)


async def find_added_text(template: ModelTemplate, renderer: Renderer) -> str:
    """Return what a template of an unknown family adds to prompts, or ""; raises like `render`."""
    if template.source is None or detect_family(template.source) is not None:
        return ""
    prompt = await renderer.render(_ADDED_TEXT_PROBE, TemplateChoice(), template)
    added_text = " ".join(span.text for span in prompt.spans if span.trusted)
    bare_text = " ".join(_TEMPLATE_MARKUP.sub(" ", added_text).split())
    has_only_role_words = all(word.casefold() in _ROLE_WORDS for word in _WORD.findall(bare_text))
    return "" if has_only_role_words else bare_text
