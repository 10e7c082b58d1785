"""Text files in the encodings that people's editors write."""

import random

import pytest

from bot.media.conversion_child import guessed_text
from bot.media.text_decoding import decode_text, find_guessable_text

_LIMIT = 100 * 1024
_TEXTS = {
    "Windows-1251": ("cp1251", "Привет! Завтра мы встречаемся у входа в парк в семь вечера."),
    "KOI8-R": ("koi8_r", "Привет! Завтра мы встречаемся у входа в парк в семь вечера."),
    "Windows-1253": ("cp1253", "Καλημέρα! Αύριο συναντιόμαστε στην είσοδο του πάρκου."),
    "Shift-JIS": ("cp932", "明日の会議は午後三時から始まります。資料を忘れずに。"),
    "EUC-JP": ("euc_jp", "明日の会議は午後三時から始まります。資料を忘れずに持ってきてください。"),
    "GB 18030": ("gbk", "今天天气很好，我们去公园散步吧。请记得带上雨伞。"),
    "Big5": ("big5", "今天天氣很好，我們去公園散步吧。請記得帶上雨傘。"),
    "EUC-KR": ("euc_kr", "내일 회의는 오후 세 시에 시작합니다. 자료를 가져오세요."),
}


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
def test_text_of_common_editors_is_read(text: str, encoding: str) -> None:
    decoded = decode_text(text.encode(encoding), _LIMIT)
    assert decoded is not None
    is_certain = encoding.startswith("utf")
    assert (decoded.text, decoded.guessed_encoding) == (text, "" if is_certain else "Windows-1252")


def guess(data: bytes, max_bytes: int = _LIMIT) -> list[str]:
    """Return the encoding that is guessed of a file, and its text."""
    assert decode_text(data, max_bytes) is None
    given = find_guessable_text(data, max_bytes)
    assert given is not None
    return guessed_text(given).decode().split("\n", 1)


@pytest.mark.parametrize("name", _TEXTS)
def test_other_encodings_are_guessed_by_what_the_bytes_say(name: str) -> None:
    encoding, text = _TEXTS[name]
    assert guess(text.encode(encoding)) == [name, text]
    assert guess(f"key = {text}\nlong_option_name = 1".encode(encoding))[0] == name


def test_guessed_text_is_cut_behind_a_whole_line() -> None:
    lines = "今天天气很好，我们去公园散步吧。\n" * 3
    encoded = lines.encode("gbk")
    assert guess(encoded, len(encoded) - 3) == ["GB 18030", lines[: len(lines) // 3 * 2]]


def test_big_endian_text_with_a_mark_is_read() -> None:
    decoded = decode_text(b"\xfe\xff" + "Zoë".encode("utf-16-be"), _LIMIT)
    assert decoded is not None
    assert decoded.text == "Zoë"


@pytest.mark.parametrize(
    "data",
    [
        b"PK\3\4\0\0",
        "Привет, как дела?".encode("cp1251"),  # too short to tell
        "今天天气很好".encode("gb18030"),
        b"caf\xe9 \x07 bell",
        b"a lone byte that Windows-1252 lacks: \x81",
        b"\xff\xfe\xfa\xfb\xfc",
        random.Random(5).randbytes(4000),
    ],
)
def test_bytes_that_are_no_such_text_are_refused(data: bytes) -> None:
    assert decode_text(data, _LIMIT) is None
    assert find_guessable_text(data, _LIMIT) is None


def test_text_is_cut_between_characters() -> None:
    cut = [decode_text(data, at) for data, at in (("字".encode() * 10, 7), (b"caf\xe9 " * 10, 9))]
    assert [one and one.text for one in cut] == ["字字", "café café"]
