"""Images in a prompt for a model on this machine: taken out, checked, and marked in the text.

They come inside the prompt or not at all: what a link leads to is not fetched here.
"""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import replace

from bot.backends.llama_cpp.engines.engine import IMAGE
from bot.chat.prompt import Image, Message, Prompt
from bot.errors import BackendUnavailable
from bot.prompting.text.image_tokens import image_tokens

_BLIND_NOTICE = "This model cannot see images; an operator has to choose another one."
_UNREADABLE_NOTICE = "This preset has an image that cannot be shown; an operator has to mend it."
_DROPPED_NOTICE = "This preset's template cannot be used; an operator has to mend it."
_LONGEST_TOLD = 40
_HEAD_CHARS = 16  # of base64
# All that llama.cpp reads by itself. Anything else it would try as a sound or as a film.
_KINDS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM")


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


def check_all_stand(text: str, images: Sequence[str], model: str) -> None:
    """Raise BackendUnavailable when a template has lost or repeated the mark of an image."""
    if (found := text.count(IMAGE)) != len(images):
        raise BackendUnavailable(
            f"the template for {model} writes {found} of {len(images)} images; "
            "choose another `template` in the preset",
            _DROPPED_NOTICE,
        )


def tokens_of_images(prompt: Prompt) -> int:
    """About what they cost; only the projector knows, and tells it afterwards."""
    return sum(image_tokens(image) for message in prompt.messages for image in message.images)


def _encoded(image: Image) -> str:
    kind, _, data = image.url.partition(";base64,")
    told = f"the image {image.url[:_LONGEST_TOLD]!r}"
    if not kind.startswith("data:image/") or not _is_base64(data):
        what = f"{told} is no `data:image/...;base64,` URI; write it into the preset as one"
        raise BackendUnavailable(what, _UNREADABLE_NOTICE)
    if not base64.b64decode(data[:_HEAD_CHARS]).startswith(_KINDS):
        what = f"{told} is no PNG, JPEG, GIF or BMP; convert it for a model on this machine"
        raise BackendUnavailable(what, _UNREADABLE_NOTICE)
    return data


def _is_base64(data: str) -> bool:
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _marked(message: Message) -> str:
    return "".join(
        IMAGE if isinstance(part, Image) else part.replace(IMAGE, "")
        for part in message.parts or (message.content,)
    )
