"""Text files in the encodings of common editors."""

import random

import pytest

from bot.media.text_decoding import decode_text

_LIMIT = 100 * 1024


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Grüße aus Köln\r\nund aus Zürich", "latin-1"),
        ("“Très bien” – 5 €, déjà\xa0payé…", "cp1252"),
        ("Привет, как дела?", "utf-16"),
        ("今天天气很好", "utf-8-sig"),
        ("今天天气很好", "utf-8"),
    ],
)
def test_text_saved_by_common_editors_is_decoded(text: str, encoding: str) -> None:
    assert decode_text(text.encode(encoding), _LIMIT) == text


def test_big_endian_utf16_with_a_byte_order_mark_is_decoded() -> None:
    assert decode_text(b"\xfe\xff" + "Zoë".encode("utf-16-be"), _LIMIT) == "Zoë"


@pytest.mark.parametrize(
    "data",
    [
        b"PK\3\4\0\0",
        "Привет, как дела?".encode("cp1251"),
        "Καλημέρα! Αύριο συναντιόμαστε.".encode("cp1253"),
        "明日の会議は午後三時から始まります。".encode("cp932"),
        "今天天气很好".encode("gb18030"),
        "key = 今天天气很好，我们去公园散步吧。\nlong_option_name = 1".encode("gbk"),
        b"caf\xe9 \x07 bell",
        b"a lone byte that Windows-1252 lacks: \x81",
        b"\xff\xfe\xfa\xfb\xfc",
        random.Random(5).randbytes(4000),
    ],
)
def test_other_encodings_and_binary_data_are_refused(data: bytes) -> None:
    assert decode_text(data, _LIMIT) is None


def test_text_is_truncated_between_characters() -> None:
    cut = [decode_text(data, at) for data, at in (("字".encode() * 10, 7), (b"caf\xe9 " * 10, 9))]
    assert cut == ["字字", "café café"]
