"""The room: whoever sits here talks to the bot, as one person or as several."""

import getpass
import os
import sys
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TextIO

from typing_extensions import override

from bot.chat.incoming import Address, Incoming, Person, WakeReason
from bot.platforms.spec import PlatformContext
from bot.platforms.terminal.lines import read_lines
from bot.platforms.terminal.surface import TerminalSurface
from bot.ports import Intake, Platform, Surface

ROOM = Address("terminal", "local")
_WELCOME = "Talk to me. /help says what I can do, /as NAME makes you somebody else, /quit ends."


def make(_settings: None, context: PlatformContext) -> Platform:
    return TerminalPlatform(idle=context.wait_until_idle)


class TerminalPlatform(Platform):
    """Reads lines until the end of input, and ends when all of them are answered.

    `idle()` waits until everything heard so far was answered and shown. `source` is the file
    descriptor to read from: without any, there is nothing to hear.
    """

    def __init__(
        self,
        *,
        idle: Callable[[], Awaitable[None]],
        source: int | None = None,
        screen: TextIO | None = None,
    ) -> None:
        self._idle = idle
        screen = screen or sys.stdout
        if source is None and sys.stdin is not None:  # it is None where it was closed by the caller
            source = sys.stdin.fileno()
        self._source = source
        self._interactive = source is not None and os.isatty(source) and screen.isatty()
        self._run = uuid.uuid4().hex  # lines and messages of an earlier run are other ones
        self._surface = TerminalSurface(screen, self._run)
        self._person = _person(_login_name())
        self._lines_heard = 0

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
            await self._idle()  # an answer that an earlier run still owes
            self._invite()
            async for line in read_lines(self._source):
                if line.strip() == "/quit":
                    break
                await self._take(line, intake)
                if self._interactive:
                    await self._idle()
                self._invite()
            await self._idle()
        finally:
            self._surface.end_line()

    @override
    async def is_admin(self, incoming: Incoming) -> bool:
        return True  # whoever sits here could edit the files as well

    @override
    async def check(self) -> str:
        return "this terminal"

    @override
    async def close(self) -> None:
        """Nothing is held open."""

    async def _take(self, line: str, intake: Intake) -> None:
        word, _, rest = line.strip().partition(" ")
        if word != "/as":
            if word:
                await intake.receive([self._to_incoming(line)], {})
            return
        if rest.strip():
            self._person = _person(rest.strip())
        if self._interactive or not rest.strip():
            self._surface.note(f"You are {self._person.name}.")

    def _to_incoming(self, line: str) -> Incoming:
        self._lines_heard += 1
        return Incoming(
            address=ROOM,
            external_key=f"{self._run}:{self._lines_heard}",
            message_id=None,
            author=self._person,
            text=line,
            at=datetime.now(UTC),
            wake=WakeReason.COMMAND if line.startswith("/") else WakeReason.DM,
            scopes=(ROOM.lane,),
            author_is_admin=True,
        )

    def _invite(self) -> None:
        if self._interactive:
            self._surface.prompt(f"{self._person.name}> ")


def _person(name: str) -> Person:
    return Person(f"terminal:{name.casefold()}", name)


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return "you"
