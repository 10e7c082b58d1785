"""Data types for commands and buttons."""

import re
from collections.abc import Iterable
from enum import StrEnum

from bot.chat.incoming import ButtonPress, to_storable_text
from bot.value_class import value_class


@value_class
class CommandOption:
    name: str
    summary: str
    required: bool = True
    autocompletes: bool = False
    """Whether the platform suggests values while a person types."""
    choices: tuple[str, ...] = ()
    """The allowed values; empty: any value."""
    is_file: bool = False
    """Whether the option is an attached file."""
    max_form_chars: int = 0
    """The maximum length of the option's field in the command's form; 0: there is no field."""


@value_class
class CommandSpec:
    """A command or, with `actions`, a group of subcommands: `/preset use nova`."""

    name: str
    summary: str
    options: tuple[CommandOption, ...] = ()
    actions: tuple["CommandSpec", ...] = ()
    is_listed_for_admins: bool = False
    """Whether platforms list it for admins only; permissions are checked when it runs."""
    is_private: bool = False
    """Whether only the author sees replies and errors, even in groups."""
    changes_channel: bool = False
    """Whether the command affects the whole channel; everybody there then sees the reply."""
    needs_admin: bool = False
    """Whether only admins may run the command; only the author sees a refusal."""
    default_action: str = ""
    """The subcommand that runs if none is given; only for a group."""


@value_class
class MessageCommandSpec:
    """A context menu command, which works like a command typed as a reply to the message."""

    name: str
    """The label in English; translated on platforms that support translations."""
    command: str
    has_form: bool = False
    """Whether a form with the message's text asks for the argument."""


@value_class
class Command:
    """A parsed command: name "preset", text "use nova"."""

    name: str
    text: str = ""
    """The line without the name; for handlers of subcommands, also without the subcommand."""


FORM_FIELD_SEPARATOR = "\x1f"
"""Separates the fields of a form in the text of a command."""


def parse_command(text: str) -> Command | None:
    """Parse a command line, even for an unknown command; return None for other texts."""
    if not text.startswith("/") or len(text) < 2 or not text[1].isalnum():
        return None
    name, _, arguments = text[1:].partition(" ")
    return Command(name.lower(), arguments.strip())


def find_command(text: str, commands: Iterable[str]) -> str:
    """Find the command, such as "settings me", that a line begins with; return "" if none."""
    words = text[1:].lower().split() if text.startswith("/") else []
    if words[:2] == ["privacy", "edit"]:  # "privacy" stands for reading it
        return ""
    return next((one for one in commands if words[: one.count(" ") + 1] == one.split()), "")


class ButtonAction(StrEnum):
    STOP = "stop"
    RETRY = "retry"
    CONTINUE = "continue"
    VERSION = "version"
    DELETE = "delete"
    FORGET = "forget"
    """Confirm that all data of the person who pressed the button should be deleted."""
    KEEP_DATA = "keep"
    """Cancel that deletion."""
    SETTINGS = "settings"
    PRESETS = "presets"
    USE_PRESET = "use"
    RESET_PRESETS = "reset"
    OBSERVE = "observe"
    """Turn overhearing on or off: remembering messages that do not address the bot."""
    SCOPE = "scope"
    CHARACTERS = "characters"
    """Show a page of the menu for adding and removing characters."""
    TOGGLE_CHARACTER = "toggle"
    """Add or remove the character chosen from the menu."""
    ENTER_NAME = "name"
    """Use the preset whose name is entered in a form."""
    ENTER_BIO = "about"
    """Save the self-description that a person enters in a form."""
    MEMORY = "memory"
    """Show a page of a list of memories, or perform the action chosen from its menu."""
    CONFIRM_AGE = "adult"
    """Confirm that the person is an adult, then answer their question."""


ANSWERING_ACTIONS = frozenset({ButtonAction.RETRY, ButtonAction.CONTINUE, ButtonAction.CONFIRM_AGE})
"""Actions that generate an answer and therefore wait in line like a message."""
MENU_ACTIONS = frozenset(
    {
        *(ButtonAction.SETTINGS, ButtonAction.PRESETS, ButtonAction.OBSERVE, ButtonAction.SCOPE),
        *(ButtonAction.USE_PRESET, ButtonAction.RESET_PRESETS, ButtonAction.CHARACTERS),
        *(ButtonAction.TOGGLE_CHARACTER, ButtonAction.ENTER_NAME, ButtonAction.ENTER_BIO),
        ButtonAction.MEMORY,
    }
)
"""Actions of the buttons and lists in menus, each equivalent to a command."""
FORM_ACTIONS = frozenset({ButtonAction.ENTER_NAME, ButtonAction.ENTER_BIO})
"""Actions that ask for a text, in a form on platforms with forms."""

_BUTTON_DATA = re.compile(
    rf"(?P<action>{'|'.join(ButtonAction)})(?P<number>\d{{0,4}}):(?P<part>.+/\d+)"
)


@value_class
class ButtonData:
    """The data of a button, which the platform sends back when somebody presses the button."""

    action: ButtonAction
    part_name: str
    """The name of the part of the answer (`InboxMessage.part_name`)."""
    version_or_page: int = 0
    """The answer version to show, from 1, or the page of a preset menu."""


def encode_button(action: ButtonAction, part_name: str, version_or_page: int = 0) -> str:
    """Encode a button's data, without the platform and bot, which every press contains."""
    return f"{action}{version_or_page or ''}:{part_name.partition(':')[2]}"


def parse_button(press: ButtonPress) -> ButtonData | None:
    """Parse the data of a pressed button. Return None if the button is not under an answer."""
    data_match = _BUTTON_DATA.fullmatch(to_storable_text(press.data))
    if data_match is None:
        return None
    part_name = f"{press.address.source}:{data_match['part']}"
    return ButtonData(ButtonAction(data_match["action"]), part_name, int(data_match["number"] or 0))
