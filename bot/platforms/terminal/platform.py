"""The terminal as a platform: the person at the keyboard writes under one name or several."""

import getpass
import os
import sys
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TextIO

from typing_extensions import override

from bot.chat.incoming import Address, Person, Said, WakeReason
from bot.platforms.spec import PlatformContext
from bot.platforms.terminal.lines import read_lines
from bot.platforms.terminal.surface import TerminalSurface
from bot.ports import Intake, Platform, Surface

CHANNEL = Address("terminal", "local")
_WELCOME = "Write a message. /help lists the commands, /as NAME changes your name, /quit ends."


def make(_settings: None, context: PlatformContext) -> Platform:
    return TerminalPlatform(wait_until_idle=context.wait_until_idle)


class TerminalPlatform(Platform):
    """Reads lines until the end of input, and ends when all of them are answered."""

    def __init__(
        self,
        *,
        wait_until_idle: Callable[[], Awaitable[None]],
        source: int | None = None,
        screen: TextIO | None = None,
    ) -> None:
        """Read from a file descriptor and print to a screen.

        Args:
            wait_until_idle: waits until every received line was answered and printed.
            source: the file descriptor to read from; by default that of standard input, if open.
            screen: where to print; by default standard output.
        """
        self._wait_until_idle = wait_until_idle
        screen = screen or sys.stdout
        if source is None and sys.stdin is not None:  # None if the parent process closed it
            source = sys.stdin.fileno()
        self._source = source
        self._interactive = source is not None and os.isatty(source) and screen.isatty()
        self._run = uuid.uuid4().hex  # makes ids differ from those of earlier runs
        self._surface = TerminalSurface(screen, self._run)
        self._person = _to_person(_login_name())
        self._lines_received = 0

    @property
    @override
    def name(self) -> str:
        return "terminal"

    @property
    @override
    def surface(self) -> Surface:
        return self._surface

    @property
    @override
    def connection_error(self) -> str | None:
        return None

    @override
    async def run(self, intake: Intake) -> None:
        try:
            if self._interactive:
                self._surface.note(_WELCOME)
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

    @override
    async def is_admin(self, incoming: Said) -> bool:
        return True  # this person can edit the settings, too

    @override
    async def check(self) -> str:
        return "this terminal"

    @override
    async def close(self) -> None:
        """Do nothing: no connection is open."""

    async def _handle_line(self, line: str, intake: Intake) -> None:
        word, _, rest = line.strip().partition(" ")
        if word != "/as":
            if word:
                await intake.receive([self._to_incoming(line)], {})
            return
        if rest.strip():
            self._person = _to_person(rest.strip())
            if self._interactive:
                self._surface.note(f"Your name is now {self._person.name}.")
        else:
            self._surface.note(f"Your name is {self._person.name}; /as NAME changes it.")

    def _to_incoming(self, line: str) -> Said:
        self._lines_received += 1
        return Said(
            address=CHANNEL,
            external_key=f"{self._run}:{self._lines_received}",
            message_id=None,
            author=self._person,
            text=line,
            at=datetime.now(UTC),
            wake=WakeReason.COMMAND if line.startswith("/") else WakeReason.DM,
            scopes=(CHANNEL.lane,),
            author_is_admin=True,
        )

    def _show_prompt(self) -> None:
        if self._interactive:
            self._surface.prompt(f"{self._person.name}> ")


def _to_person(name: str) -> Person:
    return Person(f"terminal:{name.casefold()}", name)


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return "you"
