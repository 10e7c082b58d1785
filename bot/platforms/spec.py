"""Types for platforms: a platform's spec, and the functions that the service provides to it."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import field
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict

from bot.chat.command import CommandSpec, MessageCommandSpec
from bot.chat.incoming import ButtonPress, IncomingMessage
from bot.chat.outgoing import Limits
from bot.chat.web_channel import WebChannel, WebMessage
from bot.ports import Clock, Intake
from bot.runtime.clock import SystemClock
from bot.texts.text import Text
from bot.value_class import value_class


class PlatformSettings(BaseModel):
    """Base class of a platform's settings; secrets must be `SecretStr`, so that logs mask them."""

    model_config = ConfigDict(extra="forbid")

    @property
    def is_configured(self) -> bool:
        """Whether the settings are complete, so that `troupe run` starts this platform."""
        return False

    @property
    def bot_account(self) -> str:
        """The bot's id on the platform, which distinguishes bots that share a database."""
        return ""


@value_class(kw_only=True)
class PlatformSpec:
    """A platform's name, settings, and the import path of its code."""

    kind: str
    """The name used in settings, addresses and user ids: TROUPE_DISCORD__TOKEN, discord:123."""
    factory: str
    """The function or class that creates the platform from its settings and a `PlatformContext`, as
    "module:name". It is imported only when the platform starts, because importing a vendor's
    library takes up to a second."""
    settings: type[PlatformSettings] | None = None
    account_setup: str | None = None
    """The subclass of `AccountSetup`, as "module:name"; None if bots need no account."""
    limits: str | None = None
    """The `Limits` of the platform's channels, as "module:name"; None if they vary, so that web
    channels cannot imitate the platform."""
    user_id_pattern: str = "[1-9][0-9]*"
    """A regular expression for a person's id on this platform, as in TROUPE_ADMINS."""
    chat_pattern: str = ".+"
    """A regular expression for a chat's id, or for "chat:topic" on a platform with topics."""
    commands: Sequence[CommandSpec] = ()
    uses_terminal: bool = False
    """Whether the chat is in the terminal that Troupe was started from. `troupe chat` starts such a
    platform, as does `troupe run` if no other platform is configured. Logs then go to a file.
    """
    is_companion: bool = False
    """Whether the platform runs whenever the web console runs, until the other platforms stop."""


@value_class
class EditableText:
    """A form with one or more texts to edit, or a refusal to open the form."""

    title: str = ""
    label: str = ""
    text: str = ""
    refusal: str = ""
    """A private notice to show instead of the form; empty if the form may be opened."""
    too_long_notice: str = ""
    """A private notice to show if the text is too long for the platform's forms."""
    fields: tuple["EditableText", ...] = ()
    """The form's fields, each titled with its name; empty for a form with one field."""
    max_chars: int = 0
    """The maximum length of the text, or 0 for the limit of the platform's forms."""
    is_required: bool = True


_T = TypeVar("_T")


def _make_stub(value: _T) -> Callable[..., Awaitable[_T]]:
    """Return an async function that returns `value`, as the default for a missing service."""

    async def return_value(*_arguments: object) -> _T:
        return value

    return return_value


class WebChannels(Protocol):
    """The interface of `SqlWebChannels`; settings use it to avoid importing a database library."""

    async def all(self) -> Sequence[WebChannel]: ...
    async def add(self, channel_id: str, messages: Sequence[WebMessage]) -> None: ...
    async def find(self, channel_id: str, message_id: str) -> WebMessage | None: ...
    async def replace(self, channel_id: str, message: WebMessage) -> bool: ...
    async def list_changed_messages(
        self, channel_id: str, after: int, limit: int
    ) -> Sequence[WebMessage]: ...
    def on_change(self, handler: Callable[[Sequence[str]], None]) -> Callable[[], None]: ...


TakeLease: TypeAlias = Callable[[str, float], Awaitable[bool]]
"""Takes or renews the lease of a role for some seconds; returns False if another process has it."""


@value_class(kw_only=True)
class PlatformContext:
    """The values and functions of the service that a platform can use."""

    commands: Sequence[CommandSpec] = ()
    command_names: Collection[str] = ()
    """The names of all commands, including those that no menu lists."""
    message_commands: Sequence[MessageCommandSpec] = ()
    """Commands for a message's menu, on platforms that have such menus."""
    find_press_form: Callable[[ButtonPress], Awaitable[EditableText | None]] = _make_stub(None)
    """Returns the form that a button opens, or None if it opens none. The platform passes the
    submitted text to the intake as the value of another button press."""
    find_command_form: Callable[[IncomingMessage], Awaitable[EditableText]] = _make_stub(
        EditableText()
    )
    """Returns the form to open for a command that was called without a file, or on a message."""
    suggest_presets: Callable[[str], Sequence[str]] = lambda _prefix: ()
    """Returns the names of presets that start with some text."""
    suggest: Callable[[IncomingMessage, str], Awaitable[Sequence[str]]] = _make_stub(())
    """Returns the values that complete the text typed for a command's option."""
    wait_until_idle: Callable[[], Awaitable[None]] = _make_stub(None)
    """Waits until all received messages are answered and all answers are sent."""
    find_press_refusal: Callable[[ButtonPress], Awaitable[str | None]] = _make_stub(None)
    """Returns a private notice if a person may not press a button, or None if they may."""
    is_refused: Callable[[IncomingMessage], Awaitable[bool]] = _make_stub(False)
    """Returns whether a command's author may not use the bot in the channel. If so, the response
    should be private."""
    find_limits: Callable[[str], Limits | None] = lambda _kind: None
    """Returns the limits of another platform's channels, or None if they are unknown."""
    web_channels: WebChannels | None = None
    clock: Clock = field(default_factory=SystemClock)
    cursor_store: Intake | None = None
    """Stores cursors, even in a process that receives no messages; if None, none are stored."""
    data_dir: Path | None = None
    """A folder for the platform's own files; None if there is none."""
    chat: str = ""
    """The chat that a terminal opens; empty for the default chat."""
    locale: str | None = None
    """The locale of the person who started the service, such as "zh_CN.UTF-8"."""
    answerable_seconds: float = 300
    """The age in seconds beyond which a message received after an outage is not answered."""
    take_lease: TakeLease | None = None
    """Takes leases that all processes share; None if this is the only process."""
    bot_id: str = ""
    """The bot's id in addresses; empty for the platform's first bot in this database."""


@value_class
class BotAccount:
    """A bot's account, which was looked up with its token."""

    name: str
    link: str
    """A URL that opens a chat with the bot, or invites the bot to a server."""
    link_title: Text
    """The purpose of the link, as in "open a chat with it"."""
    notes: tuple[Text, ...] = ()
    """Restrictions of the account, and where to change them."""
    can_receive: bool = True
    """Whether the platform accepts the bot's connections; if not, `notes` contains the reason."""


@value_class
class CodeInstructions:
    """Instructions for sending a code to the bot."""

    text: Text
    link: str | None = None
    """A URL that sends the code when it is opened, or None."""


class AccountSetup(Protocol):
    """Checks a bot's token during setup, and finds the first admin. Call `close` at the end."""

    token_source: Text
    """Where people get a token, worded as the end of a sentence."""

    async def inspect(self) -> BotAccount:
        """Return the token's account; raises `PlatformFatal` if the token is rejected."""

    def code_instructions(self, account: BotAccount, code: str) -> CodeInstructions:
        """Return instructions for the first admin to send a code to the bot."""

    async def wait_for_code(self, code: str) -> str:
        """Wait for the code, and return its sender's id; leave other messages unread."""

    async def close(self) -> None: ...
