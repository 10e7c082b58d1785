"""Find what is to be deleted although answering is paused, ahead of what waits before it."""

from collections.abc import Sequence
from dataclasses import replace

from bot.chat.button import ButtonAction, read_button
from bot.chat.command import parse
from bot.chat.incoming import Deleted, ForgetRequested, Incoming, Pressed, Said
from bot.chat.session import InboxMessage

_DELETING_BUTTONS = {ButtonAction.FORGET, ButtonAction.KEEP, ButtonAction.DELETE}


def find_deletion(waiting: Sequence[InboxMessage]) -> InboxMessage | None:
    """Return the oldest message that deletes something, with those that it goes ahead of.

    Args:
        waiting: the unanswered messages of a conversation, oldest first.
    """
    for at, message in enumerate(waiting):
        if _deletes(message.incoming, waiting[:at]):
            return replace(message, overtaken=tuple(waiting[:at]))
    return None


def _deletes(incoming: Incoming, earlier: Sequence[InboxMessage]) -> bool:
    match incoming:
        case Deleted() | ForgetRequested():
            return True
        case Pressed() as pressed:
            button = read_button(pressed)
            return button is not None and button.action in _DELETING_BUTTONS
        case Said() as said:
            return _is_forget(said) and not _means_what_waits(said, earlier)
        case _:
            return False


def _is_forget(said: Said) -> bool:
    if said.wake is None or said.author_is_bot:
        return False
    command = parse(said.text)
    return command is not None and command.name == "forget"


def _means_what_waits(said: Said, earlier: Sequence[InboxMessage]) -> bool:
    """Return whether /forget last means a question that is still to be answered."""
    command = parse(said.text)
    is_last = command is not None and command.text.lower() == "last"
    said_before = (one.incoming for one in earlier if isinstance(one.incoming, Said))
    return is_last and any(one.author.id == said.author.id for one in said_before)
