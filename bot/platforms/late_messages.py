"""Mark messages that a platform delivered too late for an answer."""

from dataclasses import replace

from bot.chat.incoming import Deleted, Edited, ForgetRequested, Incoming, Joined, Pressed, Said


def mark_late(incoming: Incoming, oldest: float) -> Incoming:
    """Mark a message or an edit from before `oldest`, in Unix seconds, by the platform's clock."""
    match incoming:
        case Said(at=at) if at.timestamp() < oldest:
            return replace(incoming, is_late=True)
        case Edited(at=at, said=said) if at.timestamp() < oldest:
            return replace(incoming, said=replace(said, is_late=True))
        case Said() | Edited() | Deleted() | Pressed() | Joined() | ForgetRequested():
            return incoming
