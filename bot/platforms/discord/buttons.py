"""Menus and buttons as components of a Discord message."""

from collections.abc import Sequence

from bot.chat.outgoing import Button, ButtonStyle, Menu, MenuOption

_ROW, _BUTTON, _MENU = 1, 2, 3
_MAX_LABEL_CHARS = 100
_MAX_TITLE_CHARS = 150
_STYLES = {ButtonStyle.PRIMARY: 1, ButtonStyle.PLAIN: 2, ButtonStyle.DANGER: 4}


def to_components(buttons: Sequence[Button], menus: Sequence[Menu] = ()) -> list[dict[str, object]]:
    """Return a row for each menu, then the rows of buttons; at most five rows.

    An edit without any removes those that are there.
    """
    rows: dict[int, list[dict[str, object]]] = {}
    for button in buttons:
        rows.setdefault(button.row, []).append(_to_component(button))
    return [
        *({"type": _ROW, "components": [_to_menu(one)]} for one in menus),
        *({"type": _ROW, "components": rows[row]} for row in sorted(rows)),
    ]


def _to_component(button: Button) -> dict[str, object]:
    style = _STYLES[button.style]
    return {"type": _BUTTON, "style": style, "label": button.label, "custom_id": button.data}


def _to_menu(menu: Menu) -> dict[str, object]:
    # Discord refuses more marked options than can be chosen at once.
    marks = sum(option.is_chosen for option in menu.options) == 1
    return {
        "type": _MENU,
        "custom_id": menu.data,
        "placeholder": menu.title[:_MAX_TITLE_CHARS],
        "options": [_to_option(one, is_marked=marks and one.is_chosen) for one in menu.options],
    }


def _to_option(option: MenuOption, *, is_marked: bool) -> dict[str, object]:
    shown = {
        "label": option.label[:_MAX_LABEL_CHARS],
        "value": option.value,
        "default": is_marked,
    }
    about = option.description[:_MAX_LABEL_CHARS]
    return {**shown, "description": about} if about else shown
