"""Hostile files are rejected with a one-line error, in limited time and memory."""

import base64
import resource
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bot.errors import PresetError
from bot.importers.card import MAX_FILE_BYTES, read_card
from bot.importers.card_to_preset import preset_from_card
from bot.importers.png import blank_image
from tests.attacks import skip_for, with_ours
from tests.importers.card_samples import zipped

_MAX_SECONDS = 6
_MAX_GROWTH_MIB = 32
_SLOW_KEY = b'{"keys":["/(a+)+$/"],"content":"x"},'


def _zip_of_zips() -> bytes:
    bomb = zipped(("0.dll", b"\0" * 4_000_000))
    return zipped(*((f"lib {number}.zip", bomb) for number in range(16)), ("card.json", bomb))


def _overlapping() -> bytes:
    honest = zipped(("card.json", b"{}"), ("a.txt", b"x"))
    second = honest.index(b"PK\x01\x02", honest.index(b"PK\x01\x02") + 1)
    return honest[: second + 42] + b"\0\0\0\0" + honest[second + 46 :]


def _book(entry: bytes, size: int) -> bytes:
    head = b'{"spec":"chara_card_v2","spec_version":"2.0","data":{"name":"N","character_book":'
    return head + b'{"entries":[' + entry * (size // len(entry)) + b'{"keys":[]}]}}}'


def _with_chunk(kind: bytes, claimed: int, text: bytes) -> bytes:
    image = blank_image()
    return image[:33] + claimed.to_bytes(4, "big") + kind + text + image[33:]


FILES: Mapping[str, Callable[[], bytes]] = {
    "42.zip": _zip_of_zips,
    "overlapping zip (quoted-overlap)": _overlapping,
    "animated GIF 100k frames": lambda: b"GIF89a" + b"\x21\xf9\x04\0\0\0\0\0\x2c" * 100_000,
    "SVG with external entity and script": lambda: (
        b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
        b"<svg onload='alert(1)'>&x;</svg>"
    ),
    "billion laughs XML/DOCX": lambda: zipped(
        ("word/document.xml", b'<!DOCTYPE z [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><z>&b;</z>')
    ),
    "CSV formula injection": lambda: b'=HYPERLINK("http://evil.example")',
    "polyglot PNG+ZIP": lambda: blank_image() + zipped(("card.json", b'{"name":"N"}')),
    "name with path ../../x": lambda: zipped(("../../x", b"x"), ("card.json", b"{}")),
    "character card PNG: tEXt chunk 200 MB base64": lambda: _with_chunk(
        b"tEXt", 200 * 2**20, b"chara\0" + base64.b64encode(b"x" * 1000)
    ),
    "character card JSON: 10^6 lorebook entries with catastrophic regex keys": lambda: _book(
        _SLOW_KEY, 1_000_000 * len(_SLOW_KEY)
    ),
    "HEIC/WebP/AVIF parser crash sample": lambda: b"\0\0\0\x18ftypheic\0\0\0\0" + b"\xff" * 1000,
    "audio 1 s header claims 24 h": lambda: b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0" + b"\0" * 99,
}
_SLOW_KEYS = "as many slow keys as fit into a card"
MORE_FILES: Mapping[str, Callable[[], bytes]] = {
    "WebP": lambda: b"RIFF\x1a\0\0\0WEBPVP8L" + b"\xff" * 100,
    "zip without an end": lambda: b"PK\x03\x04" + b"\0" * 1000,
    "zip that names a drive": lambda: zipped(("C:/x", b"x"), ("card.json", b"{}")),
    "a chunk longer than the file": lambda: _with_chunk(b"tEXt", 2**31 - 1, b"chara\0"),
    "many empty chunks": lambda: blank_image()[:33] + b"\0\0\0\0teXt\xe2\x11\xa0\x95" * 50_000,
    _SLOW_KEYS: lambda: _book(_SLOW_KEY, MAX_FILE_BYTES - 1000),
}
ELSEWHERE = {
    "Telegram file > 20 MB": (
        "tests/media/test_attachment_reader.py::test_picture_is_not_downloaded_if_too_large_or_not_needed"
    ),
    "100 attachments in one message": (
        "tests/media/test_attachment_reader.py::test_at_most_ten_files_are_read"
    ),
    "gzip'd HTTP response 10 GB": (
        "tests/backends/chat_completions/test_errors.py::test_request_is_attempted_at_most_three_times"
    ),
}


@pytest.mark.parametrize(("title", "given"), with_ours("attachments", MORE_FILES, {_SLOW_KEYS}))
def test_hostile_file_is_rejected_within_time_and_memory_limits(title: str, given: Any) -> None:
    make = MORE_FILES.get(title) or FILES.get(title)
    if make is None:
        skip_for(ELSEWHERE[title])
    data = make()
    before, started = _peak_mib(), time.process_time()

    with pytest.raises(PresetError, match=r"^evil\.png") as raised:
        preset_from_card(read_card(data, "evil.png"), "evil.png")

    assert time.process_time() - started < _MAX_SECONDS
    assert "\n" not in str(raised.value)
    if title != _SLOW_KEYS:  # it has to be parsed to be rejected
        assert _peak_mib() - before < _MAX_GROWTH_MIB


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
