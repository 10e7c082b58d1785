"""The terminal as a platform: a room on a laptop, in which one can be several people."""

import asyncio
import getpass
import os
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from datetime import UTC, datetime
from typing import TextIO

from typing_extensions import override

from bot.chat.incoming import Address, Incoming, Person, Wake
from bot.chat.outgoing import Limits
from bot.ports import Intake, Platform, Surface

ROOM = Address("terminal", "local")
_LIMITS = Limits(
    max_units=1_000_000, unit="characters", seconds_between_edits=0.05, typing_seconds=0
)
_LONGEST_LINE_BYTES = 1_000_000
_CHUNK_BYTES = 65_536
_WELCOME = "Talk to me. /help says what I can do, /as NAME makes you somebody else, /quit ends."


class TerminalPlatform(Platform):
    """Reads lines until the end of input, and ends when all of them are answered.

    `idle()` waits until everything heard so far was answered and shown.
    """

    def __init__(
        self,
        *,
        idle: Callable[[], Awaitable[None]],
        source: int | None = None,
        screen: TextIO | None = None,
    ) -> None:
        self._idle = idle
        self._source = sys.stdin.fileno() if source is None else source
        screen = screen or sys.stdout
        self._interactive = os.isatty(self._source) and screen.isatty()
        self._surface = TerminalSurface(screen)
        self._person = Person("terminal:you", _login_name())
        self._run = uuid.uuid4().hex  # lines of an earlier run are other lines
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
    def trouble(self) -> str | None:
        return None

    @override
    async def run(self, intake: Intake) -> None:
        if self._interactive:
            self._surface.note(_WELCOME)
        await self._idle()  # an answer that an earlier run still owes
        await self._invite()
        async for line in read_lines(self._source):
            word, _, rest = line.strip().partition(" ")
            if word == "/quit":
                break
            if word == "/as":
                self._become(rest.strip())
            elif line.strip():
                await intake.hear([self._to_incoming(line)], {})
            if self._interactive:
                await self._idle()
            await self._invite()
        await self._idle()
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

    def _become(self, name: str) -> None:
        if name:
            self._person = Person(f"terminal:{name.casefold()}", name)
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
            wake=Wake.COMMAND if line.startswith("/") else Wake.DM,
            scopes=(ROOM.lane,),
            author_is_admin=True,
        )

    async def _invite(self) -> None:
        if self._interactive:
            self._surface.prompt(f"{self._person.name}> ")


class TerminalSurface(Surface):
    """Prints an answer as it grows; nothing that was printed can be taken back."""

    def __init__(self, screen: TextIO) -> None:
        self._screen = screen
        self._sent = 0
        self._shown = ""  # of the message printed last
        self._mid_line = False

    @override
    def limits(self, address: Address) -> Limits:
        return _LIMITS

    @override
    async def send(
        self,
        address: Address,
        text: str,
        *,
        nonce: str,
        reply_to: str | None,
        interaction: str | None,
    ) -> str:
        self.end_line()
        self._sent += 1
        self._shown = text
        self._write(text)
        return str(self._sent)

    @override
    async def edit(self, address: Address, message_id: str, text: str) -> None:
        if text.startswith(self._shown) and message_id == str(self._sent):
            self._write(text[len(self._shown) :])
        elif text.rstrip() != self._shown.rstrip():  # it was changed further up: print it anew
            self.end_line()
            self._write(text)
        self._shown = text

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        """Paper does not forget."""

    @override
    async def typing(self, address: Address) -> None:
        """The answer itself shows that it is being written."""

    @override
    async def find(
        self, address: Address, text: str, *, after: str | None, known: Set[str]
    ) -> str | None:
        """Say no: after a crash the last answer is printed once more, to a screen that lost it."""
        return None

    def note(self, text: str) -> None:
        self.end_line()
        self._write(f"{text}\n")

    def prompt(self, text: str) -> None:
        self.end_line()
        self._write(text)
        self._mid_line = False  # the person's own return key ends this line

    def end_line(self) -> None:
        if self._mid_line:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._screen.write(text)
            self._screen.flush()
            self._mid_line = not text.endswith("\n")


async def read_lines(source: int) -> AsyncIterator[str]:
    """Read lines from a terminal, a pipe or a file; bytes that are no UTF-8 become U+FFFD.

    A thread of its own reads: a terminal cannot be polled everywhere, and a file nowhere. It is a
    daemon and reads below Python's buffers, so that it never holds up the end of the process.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        while chunk := os.read(source, _CHUNK_BYTES):
            loop.call_soon_threadsafe(chunks.put_nowait, chunk)
        loop.call_soon_threadsafe(chunks.put_nowait, b"")

    threading.Thread(target=read, name="read terminal", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield _text(line)
        if len(rest) > _LONGEST_LINE_BYTES:
            yield _text(rest)
            rest = b""
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return "you"
