"""The chat client for interactive terminals: a prompt, Markdown, input history, completion."""

import asyncio
from collections import deque
from dataclasses import replace

from prompt_toolkit.input import Input
from prompt_toolkit.output import Output
from prompt_toolkit.utils import is_dumb_terminal
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Limits
from bot.errors import Refused
from bot.platforms.local_platform import LocalPlatform
from bot.platforms.spec import PlatformContext
from bot.platforms.terminal.local_chat import LIMITS, OWN_COMMANDS, LocalChat, PrintingSurface
from bot.platforms.terminal.rendering import TextRenderer
from bot.platforms.terminal.screen import ChatScreen, CommandCompleter, open_input_history
from bot.ports import Intake, Platform
from bot.runtime.tasks import cancel_and_wait
from bot.runtime.terminal import strip_control_characters
from bot.texts.text import translatable, translate

HISTORY_FILE = "terminal_history"
_STOP_TIMEOUT_SECONDS = 2.0  # the time to print a stopped answer
_MAX_RENDERED_CHARS = 3000  # longer texts take too long to render at each update
_WELCOME = translatable(
    "Write a message. /help lists the commands, /as NAME changes your name, /quit ends the chat. "
    "Alt-Enter starts a new line, Tab completes a command, Ctrl-C stops an answer."
)
_NOTICE_STYLE, _QUESTION_STYLE = "dim", "green"
_SCREEN_LIMITS = replace(LIMITS, always_shows_name=True, seconds_between_edits=0.1)


class ScreenPlatform(LocalPlatform):
    """Answers lines one by one; only /stop and Ctrl-C take effect during an answer."""

    name = "terminal"
    account = "this terminal"

    def __init__(
        self, context: PlatformContext, *, input_: Input | None = None, output: Output | None = None
    ) -> None:
        self._wait_until_idle = context.wait_until_idle
        self._chat = LocalChat(context.chat, context.locale)
        language = self._chat.language
        self._lines: deque[str] = deque()
        self._line_entered = asyncio.Event()
        self._stop_requested = asyncio.Event()
        self._is_busy = False
        data_dir = context.data_dir
        self._history_file = data_dir / HISTORY_FILE if data_dir else None
        self._screen = ChatScreen(
            open_input_history(self._history_file),
            CommandCompleter([*context.commands, *OWN_COMMANDS], context.suggest_presets, language),
            self._queue_line,
            self._stop_requested.set,
            language=language,
            input_=input_,
            output=output,
        )
        self._screen.name = self._chat.person.name
        self.surface = ScreenSurface(self._screen, self._chat.run_id, language)

    @override
    async def run(self, intake: Intake) -> None:
        try:
            self.surface.print_plain(f"{translate(_WELCOME, self._chat.language)}\n", _NOTICE_STYLE)
            await self._chat_until_end(intake)
        except Refused:  # the terminal was closed for good
            return

    async def _chat_until_end(self, intake: Intake) -> None:
        read_task = asyncio.create_task(self._screen.read(), name="read terminal")
        answer_task = asyncio.create_task(self._handle_lines(intake), name="answer terminal")
        stop_task = asyncio.create_task(self._send_stop_commands(intake), name="stop answers")
        tasks = {read_task, answer_task, stop_task}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()  # re-raises the task's error
            if read_task.done():  # ended by Ctrl-C, which has already stopped the answer
                self._lines.clear()
                self._queue_line("/quit")
                await asyncio.wait({answer_task}, timeout=_STOP_TIMEOUT_SECONDS)
        except EOFError:  # the terminal was closed; answer the lines entered before
            self._queue_line("/quit")
            await answer_task
        finally:
            self._screen.close()
            if not read_task.done():
                await asyncio.wait({read_task})
            await cancel_and_wait(tasks)
            self.surface.end_message()

    def _queue_line(self, line: str) -> None:
        if self._is_busy and line.strip() == "/stop":
            self._stop_requested.set()
            return
        self._lines.append(line)
        self._line_entered.set()
        self._screen.show_queued_lines(tuple(self._lines) if self._is_busy else ())

    async def _handle_lines(self, intake: Intake) -> None:
        await intake.receive([self._chat.to_chat_join()], {})
        await self._wait_for_answers()  # includes unsent answers of an earlier run
        while True:
            await self._line_entered.wait()
            while self._lines:
                line = self._lines.popleft()
                self._screen.show_queued_lines(tuple(self._lines))
                if line.strip() == "/quit":
                    return
                await self._handle_line(line, intake)
            self._line_entered.clear()

    async def _handle_line(self, line: str, intake: Intake) -> None:
        self.surface.print_plain(f"{self._chat.person.name}> {line}", _QUESTION_STYLE)
        word, _, argument = line.strip().partition(" ")
        if word == "/as":
            self.surface.print_plain(self._chat.rename_person(argument), _NOTICE_STYLE)
            self._screen.name = self._chat.person.name
            return
        await intake.receive([self._chat.to_incoming_message(line)], {})
        await self._wait_for_answers()
        if word == "/forget":
            self._screen.clear_input_history(self._history_file)

    async def _wait_for_answers(self) -> None:
        self._is_busy = True
        self._screen.set_busy(True)
        try:
            await self._wait_until_idle()
        finally:
            self._is_busy = False
            self._screen.set_busy(False)
            self.surface.end_message()

    async def _send_stop_commands(self, intake: Intake) -> None:
        while True:
            await self._stop_requested.wait()
            self._stop_requested.clear()
            if self._is_busy:
                await intake.receive([self._chat.to_incoming_message("/stop")], {})


def create_platform(context: PlatformContext) -> Platform | None:
    """Create the chat client, or return None for a dumb terminal."""
    return None if is_dumb_terminal() else ScreenPlatform(context)


class ScreenSurface(PrintingSurface):
    """Shows the newest message above the prompt while it grows, and prints it when complete."""

    def __init__(self, screen: ChatScreen, run_id: str, language: str = "en") -> None:
        super().__init__(run_id, language)
        self._screen = screen
        self._renderer = TextRenderer(lambda: screen.columns)
        self._growing_message_id: str | None = None  # id of the newest message until it is printed

    @override
    def limits(self, address: Address) -> Limits:
        return _SCREEN_LIMITS

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        """Remove the growing message; printed messages stay."""
        if message_id == self._growing_message_id:
            self._growing_message_id = None
            self._screen.show_growing_answer(())

    def end_message(self) -> None:
        """Print the growing message, if there is one, because it is complete."""
        if self._growing_message_id is None:
            return
        text, self._growing_message_id = self._texts[self._growing_message_id], None
        self._screen.show_growing_answer(())
        self._print(self._renderer.render_answer(strip_control_characters(text)) + "\n")

    @override
    def _show(self, message_id: str, text: str) -> None:
        if message_id != self._growing_message_id:
            self.end_message()
        self._growing_message_id, self._texts[message_id] = message_id, text
        screen_text = strip_control_characters(text)
        if len(screen_text) > _MAX_RENDERED_CHARS:
            screen_text = self._renderer.render_plain(screen_text[-_MAX_RENDERED_CHARS:])
        else:
            screen_text = self._renderer.render_answer(screen_text)
        self._screen.show_growing_answer(screen_text.split("\n"))

    @override
    def print_plain(self, text: str, style: str = "") -> None:
        self.end_message()
        self._print(self._renderer.render_plain(strip_control_characters(text), style))

    def _print(self, text: str) -> None:
        try:
            self._screen.print(text)
        except OSError as error:  # the terminal was closed
            raise Refused(f"cannot write to the output: {error.strerror}") from None
