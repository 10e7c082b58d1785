"""The screen of a terminal: prints an answer as it grows."""

from collections.abc import Set
from typing import TextIO

from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Attachment, Limits, MessageContent, OutgoingMessage
from bot.errors import Refused
from bot.ports import Surface
from bot.runtime.control_characters import strip_control_characters
from bot.texts.text import translatable, translate

LIMITS = Limits(
    max_units=1_000_000,
    unit="characters",
    seconds_between_edits=0.05,
    typing_seconds=0,
    speaker_line="[{}]",
    closes_code_blocks=False,  # what was printed cannot be changed
    answers_each_message=True,
)
_MAX_KEPT = 100  # messages whose text is kept, to print only what an edit adds


class TerminalSurface(Surface):
    """Prints messages and what edits add to them; printed text cannot be changed."""

    def __init__(self, screen: TextIO, run: str, language: str = "en") -> None:
        self._screen = screen
        self._run = run
        self._language = language
        self._shown: dict[str, str] = {}
        """The printed text of each message, oldest first."""
        self._by_nonce: dict[str, str] = {}
        self._sent = 0
        self._mid_line = False

    @override
    def limits(self, address: Address) -> Limits:
        return LIMITS

    @override
    async def send(self, message: OutgoingMessage) -> str:
        if message.nonce in self._by_nonce:
            return self._by_nonce[message.nonce]
        self._sent += 1
        message_id = f"{self._run}:{self._sent}"
        self._print_whole(message_id, self._printed(message))
        _keep_newest(self._by_nonce, message.nonce, message_id)
        return message_id

    @override
    async def edit(
        self,
        address: Address,
        message_id: str,
        content: MessageContent,
        *,
        interaction: str | None = None,
    ) -> None:
        text = content.text
        shown = self._shown.get(message_id)
        if shown == text:
            return
        newest = next(reversed(self._shown), None)
        if shown is not None and message_id == newest and text.startswith(shown):
            self._write(text[len(shown) :])
            self._shown[message_id] = text
        else:  # its printed text changed, or an earlier run printed it
            self._print_whole(message_id, text)

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        """Do nothing: printed text stays."""

    @override
    async def typing(self, address: Address) -> None:
        """Do nothing: the answer is printed while it is generated."""

    @override
    async def find(
        self, message: OutgoingMessage, *, after: str | None, known: Set[str]
    ) -> str | None:
        """Return None: after a crash the last answer is printed again."""
        return None

    def note(self, text: str) -> None:
        """Print a notice."""
        self.end_line()
        self._write(f"{text}\n")

    def prompt(self, text: str) -> None:
        """Print a prompt for input."""
        self.end_line()
        self._write(text)
        self._mid_line = False  # the Return key ends this line

    def end_line(self) -> None:
        """Start a new line, unless the last one was ended."""
        if self._mid_line:
            self._write("\n")

    def _printed(self, message: OutgoingMessage) -> str:
        if message.file is None:
            return message.text
        return f"{message.text}\n{printed_file(message.file, self._language)}"

    def _print_whole(self, message_id: str, text: str) -> None:
        self.end_line()
        self._write(text)
        self._shown.pop(message_id, None)
        _keep_newest(self._shown, message_id, text)

    def _write(self, text: str) -> None:
        text = strip_control_characters(text)
        if not text:
            return
        encoding = self._screen.encoding or "utf-8"
        try:
            self._screen.write(text.encode(encoding, "replace").decode(encoding))
            self._screen.flush()
        except OSError as error:  # the other end of the pipe was closed
            self._mid_line = False
            raise Refused(f"the output cannot be written: {error.strerror}") from None
        self._mid_line = not text.endswith("\n")


def printed_file(file: Attachment, language: str) -> str:
    """Print a file after its text: people want to read it, and no private file is left behind."""
    end = translate(translatable("--- end of {name} ---", name=file.name), language)
    return f"--- {file.name} ---\n{file.text.rstrip()}\n{end}"


def _keep_newest(kept: dict[str, str], key: str, value: str) -> None:
    kept[key] = value
    if len(kept) > _MAX_KEPT:
        del kept[next(iter(kept))]
