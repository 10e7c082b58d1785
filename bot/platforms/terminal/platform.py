"""A pipe, a file or a terminal without abilities as a platform: lines in, plain text out.

A terminal that can do more is a `ScreenPlatform`; its libraries are imported only then.
"""

import os
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module  # noqa: TID251 # libraries that pipes do not need
from typing import TextIO

from typing_extensions import override

from bot.platforms.local_platform import LocalPlatform
from bot.platforms.spec import PlatformContext
from bot.platforms.terminal.lines import read_lines
from bot.platforms.terminal.local_chat import LocalChat
from bot.platforms.terminal.surface import TerminalSurface
from bot.ports import Intake, Platform, Surface
from bot.texts.text import translatable, translate

_WELCOME = translatable(
    "Write a message. /help lists the commands, /as NAME changes your name, /quit ends."
)


def make(_settings: None, context: PlatformContext) -> Platform:
    """Make the chat client where people read and write, else a reader of lines."""
    if sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
        client: Platform | None = import_module("bot.platforms.terminal.screen_platform").make(
            context
        )
        if client is not None:
            return client
    is_pipe = sys.stdin is None or not sys.stdin.isatty()
    chat = LocalChat(context.chat, context.locale, is_fresh=is_pipe)
    return TerminalPlatform(wait_until_idle=context.wait_until_idle, chat=chat)


class TerminalPlatform(LocalPlatform):
    """Reads lines until the end of input, and ends when all of them are answered."""

    kind = "terminal"
    account = "this terminal"

    def __init__(
        self,
        *,
        wait_until_idle: Callable[[], Awaitable[None]],
        source: int | None = None,
        screen: TextIO | None = None,
        chat: LocalChat | None = None,
    ) -> None:
        """Read from a file descriptor and print to a screen.

        Args:
            wait_until_idle: waits until every received line was answered and printed.
            source: the file descriptor to read from; by default that of standard input, if open.
            screen: where to print; by default standard output.
            chat: which conversation it is; by default the usual one.
        """
        self._wait_until_idle = wait_until_idle
        screen = screen or sys.stdout
        if source is None and sys.stdin is not None:  # None if the parent process closed it
            source = sys.stdin.fileno()
        self._source = source
        self._interactive = source is not None and os.isatty(source) and screen.isatty()
        self._chat = chat or LocalChat()
        self._surface = TerminalSurface(screen, self._chat.run, self._chat.language)

    @property
    @override
    def surface(self) -> Surface:
        return self._surface

    @override
    async def run(self, intake: Intake) -> None:
        try:
            if self._interactive:
                self._surface.note(translate(_WELCOME, self._chat.language))
                await intake.receive([self._chat.to_opening()], {})
            await self._wait_until_idle()  # answers left from an earlier run
            self._show_prompt()
            async for line in read_lines(self._source):
                if line.strip() == "/quit":
                    break
                await self._handle_line(line, intake)
                if self._interactive:
                    await self._wait_until_idle()
                self._show_prompt()
            await self._wait_until_idle()
        finally:
            self._surface.end_line()

    async def _handle_line(self, line: str, intake: Intake) -> None:
        word, _, rest = line.strip().partition(" ")
        if word != "/as":
            if word:
                await intake.receive([self._chat.to_said(line)], {})
            return
        told = self._chat.rename(rest)
        if self._interactive or not rest.strip():
            self._surface.note(told)

    def _show_prompt(self) -> None:
        if self._interactive:
            self._surface.prompt(f"{self._chat.person.name}> ")
