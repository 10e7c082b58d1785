"""What a message says and shows, as columns of the outbox."""

import json

from bot.chat.outgoing import Button, ButtonStyle, Face, MessageContent
from bot.chat.storable import make_storable

NOTHING = {"text": "", "face": None, "buttons": None}
"""The columns of a row without a message, such as a deletion."""


def encode_content(content: MessageContent) -> dict[str, str | None]:
    """Return the columns; faces and buttons are JSON, NULL where there are none."""
    face, buttons = content.face, content.buttons
    return {
        "text": make_storable(content.text),
        "face": None if face is None else _encode_face(face),
        "buttons": json.dumps([_encode_button(one) for one in buttons]) if buttons else None,
    }


def decode_content(text: str, face: str | None, buttons: str | None) -> MessageContent:
    """Return what `encode_content` was given."""
    if face is None and buttons is None:
        return MessageContent(text)
    return MessageContent(
        text,
        None if face is None else Face(*json.loads(face)),
        tuple(_decode_button(*one) for one in json.loads(buttons or "[]")),
    )


def _encode_face(face: Face) -> str:
    return json.dumps([make_storable(face.name), face.avatar, face.is_one_of_several])


def _encode_button(button: Button) -> list[object]:
    return [make_storable(button.label), button.data, button.style, button.row]


def _decode_button(label: str, data: str, style: str, row: int) -> Button:
    return Button(label, data, ButtonStyle(style), row)
