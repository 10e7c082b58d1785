"""Prepare images for local models, and check their projector files."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bot.backends.llama_cpp.engine import IMAGE_PLACEHOLDER
from bot.backends.model_files.gguf import read_header
from bot.backends.model_files.store import find_model
from bot.backends.spec import ModelFileSettings
from bot.chat.prompt import Image, Message, Prompt
from bot.errors import BackendUnavailable, SettingsError
from bot.prompting.text.tokens import estimate_image_tokens
from bot.texts.text import translatable

_NO_VISION_NOTICE = translatable(
    "This model cannot see images; the bot's operator has to choose another one."
)
_INVALID_IMAGE_NOTICE = translatable(
    "This preset has an image that cannot be used; the bot's operator has to fix it."
)
UNUSABLE_TEMPLATE_NOTICE = translatable(
    "This preset's template cannot be used; the bot's operator has to fix it."
)
_MAX_QUOTED_CHARS = 40
# The formats that llama.cpp decodes as images: PNG, JPEG, GIF, BMP. Others may be audio or video.
_IMAGE_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM")


def encode_images(prompt: Prompt, model: str, *, has_vision: bool) -> list[str]:
    images = [image for message in prompt.messages for image in message.images]
    if images and not has_vision:
        raise BackendUnavailable(
            f"{model} cannot see images; remove them from the preset, "
            "or set the provider's PROJECTOR_PATH",
            _NO_VISION_NOTICE,
        )
    return [_extract_base64(image) for image in images]


def insert_image_placeholders(messages: Sequence[Message]) -> Sequence[Message]:
    """Replace each image with an `IMAGE_PLACEHOLDER`, and remove placeholders from texts."""
    if not any(message.images for message in messages):
        return messages
    return [replace(each, content=_insert_placeholders(each), parts=()) for each in messages]


def check_placeholders(text: str, images: Sequence[str], model: str) -> None:
    """Raise `BackendUnavailable` if the template dropped or repeated an image's placeholder."""
    if (count := text.count(IMAGE_PLACEHOLDER)) != len(images):
        raise BackendUnavailable(
            f"the template for {model} puts {count} of {len(images)} images into the prompt; "
            "choose another `template` in the preset",
            UNUSABLE_TEMPLATE_NOTICE,
        )


def count_image_tokens(prompt: Prompt) -> int:
    """Estimate the tokens of all images; the exact number is known only after projection."""
    return sum(
        estimate_image_tokens(image) for message in prompt.messages for image in message.images
    )


def _extract_base64(image: Image) -> str:
    uri_prefix, _, base64_data = image.url.partition(";base64,")
    try:
        decoded_image = base64.b64decode(base64_data, validate=True)
    except ValueError:
        decoded_image = b""
    if not uri_prefix.startswith("data:image/") or not decoded_image.startswith(_IMAGE_SIGNATURES):
        raise BackendUnavailable(
            f"the image {image.url[:_MAX_QUOTED_CHARS]!r} is not a `data:image/...;base64,` URI of"
            " a PNG, JPEG, GIF, or BMP; the preset must contain it in this form",
            _INVALID_IMAGE_NOTICE,
        )
    return base64_data


def _insert_placeholders(message: Message) -> str:
    return "".join(
        IMAGE_PLACEHOLDER if isinstance(part, Image) else part.replace(IMAGE_PLACEHOLDER, "")
        for part in message.parts or (message.content,)
    )


def find_projector(model: Path, settings: ModelFileSettings, data_dir: Path) -> Path | None:
    """Return the default model's image projector, if any; raise `SettingsError` if invalid."""
    if settings.projector_path is None or model != find_model("default", settings, data_dir):
        return None
    projector = settings.projector_path.expanduser()
    check_projector(projector)
    return projector


def check_projector(projector: Path) -> None:
    if not projector.is_file():
        raise SettingsError(f"there is no projector {projector}; correct PROJECTOR_PATH")
    if not read_header(projector).get("clip.has_vision_encoder"):
        raise SettingsError(
            f"{projector} is not a projector for images; set PROJECTOR_PATH to the second file of "
            "a vision model, usually called mmproj-....gguf"
        )
