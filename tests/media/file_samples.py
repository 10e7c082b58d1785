"""Sample files like those that people send."""

import io
from pathlib import Path

from PIL import Image

LETTER = Path(__file__).with_name("letter.pdf").read_bytes()
"""A PDF of one page with a line of text: the key is under the mat."""


def picture(width: int = 40, height: int = 20, kind: str = "PNG", mode: str = "RGB") -> bytes:
    """Return a picture file in one color."""
    written = io.BytesIO()
    Image.new(mode, (width, height)).save(written, kind)
    return written.getvalue()
