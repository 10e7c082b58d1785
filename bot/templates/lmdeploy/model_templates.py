"""Templates of LMDeploy 0.6.4 that need more than fixed texts around roles."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from bot.templates.lmdeploy.role_template import (
    BaseTemplate,
    Message,
    RoleTemplate,
    UnsupportedCapability,
    message_text,
)


class InternLMChat7B(RoleTemplate):
    """InternLM as in LMDeploy's document, with the `eoa` that the document lacks."""

    @override
    def decorate_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        if self.capability != "chat":
            raise UnsupportedCapability(
                f"{type(self).__name__} does not support the capability {self.capability!r}"
            )
        opening = self._default_system_text() if sequence_start else "\n"
        return f"{opening}{self.user}{prompt}{self.eoh}{self.assistant}"


class InternLMChat7B8K(InternLMChat7B):
    pass


class InternLM20B(BaseTemplate):
    pass


class DropLastCharacterTemplate(RoleTemplate):
    """Drops the last character of each prompt: the space that these models write themselves.

    It is dropped twice where one method calls the other, as in LMDeploy.
    """

    @override
    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        return super().get_prompt(prompt, sequence_start)[:-1]

    @override
    def messages2prompt(
        self, messages: str | Sequence[Message], sequence_start: bool = True
    ) -> str:
        return super().messages2prompt(messages, sequence_start)[:-1]


class Llama3(RoleTemplate):
    """Writes `<|begin_of_text|>` at the start of a sequence."""

    @override
    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        return begin_of_text(sequence_start) + super().get_prompt(prompt, sequence_start)

    @override
    def messages2prompt(
        self, messages: str | Sequence[Message], sequence_start: bool = True
    ) -> str:
        prompt = super().messages2prompt(messages, sequence_start)
        return prompt if isinstance(messages, str) else begin_of_text(sequence_start) + prompt


def begin_of_text(sequence_start: bool) -> str:
    return "<|begin_of_text|>" if sequence_start else ""


class GLM(RoleTemplate):
    """ChatGLM3 and GLM-4: a conversation always starts with the tokens in `start`."""

    def __init__(self, start: str, **words: Any) -> None:
        super().__init__(**words)
        self.start = start

    @override
    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        return (self.start if sequence_start else "") + super().get_prompt(prompt, sequence_start)

    @override
    def messages2prompt(
        self, messages: str | Sequence[Message], sequence_start: bool = True
    ) -> str:
        prompt = super().messages2prompt(messages, sequence_start)
        return prompt if isinstance(messages, str) else self.start + prompt


class ChatGLM2(BaseTemplate):
    """ChatGLM2 numbers the rounds. `get_prompt` counts them: use one instance per sequence."""

    def __init__(
        self,
        user: str = "问：",
        eoh: str = "\n\n",
        assistant: str = "答：",
        eoa: str = "\n\n",
        **sampling: Any,
    ) -> None:
        super().__init__(**sampling)
        self._user = user
        self._eoh = eoh
        self._assistant = assistant
        self._eoa = eoa
        self.count = 0

    @override
    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        self.count += 1
        return self._round(self.count, prompt)

    @override
    def messages2prompt(
        self, messages: str | Sequence[Message], sequence_start: bool = True
    ) -> str:
        """Return the prompt of a conversation, without system messages and unknown roles."""
        if isinstance(messages, str):
            return self.get_prompt(messages, sequence_start)
        blocks, rounds = [], 0
        for message in messages:
            match message["role"]:
                case "user":
                    rounds += 1
                    blocks.append(self._round(rounds, message_text(message)))
                case "assistant":
                    blocks.append(message_text(message))
                case _:
                    pass
        return "".join(blocks)

    def _round(self, number: int, prompt: str) -> str:
        return f"[Round {number}]\n\n{self._user}{prompt}{self._eoh}{self._assistant}"


class CodeLlama(RoleTemplate):
    """Code Llama: chats like Llama 2, completes, or fills in at `<FILL>`."""

    CAPABILITIES = ("completion", "infilling", "chat", "python")

    def __init__(self, suffix_first: bool = False, **words: Any) -> None:
        super().__init__(**words)
        if self.capability not in self.CAPABILITIES:
            raise UnsupportedCapability(
                f"the capability {self.capability!r} is not supported; "
                f"choose one of {', '.join(self.CAPABILITIES)}"
            )
        self.suffix_first = suffix_first
        if self.capability == "infilling" and self.stop_words is None:
            self.stop_words = ["<EOT>"]

    @override
    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        match self.capability:
            case "infilling":
                return self._infill(prompt)
            case "chat":
                return super().get_prompt(prompt, sequence_start)
            case _:
                return prompt

    def _infill(self, prompt: str) -> str:
        prefix, suffix = prompt.split("<FILL>")
        if self.suffix_first:
            return f"<PRE> <SUF>{suffix} <MID> {prefix}"
        return f"<PRE> {prefix} <SUF>{suffix} <MID>"
