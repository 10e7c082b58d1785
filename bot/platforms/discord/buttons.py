"""Buttons as components of a Discord message."""

import itertools
from collections.abc import Sequence
from operator import attrgetter

from bot.chat.outgoing import Button, ButtonStyle

_ROW, _BUTTON = 1, 2
_STYLES = {ButtonStyle.PRIMARY: 1, ButtonStyle.PLAIN: 2, ButtonStyle.DANGER: 4}


def to_components(buttons: Sequence[Button]) -> list[dict[str, object]]:
    """Return the rows of buttons; an edit without any removes those that are there."""
    rows = itertools.groupby(sorted(buttons, key=attrgetter("row")), attrgetter("row"))
    return [{"type": _ROW, "components": [_to_component(one) for one in row]} for _, row in rows]


def _to_component(button: Button) -> dict[str, object]:
    style = _STYLES[button.style]
    return {"type": _BUTTON, "style": style, "label": button.label, "custom_id": button.data}
