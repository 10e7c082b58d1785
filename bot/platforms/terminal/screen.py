"""The screen of an interactive chat: finished messages, the growing answer, and an input prompt."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from rich.cells import chop_cells
from typing_extensions import override

from bot.chat.command import CommandSpec
from bot.texts.text import to_translatable, translatable, translate

_SPINNER_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_SECONDS_PER_FRAME = 0.25
_SECONDS_BEFORE_SPINNER = 0.3  # most commands take less time
_ROWS_BELOW_ANSWER = 4  # rows for the prompt, the status and blank lines
_CTRL_C_HINT = translatable("Press Ctrl-C again to end the chat.")


def open_input_history(file: Path | None, open_flags: int = 0) -> History:
    """Open the private file of earlier input lines, or keep lines in memory if that fails."""
    if file is not None:
        with contextlib.suppress(OSError):
            os.close(os.open(file, os.O_CREAT | os.O_WRONLY | open_flags, 0o600))
            return FileHistory(str(file))
    return InMemoryHistory()


class CommandCompleter(Completer):
    """Completes the names, actions, presets and choices of commands, which start with `/`."""

    def __init__(
        self,
        commands: Sequence[CommandSpec],
        suggest_presets: Callable[[str], Sequence[str]],
        language: str = "en",
    ) -> None:
        self._commands = commands
        self._suggest_presets = suggest_presets
        self._language = language

    @override
    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and "\n" not in text:
            yield from self._suggest_completions(self._commands, text[1:], prefix="/")

    def _suggest_completions(
        self, specs: Sequence[CommandSpec], text: str, prefix: str = ""
    ) -> Iterator[Completion]:
        name, separator, argument = text.partition(" ")
        if not separator:
            for spec in specs:
                if spec.name.startswith(name.lower()):
                    label = f"{prefix}{spec.name}"
                    summary = translate(to_translatable(spec.summary), self._language)
                    yield Completion(spec.name, -len(name), label, summary)
            return
        for spec in specs:
            if spec.name == name.lower():
                yield from self._suggest_completions(spec.actions, argument)
                for option in spec.options:
                    if option.autocompletes:
                        matches = self._suggest_presets(argument)
                    else:
                        matches = [one for one in option.choices if one.startswith(argument)]
                    yield from (Completion(one, -len(argument)) for one in matches)


class ChatScreen:
    """Reads lines at a prompt, and prints texts above the prompt.

    `on_line` is called with each line, and `on_stop` if the user stops the answer with Ctrl-C.
    """

    def __init__(
        self,
        input_history: History,
        completer: Completer,
        on_line: Callable[[str], None],
        on_stop: Callable[[], None],
        *,
        language: str = "en",
        input_: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self.name = ""
        """The user's name, shown at the prompt."""
        self._on_line = on_line
        self._on_stop = on_stop
        self._language = language
        self._output = output or _open_output()
        self._answer_lines: Sequence[str] = ()
        self._waiting_lines: Sequence[str] = ()
        self._busy_since: float | None = None
        self._ctrl_c_ends_chat = False
        self._session: PromptSession[None] = PromptSession(
            self._prompt_text,
            multiline=True,
            history=input_history,
            completer=completer,
            complete_while_typing=Condition(lambda: buffer.text.startswith("/")),
            key_bindings=self._key_bindings(),
            enable_suspend=True,
            refresh_interval=_SECONDS_PER_FRAME,
            erase_when_done=True,
            input=input_ or create_input(),
            output=self._output,
        )
        buffer = self._session.default_buffer
        buffer.accept_handler = self._accept_line
        buffer.on_text_changed += self._reset_ctrl_c

    @property
    def columns(self) -> int:
        return self._output.get_size().columns

    async def read(self) -> None:
        """Read lines until `close` is called; raises `EOFError` if the terminal was closed."""
        try:
            await self._session.prompt_async(set_exception_handler=False, handle_sigint=False)
        except OSError as error:  # the terminal was closed while the prompt was drawn
            raise EOFError("the terminal was closed") from error

    def close(self) -> None:
        if self._session.app.is_running and not self._session.app.is_done:
            self._session.app.exit()

    def print(self, text: str) -> None:
        """Print lines permanently above the prompt; raises `OSError` if the terminal was closed."""
        app = self._session.app
        if app.is_running:
            app.renderer.erase()
        self._output.write_raw(f"{text}\n")
        self._output.flush()
        app.invalidate()

    def show_growing_answer(self, lines: Sequence[str]) -> None:
        self._answer_lines = lines
        self._session.app.invalidate()

    def show_queued_lines(self, lines: Sequence[str]) -> None:
        self._waiting_lines = lines

    def set_busy(self, is_busy: bool) -> None:
        self._busy_since = time.monotonic() if is_busy else None

    def clear_input_history(self, file: Path | None) -> None:
        buffer = self._session.default_buffer
        buffer.history = open_input_history(file, os.O_TRUNC)
        buffer.reset(buffer.document)

    def _prompt_text(self) -> StyleAndTextTuples:
        columns = self.columns
        cropped_lines = [_crop_to_half(f"⏎ {line}", columns) for line in self._waiting_lines]
        row_count = max(self._output.get_size().rows - _ROWS_BELOW_ANSWER - len(cropped_lines), 1)
        prompt_parts: StyleAndTextTuples = []
        for line in self._answer_lines[-row_count:]:
            prompt_parts += [*to_formatted_text(ANSI(line)), ("", "\n")]
        for line in (self._status_text(), *cropped_lines):
            if line:
                prompt_parts.append(("class:dim fg:ansibrightblack", f"{line}\n"))
        if prompt_parts:
            prompt_parts.append(("", "\n"))
        return [*prompt_parts, ("bold fg:ansigreen", f"{self.name}> ")]

    def _status_text(self) -> str:
        if self._ctrl_c_ends_chat:
            return translate(_CTRL_C_HINT, self._language)
        if self._busy_since is None or self._answer_lines:
            return ""
        seconds = time.monotonic() - self._busy_since
        if seconds < _SECONDS_BEFORE_SPINNER:
            return ""
        spinner_frame = _SPINNER_FRAMES[int(seconds / _SECONDS_PER_FRAME) % len(_SPINNER_FRAMES)]
        status = translatable(
            "waiting for the answer … {seconds} s (Ctrl-C to stop)", seconds=f"{seconds:.0f}"
        )
        return f"{spinner_frame} {translate(status, self._language)}"

    def _accept_line(self, buffer: Buffer) -> bool:
        if buffer.text.strip():
            self._on_line(buffer.text)
        return False  # clear the prompt

    def _reset_ctrl_c(self, _buffer: object) -> None:
        self._ctrl_c_ends_chat = False

    def _key_bindings(self) -> KeyBindings:
        bindings = KeyBindings()

        @bindings.add("enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @bindings.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @bindings.add("c-d", filter=Condition(lambda: not self._session.default_buffer.text))
        def _(event: KeyPressEvent) -> None:
            self._on_line("/quit")

        @bindings.add("c-c")
        def _(event: KeyPressEvent) -> None:
            if self._ctrl_c_ends_chat:
                self.close()
                return
            event.current_buffer.reset()
            if self._busy_since is not None:
                self._on_stop()
            self._ctrl_c_ends_chat = True
            event.app.invalidate()

        return bindings


def _open_output() -> Output:
    """Open stdout without cursor position queries, because some terminals do not answer them."""
    output = create_output()
    if isinstance(output, Vt100_Output):
        output.enable_cpr = False
    return output


def _crop_to_half(text: str, columns: int) -> str:
    first_line, *other_lines = chop_cells(" ".join(text.split()), columns // 2)
    return f"{first_line} …" if other_lines else first_line
