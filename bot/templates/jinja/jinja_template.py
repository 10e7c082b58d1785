"""Jinja chat templates: byte for byte what transformers' `apply_chat_template` would make."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import jinja2

from bot.errors import TemplateError
from bot.templates.jinja.sandbox import compile_template

Message = Mapping[str, Any]  # "role" and "content", and whatever else a template knows: tool_calls


class _NotGiven(str):
    __slots__ = ()


# A tokenizer without a token leaves its name undefined in the template; one with an empty token
# does not. Both look empty from outside, so the default is an empty text that can be told apart.
NOT_GIVEN: Final = _NotGiven()

# What a template can provoke by itself: it computes, indexes and calls what it likes.
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
CONTINUE_MARK: Final = "CONTINUE_FINAL_MESSAGE_TAG "  # the same text that transformers appends


class JinjaTemplate:
    """A chat template in Jinja, from a model's `tokenizer_config.json`, a GGUF or a preset.

    The sandbox keeps code and files out of reach but cannot bound time or memory: a source that
    people wrote is rendered by `RenderProcessPool`, not here.
    """

    def __init__(
        self, source: str, *, bos_token: str = NOT_GIVEN, eos_token: str = NOT_GIVEN
    ) -> None:
        """Compile `source`; raises TemplateError when it cannot be read."""
        self.source = source
        self.bos_token = str(bos_token)
        self.eos_token = str(eos_token)
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._fixed: dict[str, Any] = {
            "tools": None,
            "documents": None,
            "add_generation_prompt": False,
            **{name: token for name, token in tokens.items() if token is not NOT_GIVEN},
        }
        self._tells_time = "strftime_now" in source
        self._has_thoughts = "reasoning_content" in source or "thinking" in source
        try:
            self._compiled = compile_template(source)
        except RENDER_ERRORS as error:
            raise translate(error) from error

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
        """Return the prompt as text; the messages are neither changed nor copied.

        `add_generation_prompt` opens the assistant's turn, if the template knows how to;
        `continue_final_message` leaves the last message open instead, for the model to go on with
        it. `now` is the clock of `strftime_now`; `variables` are what else the template asks for
        (`enable_thinking`, `date_string`).

        Raises TemplateError: with the template's own words when it refuses the messages
        (`raise_exception`), else with the kind of the fault in front; the cause is attached.
        """
        given = {
            **self._fixed,
            "messages": messages if isinstance(messages, list) else list(messages),
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            **variables,
        }
        if self._tells_time:
            given["strftime_now"] = (now or datetime.now().astimezone()).strftime
        try:
            if self._has_thoughts:
                given["messages"] = _name_thoughts_both_ways(given["messages"])
            if continue_final_message:
                return self._render_open(given)
            return self._compiled.render(given)
        except RENDER_ERRORS as error:
            raise translate(error) from error

    def _render_open(self, given: dict[str, Any]) -> str:
        *earlier, last = given["messages"]
        given["messages"] = [*earlier, _marked(last)]
        text = self._compiled.render(given)
        mark = CONTINUE_MARK.strip()
        if mark not in text:
            raise ValueError(
                "continue_final_message is set but the final message does not appear in the chat "
                "after applying the chat template: it drops or changes what stands at its end"
            )
        end = text.rindex(mark)
        if text.startswith(CONTINUE_MARK, end):
            return text[:end]
        return text[:end].rstrip()  # the template trims its messages


def translate(error: Exception) -> TemplateError:
    """Make the error for whoever asked to render; what `raise_exception` said stays as it is."""
    if type(error) is jinja2.TemplateError:
        return TemplateError(str(error))
    return TemplateError(f"{type(error).__name__}: {error}")


def _marked(message: Message) -> Message:
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


def _name_thoughts_both_ways(messages: Sequence[Message]) -> Sequence[Message]:
    """Templates disagree on the key of a model's thoughts; transformers offers both."""
    if not any("reasoning_content" in one or "thinking" in one for one in messages):
        return messages
    return [
        {**one, "reasoning_content": thoughts, "thinking": thoughts}
        if (thoughts := one.get("reasoning_content", one.get("thinking"))) is not None
        else one
        for one in messages
    ]
