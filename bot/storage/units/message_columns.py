"""What a message says and shows, as columns of the outbox."""

import json
from typing import TypeAlias

import msgspec

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

_Button: TypeAlias = tuple[str, str, ButtonStyle, int]


class _Controls(msgspec.Struct):
    """The JSON of the column `buttons`."""

    buttons: list[_Button] = []
    menus: list[tuple[str, str, list[tuple[str, str, str, bool]]]] = []
    thread: tuple[str, str] | None = None
    thoughts: str = ""
    prompt: tuple[str, str] | None = None


_decode_controls = msgspec.json.Decoder(_Controls).decode
_decode_face = msgspec.json.Decoder(tuple[str, str | None, bool]).decode
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
    """Return what `encode_content` was given; raises what `bot.storage.decoding` translates."""
    if face is None and buttons is None:
        return MessageContent(text)
    controls = _read_controls(buttons)
    return MessageContent(
        text,
        None if face is None else Face(*_decode_face(face)),
        tuple(Button(*one) for one in controls.buttons),
        tuple(
            Menu(data, title, tuple(MenuOption(*one) for one in options))
            for data, title, options in controls.menus
        ),
        controls.thoughts,
        None if controls.prompt is None else ReplyPrompt(*controls.prompt),
    )


def decode_thread(buttons: str | None) -> AnswerThread | None:
    """Return the thread that a message is sent to; None: it is sent to the channel."""
    if buttons is None or '"thread"' not in buttons:
        return None
    thread = _read_controls(buttons).thread
    return None if thread is None else AnswerThread(*thread)


def _read_controls(buttons: str | None) -> _Controls:
    return _Controls() if buttons is None else _decode_controls(buttons)


def _encode_controls(content: MessageContent, thread: AnswerThread | None) -> str | None:
    shown: dict[str, object] = {}
    if content.buttons:
        shown["buttons"] = [_encode_button(one) for one in content.buttons]
    if content.menus:
        shown["menus"] = [_encode_menu(one) for one in content.menus]
    if thread is not None:
        shown["thread"] = [thread.first_part, make_storable(thread.title)]
    if content.thoughts:
        shown["thoughts"] = make_storable(content.thoughts)
    if content.prompt is not None:
        shown["prompt"] = [content.prompt.to, make_storable(content.prompt.hint)]
    return json.dumps(shown) if shown else None


def _encode_face(face: Face) -> str:
    return json.dumps([make_storable(face.name), face.avatar, face.is_one_of_several])


def _encode_button(button: Button) -> list[object]:
    return [make_storable(button.label), button.data, button.style, button.row]


def _encode_menu(menu: Menu) -> list[object]:
    options = [
        [make_storable(one.label), one.value, make_storable(one.description), one.is_chosen]
        for one in menu.options
    ]
    return [menu.data, make_storable(menu.title), options]
