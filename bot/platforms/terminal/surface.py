"""The screen of a terminal: prints an answer as it grows."""

from typing import TextIO

from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import MessageContent, OutgoingMessage
from bot.errors import Refused
from bot.platforms.terminal.printing_surface import PrintingSurface, keep_newest, printed_file
from bot.runtime.control_characters import strip_control_characters


class TerminalSurface(PrintingSurface):
    """Prints messages and what edits add to them; printed text cannot be changed."""

    def __init__(self, screen: TextIO, run: str, language: str = "en") -> None:
        super().__init__(run, language)
        self._screen = screen
        self._shown: dict[str, str] = {}
        """The printed text of each message, oldest first."""
        self._mid_line = False

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

    @override
    def _print_message(self, message_id: str, message: OutgoingMessage) -> None:
        text = message.text
        if message.file is not None:
            text = f"{text}\n{printed_file(message.file, self._language)}"
        self._print_whole(message_id, text)

    def _print_whole(self, message_id: str, text: str) -> None:
        self.end_line()
        self._write(text)
        keep_newest(self._shown, message_id, text)

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
