"""Untrusted files are read by their content, and unreadable files are reported."""

import base64
import io
import sys
import time
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from bot.chat.incoming import Address, MediaItem, MediaKind, Quote
from bot.chat.session import AttachedFiles
from bot.errors import Unreachable
from bot.media.attachment_reader import AttachmentReader
from bot.media.fetching import FetchFailed, PublicFetcher, parse_public_url
from tests.attacks import attacks, skip_for, texts_in, with_ours
from tests.importers.test_hostile_files import ELSEWHERE, FILES, MORE_FILES
from tests.media.file_samples import LETTER, picture
from tests.samples import BOB, make_incoming

SAID = make_incoming("look")


class Files:
    """Returns files by source, and records requests."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self.asked: list[str] = []

    async def download(self, _address: Address, item: MediaItem, max_bytes: int) -> bytes:
        self.asked.append(item.source)
        if item.source not in self._files:
            raise Unreachable("gone")
        return self._files[item.source][:max_bytes]


async def read(
    *items: MediaItem, reads_images: bool = True, quoted: tuple[MediaItem, ...] = (), **files: bytes
) -> AttachedFiles:
    quote = Quote(BOB, "7", "old", quoted) if quoted else None
    said = replace(SAID, attachments=items, quote=quote)
    return await AttachmentReader(Files(files).download).read(said, reads_images=reads_images)


def file(source: str, name: str = "", kind: MediaKind = MediaKind.FILE) -> MediaItem:
    return MediaItem(kind, name, None, source)


def image(source: str) -> MediaItem:
    return file(source, f"{source}.png", MediaKind.IMAGE)


def open_images(files: AttachedFiles) -> list[Image.Image]:
    parts = [one.url.partition("data:image/jpeg;base64,")[2] for one in files.images]
    return [Image.open(io.BytesIO(base64.b64decode(one))) for one in parts]


def unread_reasons(files: AttachedFiles) -> list[str]:
    return [str(one.reason) for one in files.unread_files]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
async def test_picture_becomes_a_jpeg_small_enough_for_models(kind: str) -> None:
    found = await read(image("a"), a=picture(2000, 1000, kind))
    [seen] = open_images(found)
    assert (seen.format, seen.size, found.unread_files) == ("JPEG", (1568, 784), ())


async def test_transparent_picture_gets_a_white_background() -> None:
    [seen] = open_images(await read(image("a"), a=picture(mode="RGBA")))
    assert seen.getpixel((5, 5)) == (255, 255, 255)


async def test_files_are_read_in_order_and_unreadable_files_are_reported() -> None:
    items = [image("a"), image("gone"), file("t", "notes [1].txt"), image("b")]
    found = await read(*items, a=picture(10, 10), b=picture(20, 10), t=b"one\ntwo")
    assert [one.size for one in open_images(found)] == [(10, 10), (20, 10)]
    assert [(one.name, one.text, one.is_file_truncated) for one in found.texts] == [
        ("notes (1).txt", "one\ntwo", False)
    ]
    assert unread_reasons(found) == ["it could not be downloaded"]


async def test_picture_is_not_downloaded_if_too_large_or_not_needed() -> None:
    files = Files({"a": picture()})
    reader = AttachmentReader(files.download)
    large = replace(SAID, attachments=(replace(image("a"), size=20 * 2**20),))
    assert unread_reasons(await reader.read(large, reads_images=True)) == [
        "it is larger than 10 MiB"
    ]
    unseen = await reader.read(replace(SAID, attachments=(image("a"),)), reads_images=False)
    assert [one.reason for one in unseen.unread_files] == [None]
    assert files.asked == []


async def test_picture_of_the_quoted_message_is_read() -> None:
    found = await read(quoted=(image("a"), file("z")), a=picture(), z=b"\0\1")
    assert len(found.images) == 1
    assert found.unread_files == ()  # the quoted file is not the author's


@pytest.mark.parametrize("end", [None, b"", b"%%EOF\n"])
async def test_truncated_pdf_is_read(end: bytes | None) -> None:
    whole = LETTER
    if end is not None:
        whole = whole.partition(b"xref\n")[0] + b"trailer << /Root 1 0 R >>\n" + end
    found = await read(file("p", "letter.pdf"), p=whole)
    assert [one.text.strip() for one in found.texts] == ["the key is under the mat"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"PK\3\4\0\0", "I can only read pictures, text files and PDFs"),
        ("明日の会議".encode("cp932"), "please save it as UTF-8"),
        (b"  \n", "it contains no text"),
        (b"%PDF-1.4 nothing follows", "it is damaged, or too large when unpacked"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "it is damaged, or too large when unpacked"),
        (bytes(10 * 2**20 + 1), "it is larger than 10 MiB"),
    ],
)
async def test_unreadable_file_is_reported_with_the_reason(data: bytes, why: str) -> None:
    assert unread_reasons(await read(file("f"), f=data)) == [why]


async def test_files_that_need_a_missing_package_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = picture()
    for package in ("PIL", "pypdf"):
        monkeypatch.setitem(sys.modules, package, None)

    found = await read(image("a"), file("p"), file("t"), a=seen, p=LETTER, t=b"text")

    assert unread_reasons(found) == ["I'm not set up to read this kind of file"] * 2
    assert [one.text for one in found.texts] == ["text"]


def png_of(width: int, height: int) -> bytes:
    """Return a small PNG file with this many pixels."""
    small = picture(1, 1)
    header = small[16:29]
    claimed = width.to_bytes(4, "big") + height.to_bytes(4, "big") + header[8:]
    checksum = zlib.crc32(b"IHDR" + claimed).to_bytes(4, "big")
    return small[:16] + claimed + checksum + small[33:]


async def test_decompression_bomb_is_refused() -> None:
    found = await read(image("a"), image("b"), a=png_of(60_000, 60_000), b=png_of(9000, 6000))
    assert unread_reasons(found) == ["it is damaged, or too large when unpacked"] * 2


async def test_long_text_is_truncated_at_100_kib_and_marked() -> None:
    [text] = (await read(file("t"), t="字".encode() * 200_000)).texts
    assert text.is_file_truncated
    assert 100 * 1024 - 3 < len(text.text.encode()) <= 100 * 1024


async def test_api_key_in_a_file_is_masked() -> None:
    token = "sk-" + "a1B2" * 12
    [text] = (await read(file("t"), t=f"key = {token}".encode())).texts
    assert token not in text.text


async def test_at_most_ten_files_are_read() -> None:
    found = await read(*[file(f"t{number}") for number in range(12)])
    assert unread_reasons(found)[-2:] == ["I read at most 10 files per message"] * 2


@pytest.mark.parametrize(("title", "given"), with_ours("attachments", dict.fromkeys(MORE_FILES)))
async def test_hostile_file_yields_at_most_text_or_a_picture(title: str, given: Any) -> None:
    """Each file is sent both as a picture and as a file."""
    if title not in {**FILES, **MORE_FILES}:
        skip_for(ELSEWHERE[title])
    data = {**FILES, **MORE_FILES}[title]()
    began = time.process_time()

    found = await read(
        image("f"), file("f", "../../x\n[file y]"), image("good"), f=data, good=picture()
    )

    assert time.process_time() - began < 6
    assert open_images(found)[-1].size == (40, 20), "the others are read"
    assert len(found.images) + len(found.texts) + len(found.unread_files) == 3
    assert not [
        text for text in found.texts if "/" in text.name or "\n" in text.name or "[" in text.name
    ]


class Web:
    """Returns files by URL, and records requests."""

    def __init__(self, **files: bytes) -> None:
        self._files = files
        self.asked: list[str] = []

    async def fetch(self, address: str, max_bytes: int) -> bytes:
        self.asked.append(address)
        parse_public_url(address)
        name = address.rpartition("/")[2].partition(".")[0]
        if name not in self._files:
            raise FetchFailed("the server answered with status 404")
        return self._files[name][:max_bytes]


async def read_text(web: Web, text: str, *, reads_images: bool = True) -> AttachedFiles:
    reader = AttachmentReader(Files({}).download, web.fetch)
    return await reader.read(make_incoming(text), reads_images=reads_images)


async def test_picture_is_downloaded_from_a_url_in_a_message() -> None:
    web = Web(cat=picture(10, 10), dog=picture(20, 10))
    text = "see (https://a.example/cat.png), https://b.example/x/dog.JPG?w=1 https://a.example/cat.png!"
    found = await read_text(web, text)
    assert [one.size for one in open_images(found)] == [(10, 10), (20, 10)]
    assert web.asked == ["https://a.example/cat.png", "https://b.example/x/dog.JPG?w=1"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("https://a.example/gone.png", "it could not be downloaded"),
        ("http://localhost/cat.png", "I'm not allowed to download files from its address"),
        ("https://a.example/page.png", "it is damaged, or too large when unpacked"),
    ],
)
async def test_picture_that_cannot_be_downloaded_is_reported(text: str, why: str) -> None:
    web = Web(cat=picture(), page=b"<svg onload=alert(1)>")
    assert unread_reasons(await read_text(web, text)) == [why]


@pytest.mark.parametrize("text", ["https://a.example/", "https://a.example/cat.pngx", "cat.png"])
async def test_url_of_anything_but_a_picture_is_not_requested(text: str) -> None:
    web = Web(cat=picture())
    assert await read_text(web, text) == AttachedFiles()
    assert web.asked == []


async def test_url_is_requested_only_if_the_model_sees_images() -> None:
    web = Web(cat=picture())
    await read_text(web, "https://a.example/cat.png", reads_images=False)
    assert web.asked == []


async def test_hostile_url_in_a_message_is_not_requested() -> None:
    """Each URL in attacks.json is tried as it is and with the extension of a picture."""
    for text in [text for case in attacks("ssrf") for text in texts_in(case["input"])[:1]]:
        reader = AttachmentReader(Files({}).download, PublicFetcher(lambda _address: False).fetch)
        for written in (text, f"{text}a.png"):
            found = await reader.read(make_incoming(written), reads_images=True)
            assert not found.images
