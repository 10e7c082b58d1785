"""Decode text files: UTF-8, UTF-16 with its mark, and else Windows-1252 where it reads like text.

Windows-1252 contains Latin-1. Any byte is a character there, or nearly so: only a file without
control characters whose letters are mostly those of ASCII, and whose other letters stand alone, is
taken for it. For other text, `bot.media.attachment_reader` guesses the encoding.
"""

import re

from bot.value_class import value_class

_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_WHITE_SPACE = "\t\n\r\v\f\xa0\xad"  # the last two: no-break space, soft hyphen
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
# Three letters in a row that are not ASCII's are rare where Latin script is written; Cyrillic,
# Greek and Chinese consist of them. 0x83 is in every Katakana of Shift-JIS, and a florin sign.
_OTHER_SCRIPT = re.compile(rb"[\xc0-\xff]{3}|[\x80-\xff]{4}|\x83")
_OTHERS = re.compile(rb"[\x80-\xff]")
_MIN_OTHER_BYTES = 16  # of fewer the encoding cannot be guessed


@value_class
class DecodedText:
    """The text of a file."""

    text: str
    guessed_encoding: str = ""
    """The encoding's name for people; empty if it is certain."""


def decode_text(data: bytes, max_bytes: int) -> DecodedText | None:
    """Return the text of the first bytes of a file, or None for other encodings."""
    is_cut = len(data) > max_bytes
    encoding = "utf-16" if data.startswith(_UTF16_MARKS) else "utf-8-sig"
    try:
        # A character that the cut goes through is dropped; elsewhere it is an error.
        text = data[:max_bytes].decode(encoding, "strict" if not is_cut else "ignore")
        if is_cut:
            data.decode(encoding)
    except UnicodeDecodeError:
        return _decode_windows_1252(data[:max_bytes])
    return None if "\0" in text else DecodedText(text)


def find_guessable_text(data: bytes, max_bytes: int) -> bytes | None:
    """Return the first bytes of a file that may be text in another encoding, else None.

    It is cut behind a whole line: no character of several bytes has a line break in it.
    """
    if len(data) > max_bytes:
        data = data[: data.rfind(b"\n", 0, max_bytes) + 1] or data[:max_bytes]
    is_text = _NO_TEXT.search(data) is None
    return data if is_text and len(_OTHERS.findall(data)) >= _MIN_OTHER_BYTES else None


def is_readable(text: str) -> bool:
    """Return whether a text has no characters but those that are printed, and white space."""
    return all(char.isprintable() or char in _WHITE_SPACE for char in text)


def _decode_windows_1252(data: bytes) -> DecodedText | None:
    """Return the text, None if the bytes are rather of another encoding, or no text at all."""
    ascii_letters = sum(byte < 0x80 and chr(byte).isalpha() for byte in data)
    if len(_OTHERS.findall(data)) > ascii_letters or _OTHER_SCRIPT.search(data):
        return None
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        return None
    return DecodedText(text, "Windows-1252") if is_readable(text) else None
