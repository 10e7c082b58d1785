"""Data types for commands and buttons."""

import re
from enum import StrEnum

from bot.chat.incoming import Pressed, to_storable_text
from bot.value_class import value_class


@value_class
class CommandOption:
    name: str
    summary: str
    required: bool = True
    completes: bool = False
    """Whether the platform may ask for suggestions while a person types."""
    choices: tuple[str, ...] = ()
    """The only values that are allowed; empty: any."""
    is_file: bool = False
    """Whether the option is an attached file."""
    form_chars: int = 0
    """The most characters in the form that opens if no file is attached; 0: not in the form."""


@value_class
class CommandSpec:
    """A command or, with `actions`, a group of subcommands: `/preset use nova`."""

    name: str
    summary: str
    options: tuple[CommandOption, ...] = ()
    actions: tuple["CommandSpec", ...] = ()
    is_for_admins: bool = False
    """Whether platforms offer it to admins first; who may do what is checked when it runs."""
    is_private: bool = False
    """Whether replies and errors go to the author alone, even in groups."""
    changes_channel: bool = False
    """Whether it changes something for everybody in the channel; then everybody reads the reply."""
    needs_admin: bool = False
    """Whether only admins may run it; a refusal is shown to the author alone."""
    default_action: str = ""
    """The action of a group that is called without one."""

    @property
    def form(self) -> tuple[CommandOption, ...]:
        """The fields of the form that platforms open for it, if they have forms."""
        return tuple(one for one in self.options if one.form_chars)


@value_class
class MessageCommandSpec:
    """A command in a message's context menu; it acts like a command that replies to the message."""

    name: str
    """What people read there; in English, and translated where the platform can."""
    command: str
    has_form: bool = False
    """Whether a form asks for the argument, with the text of the message in it."""


@value_class
class Command:
    """A parsed command: name "preset", text "use nova"."""

    name: str
    text: str = ""
    """The rest of the line. Handlers of actions get the rest after the action."""


FIELD_END = "\x1f"
"""Separates the fields of a form in the text of a command."""


def parse_command(text: str) -> Command | None:
    """Parse a line such as `/preset use nova`, known or not; None if it is not a command."""
    if not text.startswith("/") or len(text) < 2 or not text[1].isalnum():
        return None
    name, _, rest = text[1:].partition(" ")
    return Command(name.lower(), rest.strip())


class ButtonAction(StrEnum):
    STOP = "stop"
    RETRY = "retry"
    CONTINUE = "continue"
    VERSION = "version"
    DELETE = "delete"
    FORGET = "forget"
    """Yes, forget the person who asked for it."""
    KEEP = "keep"
    """No, forget nothing."""
    SETTINGS = "settings"
    PRESETS = "presets"
    USE = "use"
    RESET = "reset"
    OBSERVE = "observe"
    """Remember what people say to each other, or not, as chosen from the menu."""
    SCOPE = "scope"
    CHARACTERS = "characters"
    """Show a page of the menu that adds and removes single characters."""
    TOGGLE = "toggle"
    """Add the character that is chosen from the menu, or remove it."""
    NAME = "name"
    """Let the preset answer whose name is entered into a form."""
    ABOUT = "about"
    """Keep how the person describes themselves in a form."""
    ADULT = "adult"
    """Confirm that the person is an adult, and answer their question."""


ANSWERING_ACTIONS = frozenset({ButtonAction.RETRY, ButtonAction.CONTINUE, ButtonAction.ADULT})
"""What has a question answered: it takes a place among the answers, as a message does."""
MENU_ACTIONS = frozenset(
    {
        *(ButtonAction.SETTINGS, ButtonAction.PRESETS, ButtonAction.USE, ButtonAction.RESET),
        *(ButtonAction.OBSERVE, ButtonAction.SCOPE, ButtonAction.CHARACTERS),
        *(ButtonAction.TOGGLE, ButtonAction.NAME, ButtonAction.ABOUT),
    }
)
"""What the buttons and lists of menus do: the same as a command."""
FORM_ACTIONS = frozenset({ButtonAction.NAME, ButtonAction.ABOUT})
"""The actions that ask for a text, in a form where the platform has forms."""

_DATA = re.compile(rf"(?P<action>{'|'.join(ButtonAction)})(?P<number>\d{{0,4}}):(?P<part>.+/\d+)")


@value_class
class ButtonData:
    """A button's data, which its press returns."""

    action: ButtonAction
    part: str
    """The name of the part of the answer (`InboxMessage.part_name`)."""
    number: int = 0
    """The version to show, from 1, or the page of a menu of presets."""


def encode_button(action: ButtonAction, part: str, number: int = 0) -> str:
    """Encode a `ButtonData` as text, omitting the bot, which every press identifies."""
    return f"{action}{number or ''}:{part.partition(':')[2]}"


def parse_button(pressed: Pressed) -> ButtonData | None:
    """Return the pressed button's data; None for buttons that are not under an answer."""
    found = _DATA.fullmatch(to_storable_text(pressed.data))
    if found is None:
        return None
    part = f"{pressed.address.source}:{found['part']}"
    return ButtonData(ButtonAction(found["action"]), part, int(found["number"] or 0))
