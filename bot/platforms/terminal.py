"""The terminal as a platform: a room on a laptop, in which one can be several people."""

import asyncio
import contextlib
import getpass
import os
import re
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from datetime import UTC, datetime
from typing import TextIO

from typing_extensions import override

from bot.chat.incoming import Address, Incoming, Person, Wake
from bot.chat.outgoing import Limits
from bot.errors import Refused
from bot.ports import Intake, Platform, Surface

ROOM = Address("terminal", "local")
_LIMITS = Limits(
    max_units=1_000_000, unit="characters", seconds_between_edits=0.05, typing_seconds=0
)
_LONGEST_LINE_BYTES = 1_000_000
_CHUNK_BYTES = 65_536
_CHUNKS_AHEAD = 16
_REMEMBERED = 100  # messages whose text is kept to see what an edit adds
# What would make a terminal do things: a model's words may only be read.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_WELCOME = "Talk to me. /help says what I can do, /as NAME makes you somebody else, /quit ends."


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
    def trouble(self) -> str | None:
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
                await intake.hear([self._to_incoming(line)], {})
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
            wake=Wake.COMMAND if line.startswith("/") else Wake.DM,
            scopes=(ROOM.lane,),
            author_is_admin=True,
        )

    def _invite(self) -> None:
        if self._interactive:
            self._surface.prompt(f"{self._person.name}> ")


class TerminalSurface(Surface):
    """Prints an answer as it grows; nothing that was printed can be taken back."""

    def __init__(self, screen: TextIO, run: str) -> None:
        self._screen = screen
        self._run = run
        self._shown: dict[str, str] = {}  # the texts of messages, oldest first
        self._by_nonce: dict[str, str] = {}
        self._sent = 0
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
        if nonce in self._by_nonce:
            return self._by_nonce[nonce]
        self._sent += 1
        message_id = f"{self._run}:{self._sent}"
        self._print_anew(message_id, text)
        _remember(self._by_nonce, nonce, message_id)
        return message_id

    @override
    async def edit(self, address: Address, message_id: str, text: str) -> None:
        shown = self._shown.get(message_id)
        if shown == text:
            return
        newest = next(reversed(self._shown), None)
        if shown is not None and message_id == newest and text.startswith(shown):
            self._write(text[len(shown) :])
            self._shown[message_id] = text
        else:  # it was changed further up, or an earlier run printed it
            self._print_anew(message_id, text)

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
        """Say something that is no message."""
        self.end_line()
        self._write(f"{text}\n")

    def prompt(self, text: str) -> None:
        """Invite the person to write."""
        self.end_line()
        self._write(text)
        self._mid_line = False  # the person's own return key ends this line

    def end_line(self) -> None:
        """Go to the beginning of a line, unless we are there."""
        if self._mid_line:
            self._write("\n")

    def _print_anew(self, message_id: str, text: str) -> None:
        self.end_line()
        self._write(text)
        self._shown.pop(message_id, None)
        _remember(self._shown, message_id, text)

    def _write(self, text: str) -> None:
        text = _CONTROL.sub("", text)
        if not text:
            return
        encoding = self._screen.encoding or "utf-8"
        try:
            self._screen.write(text.encode(encoding, "replace").decode(encoding))
            self._screen.flush()
        except OSError as error:  # the other end of the pipe has gone
            self._mid_line = False
            raise Refused(f"nobody reads what is printed: {error.strerror}") from None
        self._mid_line = not text.endswith("\n")


async def read_lines(source: int | None) -> AsyncIterator[str]:
    """Read lines from a terminal, a pipe or a file; bytes that are no UTF-8 become U+FFFD.

    A thread of its own reads: a terminal cannot be polled everywhere, and a file nowhere. It is a
    daemon and reads below Python's buffers, so that it never holds up the end of the process.
    """
    if source is None:
        return
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_AHEAD)

    def read() -> None:
        chunk = b"more"
        with contextlib.suppress(RuntimeError):  # the loop has ended first
            while chunk:
                room.acquire()
                try:
                    chunk = os.read(source, _CHUNK_BYTES)
                except OSError:  # the terminal has gone
                    chunk = b""
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    threading.Thread(target=read, name="read terminal", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        room.release()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield _text(line)
        if len(rest) > _LONGEST_LINE_BYTES:
            yield _text(rest)
            rest = b""
    if rest:
        yield _text(rest)


def _remember(kept: dict[str, str], key: str, value: str) -> None:
    kept[key] = value
    if len(kept) > _REMEMBERED:
        del kept[next(iter(kept))]


def _person(name: str) -> Person:
    return Person(f"terminal:{name.casefold()}", name)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return "you"
