"""LMDeploy's chat templates: the words around each role, and the model's sampling values with them.

From LMDeploy's document on chat templates; where the document and the program disagree, version
0.6.4 of the program decides.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from typing_extensions import override

from bot.errors import TemplateError
from bot.templates.registry import get, names, register

Message = Mapping[str, Any]

ROLE_TEXT_KEYS = {
    "system",
    "meta_instruction",
    "eosys",
    "user",
    "eoh",
    "assistant",
    "eoa",
    "separator",
}
SAMPLING_KEYS = {"session_len", "top_p", "top_k", "temperature", "repetition_penalty"}
JSON_KEYS = ROLE_TEXT_KEYS | SAMPLING_KEYS | {"capability", "stop_words"}


class UnknownRole(TemplateError, ValueError):
    def __init__(self, role: object, known: Sequence[str]) -> None:
        super().__init__(f"no role {role!r} in this template; it knows {', '.join(known)}")


class UnsupportedCapability(TemplateError, AssertionError):
    """An assertion in LMDeploy's document, so that callers may catch it as one."""


@register("base", "llama", "falcon", "internlm-7b")
class BaseTemplate:
    """A model's sampling values, and no words at all: what a base model is given."""

    def __init__(
        self,
        session_len: int = 2048,
        top_p: float = 0.8,
        top_k: int | None = None,
        temperature: float = 0.8,
        repetition_penalty: float = 1.0,
        capability: str = "chat",
        stop_words: Sequence[str] | None = None,
        **unused: Any,  # the keys of other templates, which a JSON form may carry
    ) -> None:
        self.session_len = session_len
        self.top_p = top_p
        self.top_k = top_k
        self.temperature = temperature
        self.repetition_penalty = repetition_penalty
        self.capability = capability
        self.stop_words = None if stop_words is None else list(stop_words)

    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        """One round of interactive inference, where the server keeps the rounds before it.

        `sequence_start` says that it is the first round: only there stands the system text. A
        template with the capability `completion` leaves the prompt as it is.
        """
        if self.capability == "completion":
            return prompt
        return self.decorate_prompt(prompt, sequence_start)

    def decorate_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        return prompt

    def messages2prompt(
        self, messages: str | Sequence[Message], sequence_start: bool = True
    ) -> str | None:
        """Return a whole conversation as one prompt; a text is one round.

        A base model has no form for conversations: None.
        """
        return self.get_prompt(messages, sequence_start) if isinstance(messages, str) else None


class RoleTemplate(BaseTemplate):
    """Words before and after the text of each role, in one line.

    `{system}{meta_instruction}{eosys}{user}…{eoh}{assistant}…{eoa}{separator}{user}…`

    `meta_instruction` is the system text of conversations that bring none; None differs from the
    empty text: then the system's own words are left out too.
    """

    def __init__(
        self,
        system: str = "",
        meta_instruction: str | None = "",
        eosys: str = "",
        user: str = "",
        eoh: str = "",
        assistant: str = "",
        eoa: str = "",
        separator: str = "",
        **sampling: Any,
    ) -> None:
        super().__init__(**sampling)
        self.system = system
        self.meta_instruction = meta_instruction
        self.eosys = eosys
        self.user = user
        self.eoh = eoh
        self.assistant = assistant
        self.eoa = eoa
        self.separator = separator

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> BaseTemplate:
        """From LMDeploy's JSON form; a key that is null counts as left out.

        When `model_name` is one of LMDeploy's names, the other keys change that template; else
        they make a new one. TemplateError for an unknown key.
        """
        values = {key: value for key, value in form.items() if value is not None}
        name = values.pop("model_name", "")
        unknown = sorted(values.keys() - JSON_KEYS)
        if unknown:
            known = ", ".join(sorted(JSON_KEYS))
            raise TemplateError(f"unknown key {unknown[0]!r} in a chat template; known: {known}")
        factory = get(name) if name in names() else cls
        made_by = factory.func if isinstance(factory, partial) else factory
        if not (isinstance(made_by, type) and issubclass(made_by, BaseTemplate)):
            raise TemplateError(f"{name!r} is a Jinja template; choose another model_name")
        return made_by(**{**(factory.keywords if isinstance(factory, partial) else {}), **values})

    @override
    def decorate_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        opening = self._default_system() if sequence_start else self.separator
        return f"{opening}{self.user}{prompt}{self.eoh}{self.assistant}"

    @override
    def messages2prompt(
        self, messages: str | Sequence[Message], sequence_start: bool = True
    ) -> str:
        """Return a whole conversation as one prompt; a text is one round.

        The default system text stands in front of a sequence's first round unless the messages
        bring their own; a last message of the assistant is left open, for the model to go on with.
        UnknownRole for a role that the template has no words for.
        """
        if isinstance(messages, str):
            return self.get_prompt(messages, sequence_start)
        begin, end = self._begin(), self._end()
        blocks = []
        if sequence_start and messages and messages[0]["role"] != "system":
            blocks.append(self._default_system())
        for message in messages:
            role = message["role"]
            if role not in begin:
                raise UnknownRole(role, tuple(begin))
            blocks.append(f"{begin[role]}{text_of(message)}{end[role]}")
        return self._closed("".join(blocks), messages)

    def _default_system(self) -> str:
        if self.meta_instruction is None:
            return ""
        return f"{self.system}{self.meta_instruction}{self.eosys}"

    def _begin(self) -> dict[str, str]:
        return {"system": self.system, "user": self.user, "assistant": self.assistant}

    def _end(self) -> dict[str, str]:
        return {"system": self.eosys, "user": self.eoh, "assistant": self.eoa + self.separator}

    def _closed(self, prompt: str, messages: Sequence[Message]) -> str:
        if messages and messages[-1]["role"] == "assistant":
            # The slice counts from the end, so a template without an end of answer gives an empty
            # prompt. LMDeploy does so; who sends such a message must know that it is unsupported.
            return prompt[: -len(self._end()["assistant"])]
        return prompt + self.assistant


def text_of(message: Message) -> str:
    """Return the text of a message; of one in parts the first part's, as in LMDeploy."""
    content = message["content"]
    return content if isinstance(content, str) else str(content[0]["text"])
