"""What a message says and shows, as columns of the outbox."""

import json
from collections.abc import Iterable

from bot.chat.outgoing import (
    AnswerThread,
    Button,
    ButtonStyle,
    Face,
    Menu,
    MenuOption,
    MessageContent,
    ReplyPrompt,
)
from bot.chat.storable import make_storable

NOTHING = {"text": "", "face": None, "buttons": None}
"""The columns of a row without a message, such as a deletion."""


def encode_content(
    content: MessageContent, thread: AnswerThread | None = None
) -> dict[str, str | None]:
    """Return the columns; faces, buttons and menus are JSON, NULL where there are none.

    The thread that a message is sent to, folded thoughts and whose reply it asks for stand beside
    its buttons.
    """
    face = content.face
    return {
        "text": make_storable(content.text),
        "face": None if face is None else _encode_face(face),
        "buttons": _encode_controls(content, thread),
    }


def decode_content(text: str, face: str | None, buttons: str | None) -> MessageContent:
    """Return what `encode_content` was given."""
    if face is None and buttons is None:
        return MessageContent(text)
    controls = json.loads(buttons or "[]")
    if isinstance(controls, list):  # nothing but buttons
        controls = {"buttons": controls, "menus": []}
    prompt = controls.get("prompt")
    return MessageContent(
        text,
        None if face is None else Face(*json.loads(face)),
        tuple(_decode_button(*one) for one in controls["buttons"]),
        tuple(_decode_menu(*one) for one in controls["menus"]),
        controls.get("thoughts", ""),
        None if prompt is None else ReplyPrompt(*prompt),
    )


def decode_thread(buttons: str | None) -> AnswerThread | None:
    """Return the thread that a message is sent to; None: it is sent to the channel."""
    if buttons is None or '"thread"' not in buttons:
        return None
    controls = json.loads(buttons)
    thread = controls.get("thread") if isinstance(controls, dict) else None
    return None if thread is None else AnswerThread(*thread)


def _encode_controls(content: MessageContent, thread: AnswerThread | None) -> str | None:
    buttons = [_encode_button(one) for one in content.buttons]
    others: dict[str, object] = {}
    if thread is not None:
        others["thread"] = [thread.first_part, make_storable(thread.title)]
    if content.thoughts:
        others["thoughts"] = make_storable(content.thoughts)
    if content.prompt is not None:
        others["prompt"] = [content.prompt.to, make_storable(content.prompt.hint)]
    if not content.menus and not others:
        return json.dumps(buttons) if buttons else None
    menus = [_encode_menu(one) for one in content.menus]
    return json.dumps({"buttons": buttons, "menus": menus, **others})


def _encode_face(face: Face) -> str:
    return json.dumps([make_storable(face.name), face.avatar, face.is_one_of_several])


def _encode_button(button: Button) -> list[object]:
    return [make_storable(button.label), button.data, button.style, button.row]


def _decode_button(label: str, data: str, style: str, row: int) -> Button:
    return Button(label, data, ButtonStyle(style), row)


def _encode_menu(menu: Menu) -> list[object]:
    options = [
        [make_storable(one.label), one.value, make_storable(one.description), one.is_chosen]
        for one in menu.options
    ]
    return [menu.data, make_storable(menu.title), options]


def _decode_menu(data: str, title: str, options: Iterable[tuple[str, str, str, bool]]) -> Menu:
    return Menu(data, title, tuple(MenuOption(*one) for one in options))
