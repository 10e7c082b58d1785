"""A terminal emulator on a pty, which reads the screen and presses keys."""

import contextlib
import fcntl
import os
import pty
import struct
import termios
from collections.abc import Iterator

import pyte

from tests.waiting import wait_until

CTRL_C, CTRL_D, ENTER, ALT_ENTER, TAB, UP = "\x03", "\x04", "\r", "\x1b\r", "\t", "\x1b[A"


class Terminal:
    """A terminal with some columns and rows; `theirs` is the program's end of the pty."""

    def __init__(self, columns: int, rows: int = 24) -> None:
        self._ours, self.theirs = pty.openpty()
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, size)
        os.set_blocking(self._ours, False)
        self.raw = b""
        """Everything that was written to the terminal."""
        self._screen = pyte.HistoryScreen(columns, rows, history=1000)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def lines(self) -> list[str]:
        """Return the non-empty lines on the screen and in the scrollback."""
        self.read()
        # a wide character takes two cells, of which the second one is empty
        above = ["".join(row[x].data for x in sorted(row)) for row in self._screen.history.top]
        return [line.rstrip() for line in [*above, *self._screen.display] if line.strip()]

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def enter(self, line: str) -> None:
        self.press(line + ENTER)

    def close(self) -> None:
        """Close the terminal, so that the program's reads and writes fail."""
        os.dup2(os.open(os.devnull, os.O_RDWR), self._ours)

    def read(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(self._ours, 65_536):
                self.raw += data
                self._stream.feed(data)

    async def shows(self, *lines: str) -> None:
        """Wait until these lines are the last ones."""
        try:
            await wait_until(lambda: self.lines[-len(lines) :] == list(lines))
        except TimeoutError:
            raise AssertionError("\n".join(self.lines)) from None

    async def shows_text(self, text: str) -> None:
        """Wait until a text is on the screen or in the scrollback."""
        try:
            await wait_until(lambda: text in "\n".join(self.lines))
        except TimeoutError:
            raise AssertionError("\n".join(self.lines)) from None


@contextlib.contextmanager
def open_terminal(columns: int, rows: int = 24) -> Iterator[Terminal]:
    terminal = Terminal(columns, rows)
    try:
        yield terminal
    finally:
        for descriptor in (terminal._ours, terminal.theirs):
            os.close(descriptor)
