"""What the two terminals share as surfaces: messages are printed once, and stay."""

import abc
from collections.abc import Set

from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Attachment, Limits, OutgoingMessage
from bot.ports import Surface
from bot.texts.text import translatable, translate

LIMITS = Limits(
    max_units=1_000_000,
    unit="characters",
    seconds_between_edits=0.05,
    typing_seconds=0,
    speaker_line="[{}]",
    closes_code_blocks=False,  # what was printed cannot be changed
    answers_each_message=True,
    shows_causes=True,
)
_MAX_KEPT = 100  # messages whose nonce or text is kept


class PrintingSurface(Surface):
    """Prints each message once within a run.

    Args:
        run: makes ids differ from those of earlier runs.
        language: of the surface's own texts.
    """

    def __init__(self, run: str, language: str = "en") -> None:
        self._run = run
        self._language = language
        self._by_nonce: dict[str, str] = {}
        self._sent = 0

    @override
    def limits(self, address: Address) -> Limits:
        return LIMITS

    @override
    async def send(self, message: OutgoingMessage) -> str:
        if message.nonce in self._by_nonce:
            return self._by_nonce[message.nonce]
        self._sent += 1
        message_id = f"{self._run}:{self._sent}"
        self._print_message(message_id, message)
        keep_newest(self._by_nonce, message.nonce, message_id)
        return message_id

    @override
    async def typing(self, address: Address) -> None:
        """Do nothing: the person sees that an answer is being made."""

    @override
    async def find(
        self,
        message: OutgoingMessage,
        *,
        after: str | None,
        known: Set[str],
        duplicate_of: str | None = None,
    ) -> str | None:
        """Return None: after a crash the last answer is printed again."""
        return None

    @abc.abstractmethod
    def _print_message(self, message_id: str, message: OutgoingMessage) -> None:
        """Print a new message, and its file."""


def printed_file(file: Attachment, language: str) -> str:
    """Print a file after its text: people want to read it, and no private file is left behind."""
    end = translate(translatable("--- end of {name} ---", name=file.name), language)
    return f"--- {file.name} ---\n{file.text.rstrip()}\n{end}"


def keep_newest(kept: dict[str, str], key: str, value: str) -> None:
    """Add an entry as the newest; drop the oldest of more than 100."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > _MAX_KEPT:
        del kept[next(iter(kept))]
