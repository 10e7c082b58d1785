"""Menus and buttons as an inline keyboard under a Telegram message."""

import itertools
from collections.abc import Iterator, Sequence
from operator import attrgetter

from bot.chat.outgoing import Button, Menu, ReplyPrompt

_VALUE = "="
"""Stands between the data of a menu and what is chosen from it."""
_CHOSEN = "✓ "
_MAX_HINT_CHARS = 64


def to_keyboard(buttons: Sequence[Button], menus: Sequence[Menu] = ()) -> dict[str, object] | None:
    """Return the keyboard: a row for each option of a menu, then the rows of buttons.

    Without one an edit removes the one that is there.
    """
    if not (buttons or menus):
        return None
    rows = itertools.groupby(sorted(buttons, key=attrgetter("row")), attrgetter("row"))
    return {
        "inline_keyboard": [
            *(row for menu in menus for row in _option_rows(menu)),
            *([_button(one.label, one.data) for one in row] for _, row in rows),
        ]
    }


def to_forced_reply(prompt: ReplyPrompt) -> dict[str, object]:
    """Return the markup that opens a reply in the client of one person; edits refuse it."""
    hint = {"input_field_placeholder": prompt.hint[:_MAX_HINT_CHARS]} if prompt.hint else {}
    return {"force_reply": True, "selective": True, **hint}


def read_callback_data(data: str) -> tuple[str, tuple[str, ...]]:
    """Return the data of the button or menu, and what was chosen from the menu."""
    known, is_menu, value = data.partition(_VALUE)
    return known, (value,) if is_menu else ()


def _option_rows(menu: Menu) -> Iterator[list[dict[str, str]]]:
    for option in menu.options:
        label = f"{_CHOSEN}{option.label}" if option.is_chosen else option.label
        yield [_button(label, f"{menu.data}{_VALUE}{option.value}")]


def _button(label: str, data: str) -> dict[str, str]:
    return {"text": label, "callback_data": data}
