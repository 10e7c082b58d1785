"""Print messages on the screen of an interactive chat, each growing above the prompt."""

from dataclasses import replace

from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Limits, MessageContent, OutgoingMessage
from bot.errors import Refused
from bot.platforms.terminal.chat_screen import ChatScreen
from bot.platforms.terminal.growing_message import GrowingMessage
from bot.platforms.terminal.printing_surface import (
    LIMITS,
    PrintingSurface,
    keep_newest,
    printed_file,
)
from bot.platforms.terminal.text_renderer import TextRenderer
from bot.runtime.control_characters import strip_control_characters

_LIMITS = replace(LIMITS, names_only_speaker=True, seconds_between_edits=0.1)


class ScreenSurface(PrintingSurface):
    """Shows the newest message while it grows; what was printed cannot be changed.

    Args:
        screen: where they are shown.
        run: makes ids differ from those of earlier runs.
        language: of the surface's own texts.
    """

    def __init__(self, screen: ChatScreen, run: str, language: str = "en") -> None:
        super().__init__(run, language)
        self._screen = screen
        self._renderer = TextRenderer(lambda: screen.columns)
        self._newest: GrowingMessage | None = None
        self._newest_id = ""
        self._texts: dict[str, str] = {}
        """The text of each message, as far as it was printed."""

    @override
    def limits(self, address: Address) -> Limits:
        return _LIMITS

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
        if message_id == self._newest_id and self._newest is not None:
            if self._newest.update(strip_control_characters(text)):
                self._texts[message_id] = text
                self._show()
                return
        elif self._texts.get(message_id) == text:
            return
        self._begin(message_id, text)

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        """Take back what was not printed yet; printed text stays."""
        if message_id == self._newest_id and self._newest is not None:
            self._newest = None
            self._screen.show_growing(())

    def end_message(self) -> None:
        """Print the rest of the newest message: it is complete."""
        if self._newest is None:
            return
        rest, self._newest = self._newest.take_rest(), None
        self._screen.show_growing(())
        self._print("\n".join([*rest, ""]))

    def note(self, text: str) -> None:
        """Print a notice of the terminal's own."""
        self.end_message()
        self._print(self._renderer.plain(strip_control_characters(text), "dim"))

    def print_question(self, name: str, text: str) -> None:
        """Print what a person has entered."""
        self.end_message()
        lines = strip_control_characters(f"{name}> {text}")
        self._print(self._renderer.plain(lines, "green"))

    @override
    def _print_message(self, message_id: str, message: OutgoingMessage) -> None:
        self._begin(message_id, message.text)
        if message.file is not None:
            self.end_message()
            file = printed_file(message.file, self._language)
            self._print(self._renderer.plain(strip_control_characters(file)))

    def _begin(self, message_id: str, text: str) -> None:
        self.end_message()
        self._newest, self._newest_id = GrowingMessage(self._renderer), message_id
        self._newest.update(strip_control_characters(text))
        keep_newest(self._texts, message_id, text)
        self._show()

    def _show(self) -> None:
        if self._newest is None:
            return
        final = self._newest.take_final()
        self._screen.show_growing(self._newest.growing(self._screen.capacity))
        if final:
            self._print("\n".join(final))

    def _print(self, text: str) -> None:
        try:
            self._screen.print(text)
        except OSError as error:  # the terminal was closed
            raise Refused(f"the output cannot be written: {error.strerror}") from None
