"""Make a person's name fit to stand in front of a line: one line, no frame, every script."""

import hashlib
import unicodedata
from functools import lru_cache
from itertools import groupby

from bot.prompting.text.confusables import (
    COLON,
    is_invisible,
    is_overlay_mark,
    mixes_confusable_scripts,
    script_of,
)

MAX_LABEL_CHARS = 32
_MAX_NAME_CHARS = 1000  # of a name that are looked at; platforms give a tenth
_MOST_REMEMBERED = 4096  # names; the same few come with every message

_MOST_MARKS = 2  # on one letter; more of them flood the lines above and below
_JOINERS = "\u200c\u200d"
_PICTURE_GLUE = "\u200d\ufe0f"  # families, hearts in colour
# Where a joiner changes how a name is spelled: علی‌رضا.
_JOINED_SCRIPTS = {"ARABIC", "SYRIAC", "MONGOLIAN", "KHMER", "MYANMAR", "SINHALA"} | {
    *("DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "ORIYA", "TAMIL", "TELUGU", "KANNADA"),
    "MALAYALAM",
}
_LINKS = "'’·・_"  # O'Brien, 爱丽丝·李, b_o_b: part of a name between two letters
_BOXES = range(0x2500, 0x25A0)  # ▁ is how tokenizers write a blank
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_LETTER_OF_A_FLAG = "regional indicator symbol letter "


@lru_cache(_MOST_REMEMBERED)
def clean_name(name: str) -> str:
    """Keep the letters, digits, marks and pictures of every script; nothing that frames a line.

    Breaks, brackets, colons, quotes, control tokens and what nobody sees go. A name of pictures
    alone is read out, `👑` is `crown`: a lone picture looks like a badge that the room gave.
    """
    plain = _plain(name)
    around = zip(f" {plain}", plain, f"{plain} "[1:], strict=False)
    kept = _without_floods(
        "".join(sign for before, sign, after in around if _stays(before, sign, after))
    )
    if not any(sign.isalnum() for sign in kept):
        kept = _read_out(kept)
    return _cut(" ".join(kept.split())).strip(f" .-{_JOINERS}")


@lru_cache(_MOST_REMEMBERED)
def is_unambiguous(name: str) -> bool:
    """Tell whether `clean` leaves a name just as people see it, on one line and in one script."""
    one_line = len(name.splitlines()) <= 1
    return one_line and clean_name(name) == _plain(name) and not mixes_confusable_scripts(name)


def with_id_suffix(label: str, person_id: str, attempt: int = 0) -> str:
    """Add four hex digits of the owner's id. Nobody can forge them: no name keeps its `#`."""
    salted = f"{person_id}/{attempt}" if attempt else person_id
    return f"{label or 'user'}#{hashlib.sha256(salted.encode(errors='replace')).hexdigest()[:4]}"


def _plain(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name[:_MAX_NAME_CHARS]).split())


def _stays(before: str, sign: str, after: str) -> bool:
    if sign in _PICTURE_GLUE and (_is_picture(before) or before in _PICTURE_GLUE):
        return True
    if sign in _JOINERS:
        return script_of(before) == script_of(after) and script_of(before) in _JOINED_SCRIPTS
    if sign in _LINKS:
        return before.isalnum() and after.isalnum()
    if is_invisible(sign) or is_overlay_mark(sign) or COLON.match(sign):
        return False
    if unicodedata.category(sign)[0] == "M":
        return unicodedata.category(before)[0] in "LMN"
    return sign in " .-" or unicodedata.category(sign)[0] in "LN" or _is_picture(sign)


def _is_picture(sign: str) -> bool:
    if ord(sign) in _SKIN_TONES:
        return True
    return unicodedata.category(sign) == "So" and ord(sign) not in _BOXES


def _without_floods(text: str) -> str:
    """Take all marks off a letter that carries too many."""
    runs = [(stacked, "".join(run)) for stacked, run in groupby(text, _is_stacked)]
    return "".join(run for stacked, run in runs if not stacked or len(run) <= _MOST_MARKS)


def _is_stacked(sign: str) -> bool:
    return unicodedata.combining(sign) > 0


def _read_out(pictures: str) -> str:
    names = [unicodedata.name(sign, "").lower() for sign in pictures if _is_picture(sign)]
    return " ".join(name.removeprefix(_LETTER_OF_A_FLAG) for name in names)


def _cut(text: str) -> str:
    """Keep at most so many characters, and no mark or joiner without what it belongs to."""
    end = min(len(text), MAX_LABEL_CHARS)
    while 0 < end < len(text) and (
        unicodedata.category(text[end])[0] == "M"
        or text[end] in _JOINERS
        or text[end - 1] in _JOINERS
    ):
        end -= 1
    return text[:end]
