"""Render Jinja chat templates, byte for byte like transformers' `apply_chat_template`.

The rules are in docs/sources.md#jinja. Jinja's own sandbox protects code and files, but lets a
template print functions and classes with names and addresses. Here, a template gets an
`UnprintableFunction` instead, which it can only call.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from typing_extensions import override

from bot.errors import TemplateError


class UnprintableFunction:
    """A function or class that a template can call but not print."""

    __slots__ = ("_wrapped_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._wrapped_function = function

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped_function(*args, **kwargs)

    @override
    def __str__(self) -> str:
        raise SecurityError("a template can print text and data, but not functions")

    @override
    def __repr__(self) -> str:
        return "a function"  # appears in lists and error messages


def _wrap_callable(value: Any) -> Any:
    is_function = callable(value) and not isinstance(value, Undefined | UnprintableFunction)
    return UnprintableFunction(value) if is_function else value


class ChatTemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja's environment as in transformers: immutable arguments, no access to code or files."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTagExtension, LoopControlExtension],
        )
        self.filters["tojson"] = to_json
        self.globals["raise_exception"] = raise_exception
        self.globals["namespace"] = NamespaceWithoutUnderscores
        self.globals.update({name: _wrap_callable(one) for name, one in self.globals.items()})

    @override
    def getattr(self, obj: Any, attribute: str) -> Any:
        return _wrap_callable(super().getattr(obj, attribute))

    @override
    def getitem(self, obj: Any, argument: Any) -> Any:
        return _wrap_callable(super().getitem(obj, argument))


class GenerationTagExtension(Extension):
    """Parses `{% generation %}`, which marks assistant text for training only."""

    tags = {"generation"}  # noqa: RUF012 # jinja declares it as an instance variable

    @override
    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render_body"), [], [], body).set_lineno(line)

    def _render_body(self, caller: Callable[[], str]) -> str:
        return caller()


class NamespaceWithoutUnderscores(Namespace):
    """Jinja's `namespace()`, without names that start with an underscore."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    @override
    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(
                "Chat templates cannot store underscore-prefixed attributes on a namespace, "
                f"but got {name!r}. Please rename the attribute."
            )
        super().__setitem__(name, value)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as in training data, without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


ENVIRONMENT = ChatTemplateSandbox()


@lru_cache(maxsize=256)
def compile_template(source: str) -> jinja2.Template:
    """Compile a template and cache it; raise `jinja2.TemplateSyntaxError` if it is invalid."""
    return ENVIRONMENT.from_string(source)


Message = Mapping[str, Any]  # "role", "content", and other keys for templates, such as tool_calls

# All errors that a template can raise, since it may compute, index, and call anything.
RENDER_ERRORS: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
_MAX_ERROR_CHARS: Final = 1000
MAX_SOURCE_BYTES: Final = 64 * 1024  # for untrusted templates
CONTINUE_MARK: Final = "CONTINUE_FINAL_MESSAGE_TAG "  # the same text as in transformers


