"""Decode text files in UTF-8, in UTF-16 with a byte order mark, or in Windows-1252.

Windows-1252 accepts nearly any bytes, so it is assumed only if the text looks plausible: without
control characters, with mostly ASCII letters, and with few non-ASCII letters in a row.
"""

import re

_UTF16_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")
_WHITE_SPACE = "\t\n\r\v\f\xa0\xad"  # the last two are no-break space and soft hyphen
# Three non-ASCII letters in a row are rare in languages with Latin script, but normal in Cyrillic,
# Greek or Chinese text. 0x83, a florin sign, is in every Katakana letter of Shift-JIS.
_NON_LATIN_PATTERN = re.compile(rb"[\xc0-\xff]{3}|[\x80-\xff]{4}|\x83")


def decode_text(data: bytes, max_bytes: int) -> str | None:
    """Return the text of a file's first `max_bytes`, or None if the encoding is unknown."""
    is_cut = len(data) > max_bytes
    encoding = "utf-16" if data.startswith(_UTF16_BYTE_ORDER_MARKS) else "utf-8-sig"
    try:
        # Drop a character that is cut off at the end; invalid bytes elsewhere are an error.
        text = data[:max_bytes].decode(encoding, "strict" if not is_cut else "ignore")
        if is_cut:
            data.decode(encoding)
    except UnicodeDecodeError:
        return _decode_windows_1252(data[:max_bytes])
    return None if "\0" in text else text


def _decode_windows_1252(data: bytes) -> str | None:
    letter_count = sum(byte < 0x80 and chr(byte).isalpha() for byte in data)
    if sum(byte >= 0x80 for byte in data) > letter_count or _NON_LATIN_PATTERN.search(data):
        return None
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        return None
    is_readable = all(char.isprintable() or char in _WHITE_SPACE for char in text)
    return text if is_readable else None
