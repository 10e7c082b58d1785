"""The pinned messages of a preset, which begin every conversation: texts and images."""

import base64
import binascii
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StrictInt,
    field_validator,
    model_validator,
)

from bot.chat.prompt import Role
from bot.texts.text import translatable

_BASE64_PREFIXES = {"iVBORw": "png", "/9j/": "jpeg", "R0lGOD": "gif", "UklGR": "webp"}
_URL_PREFIXES = ("http://", "https://", "data:image/")


def lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _part_type(value: object) -> object:
    lowered = lower(value)
    return "image" if lowered in {"image_url", "imageurl"} else lowered


class StrictModel(BaseModel):
    """A frozen part of a preset, in which an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


_NO_IMAGE = translatable("an image must be a link, a data:image/ URI or base64")
_EMPTY_IMAGE = translatable("an image must be a link, a data:image/ URI or base64, not empty")


class ContentPart(StrictModel):
    """A text, or an image as a link, a `data:` URI or bare base64."""

    type: Annotated[Literal["text", "image"], BeforeValidator(_part_type)]
    text: str
    detail: Annotated[Literal["auto", "high", "low"] | None, BeforeValidator(lower)] = None

    @property
    def image_url(self) -> str:
        """The image as an API takes it: a link or a `data:` URI."""
        if self.text.startswith(_URL_PREFIXES):
            return self.text
        kinds = (kind for prefix, kind in _BASE64_PREFIXES.items() if self.text.startswith(prefix))
        kind = next(kinds, "png")
        return f"data:image/{kind};base64,{self.text}"

    @model_validator(mode="after")
    def _is_an_image(self) -> Self:
        if self.type == "image" and not self.text.startswith(_URL_PREFIXES):
            try:
                base64.b64decode(self.text, validate=True)
            except binascii.Error:
                raise ValueError(_NO_IMAGE) from None
            if not self.text:
                raise ValueError(_EMPTY_IMAGE)
        return self


class PresetMessage(StrictModel):
    """A message that begins every conversation. A bare string is one text part."""

    role: Annotated[Role, BeforeValidator(lower)]
    content: tuple[ContentPart, ...]
    time: StrictInt | None = None
    """Unix seconds."""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if part.type == "text")

    @field_validator("content", mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        return [{"type": "text", "text": value}] if isinstance(value, str) else value