class JinjaTemplate:
    """A model's or preset's chat template; render untrusted ones in a `RenderProcessPool`."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        stop_words: Sequence[str] = (),
    ) -> None:
        """Compile the template; tokens that are None stay undefined. Raises `TemplateError`."""
        self.stop_words = stop_words
        self.source = source
        self.bos_token = bos_token or ""
        self.eos_token = eos_token or ""
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._default_variables: dict[str, Any] = {
            "tools": None,
            "documents": None,
            "add_generation_prompt": False,
            **{name: token for name, token in tokens.items() if token is not None},
        }
        self._uses_clock = "strftime_now" in source
        self._uses_reasoning = "reasoning_content" in source or "thinking" in source
        try:
            self._compiled_template = compile_template(source)
        except RENDER_ERRORS as error:
            raise translate_error(error) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        documents: Sequence[Message] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        now: datetime | None = None,
        **variables: Any,
    ) -> str:
        """Return the prompt for messages in chat completions format, which are not modified.

        `add_generation_prompt` opens the assistant's turn at the end; `continue_final_message`
        leaves the last message open. `now` is the time for `strftime_now`, by default the current
        time. `variables` are other inputs of the template, such as `enable_thinking`.

        Raises `TemplateError` if the template rejects the messages (with the text of its
        `raise_exception`) or fails (with a text that starts with the type of the error).
        """
        all_variables = {
            **self._default_variables,
            "messages": messages if isinstance(messages, list) else list(messages),
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            **variables,
        }
        if self._uses_clock:
            current_time = now or datetime.now().astimezone()
            all_variables["strftime_now"] = UnprintableFunction(current_time.strftime)
        try:
            if self._uses_reasoning:
                all_variables["messages"] = _with_both_reasoning_keys(all_variables["messages"])
            if continue_final_message:
                return self._render_with_open_message(all_variables)
            return self._compiled_template.render(all_variables)
        except RENDER_ERRORS as error:
            raise translate_error(error) from error

    def _render_with_open_message(self, variables: dict[str, Any]) -> str:
        *earlier_messages, last_message = variables["messages"]
        variables["messages"] = [*earlier_messages, _with_continue_mark(last_message)]
        text = self._compiled_template.render(variables)
        mark = CONTINUE_MARK.strip()
        if mark not in text:
            raise ValueError(
                "continue_final_message is set but the final message does not appear in the chat "
                "after applying the chat template: it drops or changes the end of the message"
            )
        end = text.rindex(mark)
        if text.startswith(CONTINUE_MARK, end):
            return text[:end]
        return text[:end].rstrip()  # the template strips messages


def check_source(source: str) -> None:
    """Parse an untrusted template without running it; raise `TemplateError` if it is invalid."""
    if len(source.encode(errors="surrogatepass")) > MAX_SOURCE_BYTES:
        raise TemplateError(f"the template is longer than {MAX_SOURCE_BYTES // 1024} KiB")
    try:
        tree = ENVIRONMENT.parse(source)
        filter_and_test_nodes = tree.find_all((nodes.Filter, nodes.Test))
        for node in filter_and_test_nodes:
            names = ENVIRONMENT.filters if isinstance(node, nodes.Filter) else ENVIRONMENT.tests
            if node.name not in names:
                raise TemplateError(f"line {node.lineno}: there is no filter or test {node.name!r}")
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"line {error.lineno}: {error.message}") from None
    except RENDER_ERRORS as error:
        raise translate_error(error) from error


def translate_error(error: Exception) -> TemplateError:
    is_raised_by_template = type(error) is jinja2.TemplateError
    text = str(error) if is_raised_by_template else f"{type(error).__name__}: {error}"
    is_too_long = len(text) > _MAX_ERROR_CHARS
    return TemplateError(f"{text[:_MAX_ERROR_CHARS]} …" if is_too_long else text)


def _with_continue_mark(message: Message) -> Message:
    content = message.get("content")
    if content is None:
        raise ValueError(
            'continue_final_message is set but the final message has no "content" to continue!'
        )
    if isinstance(content, str):
        return {**message, "content": content + CONTINUE_MARK}
    parts = list(content)
    for index in reversed(range(len(parts))):
        if "text" in parts[index]:
            parts[index] = {**parts[index], "text": parts[index]["text"] + CONTINUE_MARK}
            return {**message, "content": parts}
    raise ValueError(
        "continue_final_message is set but we could not find any text to continue in the final "
        "message!"
    )


def _with_both_reasoning_keys(messages: Sequence[Message]) -> Sequence[Message]:
    if not any("reasoning_content" in message or "thinking" in message for message in messages):
        return messages
    return [
        {**message, "reasoning_content": reasoning, "thinking": reasoning}
        if (reasoning := message.get("reasoning_content", message.get("thinking"))) is not None
        else message
        for message in messages
    ]
