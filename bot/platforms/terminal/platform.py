"""The line-based platform for pipes, files and dumb terminals: reads lines, prints plain text."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import import_module  # noqa: TID251 # libraries that pipes do not need
from typing import TextIO

from typing_extensions import override

from bot.errors import Refused
from bot.extras import install_command, is_missing
from bot.platforms.local_platform import LocalPlatform
from bot.platforms.spec import PlatformContext
from bot.platforms.terminal.local_chat import LocalChat, PrintingSurface
from bot.ports import Intake, Platform
from bot.runtime.terminal import strip_control_characters

_MAX_LINE_CHARS = 1_000_001
_MAX_LINES_AHEAD = 16


def create_platform(_settings: None, context: PlatformContext) -> Platform:
    """Create the chat client for an interactive terminal, or else the line-based platform."""
    is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    if is_terminal and is_missing("prompt_toolkit"):
        command = install_command("prompt_toolkit")
        sys.stderr.write(f"troupe: to get completion and history, run {command}\n")
    elif is_terminal:
        screen_module = import_module("bot.platforms.terminal.screen_platform")
        screen_platform: Platform | None = screen_module.create_platform(context)
        if screen_platform is not None:
            return screen_platform
    is_pipe = sys.stdin is None or not sys.stdin.isatty()
    chat = LocalChat(context.chat, context.locale, is_new_chat=is_pipe)
    return TerminalPlatform(wait_until_idle=context.wait_until_idle, chat=chat)


class TerminalPlatform(LocalPlatform):
    """Reads lines from a file descriptor until its end, and waits until all are answered."""

    name = "terminal"
    account = "this terminal"

    def __init__(
        self,
        *,
        wait_until_idle: Callable[[], Awaitable[None]],
        input_fd: int | None = None,
        output: TextIO | None = None,
        chat: LocalChat | None = None,
    ) -> None:
        self._wait_until_idle = wait_until_idle
        if input_fd is None and sys.stdin is not None:  # stdin is None if the parent closed it
            input_fd = sys.stdin.fileno()
        self._input_fd = input_fd
        self._chat = chat or LocalChat()
        self.surface = TerminalSurface(output or sys.stdout, self._chat.run_id, self._chat.language)

    @override
    async def run(self, intake: Intake) -> None:
        try:
            await self._wait_until_idle()  # prints unsent answers of an earlier run
            async for line in read_lines(self._input_fd):
                if line.strip() == "/quit":
                    break
                await self._handle_line(line, intake)
            await self._wait_until_idle()
        finally:
            self.surface.end_line()

    async def _handle_line(self, line: str, intake: Intake) -> None:
        word, _, argument = line.strip().partition(" ")
        if word == "/as":
            notice = self._chat.rename_person(argument)
            if not argument.strip():
                self.surface.print_plain(notice)
        elif word:
            await intake.receive([self._chat.to_incoming_message(line)], {})


class TerminalSurface(PrintingSurface):
    """Prints messages. An edit prints the appended text, or the whole message if more changed."""

    def __init__(self, output: TextIO, run_id: str, language: str = "en") -> None:
        super().__init__(run_id, language)
        self._output = output
        self._is_mid_line = False

    @override
    def print_plain(self, text: str) -> None:
        self.end_line()
        self._write(text)

    def end_line(self) -> None:
        if self._is_mid_line:
            self._write("\n")

    @override
    def _show(self, message_id: str, text: str) -> None:
        newest_id = next(reversed(self._texts), None)
        printed_text = self._texts[message_id] if message_id == newest_id else None
        if printed_text is not None and text.startswith(printed_text):
            self._write(text[len(printed_text) :])
        else:  # the printed part has changed, or a newer message follows
            self.print_plain(text)
        self._texts[message_id] = text

    def _write(self, text: str) -> None:
        text = strip_control_characters(text)
        if not text:
            return
        encoding = self._output.encoding or "utf-8"
        try:
            self._output.write(text.encode(encoding, "replace").decode(encoding))
            self._output.flush()
        except OSError as error:  # the other end of the pipe was closed
            self._is_mid_line = False
            raise Refused(f"cannot write to the output: {error.strerror}") from None
        self._is_mid_line = not text.endswith("\n")


async def read_lines(input_fd: int | None) -> AsyncIterator[str]:
    """Yield lines from a file descriptor until it ends; invalid UTF-8 becomes U+FFFD.

    A thread reads the lines, because the event loop cannot poll files or some terminals. It is a
    daemon thread with its own buffer, so it never delays the exit of the process.
    """
    if input_fd is None:
        return
    loop = asyncio.get_running_loop()
    line_queue: asyncio.Queue[str] = asyncio.Queue()
    free_slots = threading.Semaphore(_MAX_LINES_AHEAD)

    def read_into_queue() -> None:
        with contextlib.suppress(RuntimeError):  # the event loop was closed
            with (
                contextlib.suppress(OSError),  # the terminal was closed
                open(input_fd, encoding="utf-8", errors="replace", closefd=False) as file,
            ):
                while line := file.readline(_MAX_LINE_CHARS):
                    free_slots.acquire()
                    loop.call_soon_threadsafe(line_queue.put_nowait, line)
            loop.call_soon_threadsafe(line_queue.put_nowait, "")

    threading.Thread(target=read_into_queue, name="read terminal", daemon=True).start()
    while line := await line_queue.get():
        free_slots.release()
        yield line.removesuffix("\n")
