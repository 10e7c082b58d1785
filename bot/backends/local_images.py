"""Images in a prompt for a model on this machine: taken out, checked, and marked in the text.

They come inside the prompt or not at all: what a link leads to is not fetched here.
"""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from bot.backends.engines import IMAGE
from bot.chat.prompt import Image, Message, Prompt
from bot.errors import BackendUnavailable
from bot.prompting.images import image_tokens
from bot.templates.pieces import Piece

_BLIND_NOTICE = "This model cannot see images; an operator has to choose another one."
_UNREADABLE_NOTICE = "This image cannot be shown to the model."
_LONGEST_TOLD = 40


def encoded(prompt: Prompt, model: str, *, sees: bool) -> list[str]:
    """The images of a prompt in base64, in order.

    Raises:
        BackendUnavailable: the model cannot see, or an image is not in the prompt itself.
    """
    images = [image for message in prompt.messages for image in message.images]
    if images and not sees:
        raise BackendUnavailable(
            f"{model} cannot see images; take them out of the preset, "
            "or set the provider's PROJECTOR_PATH",
            _BLIND_NOTICE,
        )
    return [_encoded(image) for image in images]


def marked(messages: Sequence[Message]) -> Sequence[Message]:
    """Let `IMAGE` stand in the texts for each image, and for nothing else."""
    if not any(message.images for message in messages):
        return messages
    return [replace(each, content=_marked(each), parts=()) for each in messages]


def before_images(pieces: Sequence[Piece]) -> list[Piece]:
    """What comes before the first image: only this is known token by token."""
    return list(takewhile(lambda piece: IMAGE not in piece.text, pieces))


def tokens_of_images(prompt: Prompt) -> int:
    """About what they cost; only the projector knows, and tells it afterwards."""
    return sum(image_tokens(image) for message in prompt.messages for image in message.images)


def _encoded(image: Image) -> str:
    kind, _, data = image.url.partition(";base64,")
    try:
        if not kind.startswith("data:image/"):
            raise ValueError
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise BackendUnavailable(
            f"the image {image.url[:_LONGEST_TOLD]!r} is no `data:image/...;base64,` URI; "
            "a model on this machine is shown no other",
            _UNREADABLE_NOTICE,
        ) from None
    return data


def _marked(message: Message) -> str:
    return "".join(
        IMAGE if isinstance(part, Image) else part.replace(IMAGE, "")
        for part in message.parts or (message.content,)
    )
