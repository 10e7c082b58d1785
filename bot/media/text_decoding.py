"""Decode text files: UTF-8, UTF-16 with a byte order mark, or Windows-1252 if plausible.

Windows-1252 includes Latin-1 and accepts nearly any bytes. So it is assumed only for a file without
control characters in which most letters are ASCII and the others stand alone.
"""

import re

_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_WHITE_SPACE = "\t\n\r\v\f\xa0\xad"  # the last two: no-break space, soft hyphen
# Three letters in a row that are not ASCII's are rare where Latin script is written; Cyrillic,
# Greek and Chinese consist of them. 0x83 is in every Katakana of Shift-JIS, and a florin sign.
_OTHER_SCRIPT = re.compile(rb"[\xc0-\xff]{3}|[\x80-\xff]{4}|\x83")


def decode_text(data: bytes, max_bytes: int) -> str | None:
    """Decode the first bytes of a file; None if the encoding is unknown."""
    is_cut = len(data) > max_bytes
    encoding = "utf-16" if data.startswith(_UTF16_MARKS) else "utf-8-sig"
    try:
        # A character that the cut goes through is dropped; elsewhere it is an error.
        text = data[:max_bytes].decode(encoding, "strict" if not is_cut else "ignore")
        if is_cut:
            data.decode(encoding)
    except UnicodeDecodeError:
        return _decode_windows_1252(data[:max_bytes])
    return None if "\0" in text else text


def _decode_windows_1252(data: bytes) -> str | None:
    ascii_letters = sum(byte < 0x80 and chr(byte).isalpha() for byte in data)
    if sum(byte >= 0x80 for byte in data) > ascii_letters or _OTHER_SCRIPT.search(data):
        return None
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        return None
    is_readable = all(char.isprintable() or char in _WHITE_SPACE for char in text)
    return text if is_readable else None
