"""A child process with limited resources that decodes an untrusted picture or PDF.

It reads the file from stdin and writes a JPEG or text to stdout. If it cannot read the file, its
exit code is `UNREADABLE_EXIT_CODE`; if it exceeds its memory or CPU limit, the kernel kills it.
"""

import io
import sys
from collections.abc import Callable, Mapping

from PIL import Image, ImageOps, WebPImagePlugin
from pypdf import PdfReader

from bot.runtime.operating_system import limit_process

UNREADABLE_EXIT_CODE = 3
MAX_TEXT_CHARS = 100 * 1024
_MAX_MEMORY_BYTES = 1024 * 1024 * 1024
_MAX_CPU_SECONDS = 10
_MAX_PIXELS = 50_000_000
_MAX_SIDE_PIXELS = 1568  # providers shrink larger pictures anyway
_JPEG_QUALITY = 85
_FACE_SIZE = (128, 128)
_MAX_PAGES = 100
_MAX_OPEN_PDF_FILES = 64
_PDF_TRAILER = b"\nstartxref\n0\n%%EOF\n"
_PICTURE_FORMATS = ("PNG", "JPEG", "GIF", WebPImagePlugin.WebPImageFile.format, "BMP")


def main() -> None:
    kind = sys.argv[1]
    convert = CONVERSIONS[kind]
    Image.preinit()  # imports the decoders now, because files cannot be opened later
    # pypdf imports modules when a file needs them; picture decoders are native code.
    max_open_files = 3 if kind == "picture" else _MAX_OPEN_PDF_FILES
    limit_process(_MAX_MEMORY_BYTES, max_open_files, _MAX_CPU_SECONDS)
    try:
        converted_data = convert(sys.stdin.buffer.read())
    except Exception:  # noqa: BLE001 # a hostile file can cause any exception in the libraries
        sys.exit(UNREADABLE_EXIT_CODE)
    sys.stdout.buffer.write(converted_data)


def to_jpeg(data: bytes) -> bytes:
    """Return the first frame of a picture as an upright JPEG that is small enough for models."""
    with Image.open(io.BytesIO(data), formats=_PICTURE_FORMATS) as source_picture:
        width, height = source_picture.size
        if width * height > _MAX_PIXELS:
            raise ValueError(f"{width} x {height} pixels are too many")
        source_picture.draft("RGB", (_MAX_SIDE_PIXELS, _MAX_SIDE_PIXELS))
        source_picture.load()
        picture = ImageOps.exif_transpose(source_picture)
    picture.thumbnail((_MAX_SIDE_PIXELS, _MAX_SIDE_PIXELS))
    output = io.BytesIO()
    _flatten_on_white(picture).save(output, "JPEG", quality=_JPEG_QUALITY)
    return output.getvalue()


def crop_face(png: bytes) -> bytes:
    """Crop a portrait to a small square around its upper middle; return it as PNG."""
    with Image.open(io.BytesIO(png), formats=("PNG",)) as portrait:
        width, height = portrait.size
        if width * height > _MAX_PIXELS:
            raise ValueError(f"{width} x {height} pixels are too many")
        face_picture = ImageOps.fit(portrait.convert("RGBA"), _FACE_SIZE, centering=(0.5, 0.2))
    output = io.BytesIO()
    face_picture.save(output, "PNG")
    return output.getvalue()


def _flatten_on_white(picture: Image.Image) -> Image.Image:
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    rgba_picture = picture.convert("RGBA")
    white_background = Image.new("RGBA", rgba_picture.size, "white")
    return Image.alpha_composite(white_background, rgba_picture).convert("RGB")


def extract_pdf_text(data: bytes) -> bytes:
    """Return the text of a PDF's first pages as UTF-8, even if the file is truncated."""
    missing_trailer = b"" if b"startxref" in data else _PDF_TRAILER
    pdf_reader = PdfReader(io.BytesIO(data + missing_trailer))
    page_texts: list[str] = []
    for page in pdf_reader.pages[:_MAX_PAGES]:
        page_texts.append(page.extract_text())
        if sum(map(len, page_texts)) > MAX_TEXT_CHARS:
            break
    return "\n\n".join(page_texts)[: MAX_TEXT_CHARS + 1].encode(errors="replace")


CONVERSIONS: Mapping[str, Callable[[bytes], bytes]] = {"picture": to_jpeg, "pdf": extract_pdf_text}


if __name__ == "__main__":
    main()
