"""The screen: prints an answer as it grows."""

import re
from collections.abc import Set
from typing import TextIO

from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Limits, OutgoingMessage
from bot.errors import Refused
from bot.ports import Surface

_LIMITS = Limits(
    max_units=1_000_000,
    unit="characters",
    seconds_between_edits=0.05,
    typing_seconds=0,
    speaker_line="[{}]",
)
_REMEMBERED = 100  # messages whose text is kept to see what an edit adds
# What would make a terminal do things: a model's words may only be read.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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
    async def send(self, message: OutgoingMessage) -> str:
        if message.nonce in self._by_nonce:
            return self._by_nonce[message.nonce]
        self._sent += 1
        message_id = f"{self._run}:{self._sent}"
        self._print_anew(message_id, _printed(message))
        _remember(self._by_nonce, message.nonce, message_id)
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
        self, message: OutgoingMessage, *, after: str | None, known: Set[str]
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


def _printed(message: OutgoingMessage) -> str:
    """Print a file after its text: people want to read it, and no private file is left behind."""
    file = message.file
    if file is None:
        return message.text
    return f"{message.text}\n--- {file.name} ---\n{file.text.rstrip()}\n--- end of {file.name} ---"


def _remember(kept: dict[str, str], key: str, value: str) -> None:
    kept[key] = value
    if len(kept) > _REMEMBERED:
        del kept[next(iter(kept))]
