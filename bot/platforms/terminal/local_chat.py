"""Code shared by both terminal platforms: the local chat, and a surface that prints messages."""

import abc
import uuid
from datetime import UTC, datetime

from typing_extensions import override

from bot.chat.command import CommandOption, CommandSpec
from bot.chat.incoming import Address, ChatJoin, IncomingMessage, Person, WakeReason
from bot.chat.outgoing import Attachment, Limits, MessageContent, MessageSearch, OutgoingMessage
from bot.ports import Surface
from bot.runtime.in_process import BoundedDict
from bot.runtime.terminal import login_name
from bot.texts.text import marked, supported_language, translatable, translate

OWN_COMMANDS = (
    CommandSpec(
        "as", marked("write under another name"), (CommandOption("name", marked("the name")),)
    ),
    CommandSpec("quit", marked("end this chat")),
)
LIMITS = Limits(
    max_units=1_000_000,
    unit="characters",
    seconds_between_edits=0.05,
    typing_seconds=0,
    name_line_format="[{}]",
    reopens_code_blocks=False,  # printed text cannot be changed
    answers_each_message=True,
    shows_error_causes=True,
)
_MAX_KEPT_MESSAGES = 100  # whose nonces and texts are kept


class LocalChat:
    """The terminal's chat; a fresh chat has a new name, so it has no history of earlier runs."""

    def __init__(
        self, chat: str = "", locale: str | None = None, *, is_new_chat: bool = False
    ) -> None:
        self.run_id = uuid.uuid4().hex
        """A random id, which distinguishes message ids from those of earlier runs."""
        if is_new_chat:
            chat = f"{chat or 'pipe'}-{self.run_id[:12]}"
        self.address = Address("terminal", chat or "local")
        self.person = to_person(login_name())
        self.language = supported_language(locale)
        self._locale = locale
        # The settings of a named chat apply only to this run.
        self._settings_scope = f"{self.address.lane}:{self.run_id}" if chat else self.address.lane
        self._entered_line_count = 0

    def to_incoming_message(self, line: str) -> IncomingMessage:
        self._entered_line_count += 1
        return IncomingMessage(
            address=self.address,
            external_key=f"{self.run_id}:{self._entered_line_count}",
            message_id=None,
            author=self.person,
            text=line,
            at=datetime.now(UTC),
            wake=WakeReason.COMMAND if line.startswith("/") else WakeReason.DM,
            scopes=(self._settings_scope,),
            author_is_admin=True,  # this person can edit the settings file anyway
            is_private=True,
            is_age_restricted=True,  # only the operator reads this chat
            locale=self._locale,
        )

    def to_chat_join(self) -> ChatJoin:
        return ChatJoin(
            address=self.address,
            external_key=f"{self.run_id}:0",
            author=self.person,
            at=datetime.now(UTC),
            scopes=(self._settings_scope,),
            locale=self._locale,
            opens_chat=True,
            is_age_restricted=True,
        )

    def rename_person(self, name: str) -> str:
        """Rename the current person unless `name` is blank; return a notice with the new name."""
        if name.strip():
            self.person = to_person(name.strip())
            notice = translatable("Your name is now {name}.", name=self.person.name)
        else:
            notice = translatable(
                "Your name is {name}. To change it, send /as NAME.", name=self.person.name
            )
        return translate(notice, self.language)


def to_person(name: str) -> Person:
    return Person(f"terminal:{name.casefold()}", name)


class PrintingSurface(Surface):
    def __init__(self, run_id: str, language: str = "en") -> None:
        self._run_id = run_id
        self._language = language
        self._ids_by_nonce = BoundedDict[str, str](_MAX_KEPT_MESSAGES)
        self._texts = BoundedDict[str, str](_MAX_KEPT_MESSAGES)
        """Texts by message id, the newest last."""
        self._sent_message_count = 0

    @override
    def limits(self, address: Address) -> Limits:
        return LIMITS

    @override
    async def send(self, message: OutgoingMessage) -> str:
        if message.nonce in self._ids_by_nonce:
            return self._ids_by_nonce[message.nonce]
        self._sent_message_count += 1
        message_id = f"{self._run_id}:{self._sent_message_count}"
        self._show(message_id, message.content.text)
        if message.file is not None:
            self.print_plain(_render_file(message.file, self._language))
        self._ids_by_nonce[message.nonce] = message_id
        return message_id

    @override
    async def edit(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> None:
        if self._texts.get(message_id) != content.text:
            self._show(message_id, content.text)

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        """Do nothing, because printed text cannot be removed."""

    @override
    async def typing(self, address: Address) -> None:
        """Do nothing, because the user already sees that an answer is in progress."""

    @override
    async def find(self, message: OutgoingMessage, search: MessageSearch) -> str | None:
        """Return None, so that after a crash, the last answer is printed again."""
        return None

    @abc.abstractmethod
    def _show(self, message_id: str, text: str) -> None:
        """Show the text of a new or edited message, and store it in `_texts`."""

    @abc.abstractmethod
    def print_plain(self, text: str) -> None:
        """Print plain text below the newest message."""


def _render_file(file: Attachment, language: str) -> str:
    """Return a file's contents for printing; they are not saved, because they may be private."""
    end_line = translate(translatable("--- end of {name} ---", name=file.name), language)
    return f"--- {file.name} ---\n{file.text.rstrip()}\n{end_line}"
