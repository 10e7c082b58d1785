"""Image tokens: OpenAI's examples, and files of every format."""

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.chat.prompt import Image
from bot.prompting.text.tokens import estimate_image_tokens, read_image_size


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height)


def jpeg(width: int, height: int) -> bytes:
    preview = b"\xff\xe1" + struct.pack(">H", 3002) + b"\x00" * 3000
    return (
        b"\xff\xd8" + preview + b"\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width) + bytes(9)
    )


def uri(data: bytes, kind: str = "png") -> Image:
    return Image(f"data:image/{kind};base64,{base64.b64encode(data).decode()}")


@pytest.mark.parametrize(
    ("size", "tokens"), [((1024, 1024), 765), ((2048, 4096), 1105), ((10, 10), 255)]
)
def test_token_counts_match_openais_documentation(size: tuple[int, int], tokens: int) -> None:
    assert estimate_image_tokens(uri(png(*size))) == tokens


def test_low_detail_image_costs_a_constant_number_of_tokens() -> None:
    assert estimate_image_tokens(Image("https://x/y.png", "low")) == 85


def test_linked_image_counts_as_the_largest_size() -> None:
    assert estimate_image_tokens(Image("https://x/y.png")) >= estimate_image_tokens(
        uri(png(2048, 4096))
    )


@pytest.mark.parametrize(
    "image",
    [uri(png(640, 480)), uri(jpeg(640, 480)), uri(b"GIF89a" + struct.pack("<HH", 640, 480))],
)
def test_image_size_is_read_from_the_file_header(image: Image) -> None:
    assert read_image_size(image) == (640, 480)


@given(st.binary(max_size=200), st.sampled_from([b"", b"\x89PNG", b"GIF8", b"\xff\xd8\xff\xc0"]))
def test_any_image_data_gets_a_token_count(data: bytes, head: bytes) -> None:
    assert 85 <= estimate_image_tokens(uri(head + data)) <= 85 + 170 * 8
