"""Suggest commands, their actions, presets and choices while a line with `/` is written."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from typing_extensions import override

from bot.chat.command import CommandSpec
from bot.texts.stored import looked_up
from bot.texts.text import translate


class CommandCompleter(Completer):
    """Completes the word of a command that the cursor stands behind."""

    def __init__(
        self,
        commands: Sequence[CommandSpec],
        complete_preset: Callable[[str], Sequence[str]],
        language: str = "en",
    ) -> None:
        """Take the commands, what suggests the names of presets, and the person's language."""
        self._commands = commands
        self._complete_preset = complete_preset
        self._language = language

    @override
    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and "\n" not in text:
            yield from self._complete(self._commands, text[1:], mark="/")

    def _complete(
        self, specs: Sequence[CommandSpec], typed: str, mark: str = ""
    ) -> Iterator[Completion]:
        name, space, rest = typed.partition(" ")
        if not space:
            for spec in specs:
                if spec.name.startswith(name.lower()):
                    shown = f"{mark}{spec.name}"
                    summary = translate(looked_up(spec.summary), self._language)
                    yield Completion(spec.name, -len(name), shown, summary)
            return
        for spec in specs:
            if spec.name == name.lower():
                yield from self._complete(spec.actions, rest)
                for option in spec.options:
                    found = self._complete_preset(rest) if option.completes else option.choices
                    fitting = [one for one in found if option.completes or one.startswith(rest)]
                    yield from (Completion(one, -len(rest)) for one in fitting)
