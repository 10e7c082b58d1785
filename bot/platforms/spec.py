"""The spec of a platform package, and what the service provides to platforms."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import field
from pathlib import Path
from typing import Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict

from bot.chat.command import CommandSpec, MessageCommandSpec
from bot.chat.incoming import IncomingMessage, Pressed
from bot.chat.outgoing import Limits
from bot.chat.web_channel import WebChannel, WebMessage
from bot.ports import Clock, Intake
from bot.runtime.clock import SystemClock
from bot.texts.text import Text
from bot.value_class import value_class


class PlatformSettings(BaseModel):
    """A platform's settings; unknown names are errors.

    Every secret must be a `SecretStr`, so that logs and receipts mask it.
    """

    model_config = ConfigDict(extra="forbid")

    @property
    def is_configured(self) -> bool:
        """Whether `troupe run` starts this platform."""
        return False

    @property
    def bot_account(self) -> str:
        """The configured bot's id on the platform; distinguishes bots that share a database."""
        return ""


@value_class(kw_only=True)
class PlatformSpec:
    """A platform's name, settings, and the import path of its code."""

    kind: str
    """The name in settings, addresses and user ids: TROUPE_DISCORD__TOKEN, discord:123."""
    factory: str
    """What makes it from its settings and a `PlatformContext`, as "module:name"; imported when the
    platform is started: a vendor's library takes up to a second."""

    settings: type[PlatformSettings] | None = None
    account_setup: str | None = None
    """The subclass of `AccountSetup`, called with the settings; None for bots without a token."""
    limits: str | None = None
    """The limits of its channels, as "module:name"; None: web channels cannot imitate it."""
    user_id_pattern: str = "[1-9][0-9]*"
    """A regular expression for the id of a person on this platform, as in TROUPE_ADMINS."""
    chat_pattern: str = ".+"
    """A regular expression for a chat, with the topic behind a colon where there are topics."""
    commands: Sequence[CommandSpec] = ()
    uses_terminal: bool = False
    """Whether the chat is in the terminal that Troupe was started from: `troupe chat`, and
    `troupe run` if no other platform is configured. Logs and notices then go to a file."""

    is_companion: bool = False
    """Whether it runs wherever the console is served, and ends with the other platforms."""


@value_class
class EditableText:
    """A text to edit in a form, or a refusal."""

    title: str = ""
    label: str = ""
    text: str = ""
    refusal: str = ""
    """The notice that the person gets privately instead."""
    too_long: str = ""
    """The same, if the text is too long for the platform's forms."""
    fields: tuple["EditableText", ...] = ()
    """Several texts in one form, each with a title that names it; else there is one."""
    most_chars: int = 0
    """0: as many as the platform's forms allow."""
    is_required: bool = True


async def _edit_nothing(_said: IncomingMessage) -> EditableText:
    return EditableText()


async def _refuse_nobody(_said: IncomingMessage) -> bool:
    return False


async def _suggest_nothing(_said: IncomingMessage, _typed: str) -> Sequence[str]:
    return ()


async def _do_nothing(*_given: object) -> None:
    return


class WebChannels(Protocol):
    """The interface of `SqlWebChannels`, whose database library settings must not import."""

    async def all(self) -> Sequence[WebChannel]: ...
    async def add(self, channel_id: str, messages: Sequence[WebMessage]) -> None: ...
    async def find(self, channel_id: str, message_id: str) -> WebMessage | None: ...
    async def replace(self, channel_id: str, message: WebMessage) -> bool: ...
    async def changed(self, channel_id: str, after: int, limit: int) -> Sequence[WebMessage]: ...
    def on_change(self, handler: Callable[[Sequence[str]], None]) -> Callable[[], None]: ...


TakeLease: TypeAlias = Callable[[str, float], Awaitable[bool]]
"""Takes or renews the lease of a role for some seconds; False: another process holds it."""


@value_class(kw_only=True)
class PlatformContext:
    """The service's functions that a platform may call."""

    commands: Sequence[CommandSpec] = ()
    command_names: Collection[str] = ()
    """Their names, and those of commands that no menu lists."""
    message_commands: Sequence[MessageCommandSpec] = ()
    """The commands in the menu of a message, where the platform has such menus."""
    text_to_edit: Callable[[IncomingMessage], Awaitable[EditableText]] = _edit_nothing
    """Return the text of the message that a command was called on, to be changed in a form."""
    press_form: Callable[[Pressed], Awaitable[EditableText | None]] = _do_nothing
    """Return the form that a press opens, where the platform has forms; None: it opens none. What
    is entered comes back as another press with it as its value."""
    command_form: Callable[[IncomingMessage], Awaitable[EditableText]] = _edit_nothing
    """Return the form of a command that is called without a file, where the platform has forms."""
    complete_preset: Callable[[str], Sequence[str]] = lambda _typed: ()
    suggest: Callable[[IncomingMessage, str], Awaitable[Sequence[str]]] = _suggest_nothing
    """Return the names that complete what is typed for a command."""
    wait_until_idle: Callable[[], Awaitable[None]] = _do_nothing
    """Wait until every received message was answered and every answer was sent."""
    press_refusal: Callable[[Pressed], Awaitable[str | None]] = _do_nothing
    """Return a private notice instead of storing the press; None: store it."""
    is_refused: Callable[[IncomingMessage], Awaitable[bool]] = _refuse_nobody
    """Return whether a command's author may not use the bot there, which they alone should see."""
    limits_of: Callable[[str], Limits | None] = lambda _kind: None
    """Return the limits of another platform's channels; None: it is not known."""
    web_channels: WebChannels | None = None
    clock: Clock = field(default_factory=SystemClock)
    cursors: Intake | None = None
    """Where it keeps cursors, also in a process that receives nothing; None: nowhere."""
    data_dir: Path | None = None
    """Where it may keep files of its own; None: nowhere."""
    chat: str = ""
    """The chat that a terminal opens; empty: the usual one."""
    locale: str | None = None
    """The locale of the person who started the service, such as "zh_CN.UTF-8"."""
    answerable_seconds: float = 300
    take_lease: TakeLease | None = None
    """None: there is no other process."""
    bot_id: str = ""
    """Part of its addresses; empty for the platform's first bot on this database."""


@value_class
class BotAccount:
    """A token's bot account."""

    name: str
    link: str
    """The address that opens a chat with it, or invites it to a server."""
    link_title: Text
    """What the address is for: "open a chat with it"."""
    notes: tuple[Text, ...] = ()
    """Restrictions, and where to change them."""
    can_receive: bool = True
    """False: the platform ends its connections; `notes` say why."""


@value_class
class CodeRequest:
    """How to send a code to the bot."""

    words: Text
    link: str | None = None
    """The address that does it at once."""


class AccountSetup(Protocol):
    """A bot account during setup; close it when done."""

    where_from: Text
    """Where people get a token, as the end of a sentence."""

    async def inspect(self) -> BotAccount:
        """Return the token's account; raises `PlatformFatal` if the token is rejected."""

    def request_code(self, account: BotAccount, code: str) -> CodeRequest:
        """Return how the first admin should send the code."""

    async def wait_for_code(self, code: str) -> str:
        """Return the code's sender; other messages stay unread; raises `PlatformError`."""

    async def close(self) -> None: ...
