"""Clean a display name for use as a speaker tag: one line, no delimiters, any script."""

import hashlib
import re
import unicodedata
from itertools import groupby

from bot.prompting.text.confusables import (
    COLON,
    is_invisible,
    is_overlay_mark,
    mixes_confusable_scripts,
    script_of,
)
from bot.texts.caches import text_cache

MAX_LABEL_CHARS = 32
_MAX_NAME_CHARS = 1000  # longer names are cut first; platforms allow a tenth of it
_PLAIN_NAME = re.compile("[A-Za-z0-9 .-]*")
_CACHE_SIZE = 4096  # the same few names come with every message

_MAX_MARKS = 2  # combining marks on one letter; more of them cover the lines above and below
_JOINERS = "\u200c\u200d"
_EMOJI_JOINERS = "\u200d\ufe0f"  # for families, hearts in colour
# Scripts in which a joiner changes the spelling of a name: علی‌رضا.
_JOINED_SCRIPTS = {"ARABIC", "SYRIAC", "MONGOLIAN", "KHMER", "MYANMAR", "SINHALA"} | {
    *("DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "ORIYA", "TAMIL", "TELUGU", "KANNADA"),
    "MALAYALAM",
}
_INNER_PUNCTUATION = "'’·・_"  # kept between two letters: O'Brien, 爱丽丝·李, b_o_b
_BOX_DRAWING = range(0x2500, 0x25A0)  # tokenizers write a space as ▁
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_FLAG_LETTER_PREFIX = "regional indicator symbol letter "


@text_cache(_CACHE_SIZE)
def clean_name(name: str) -> str:
    """Keep the letters, digits, marks and emoji of every script.

    Line breaks, brackets, colons, quotes, control tokens and invisible characters are removed. A
    name of emoji alone is spelled out, `👑` is `crown`: a lone emoji looks like a badge.
    """
    plain = _plain(name)
    if _PLAIN_NAME.fullmatch(plain):  # nothing to remove
        return _cut(plain).strip(" .-")
    around = zip(f" {plain}", plain, f"{plain} "[1:], strict=False)
    kept = _limit_marks(
        "".join(char for before, char, after in around if _is_kept(before, char, after))
    )
    if not any(char.isalnum() for char in kept):
        kept = _spell_emoji(kept)
    return _cut(" ".join(kept.split())).strip(f" .-{_JOINERS}")


@text_cache(_CACHE_SIZE)
def is_unambiguous(name: str) -> bool:
    """Whether `clean_name` keeps the name as people see it: on one line and in one script."""
    one_line = len(name.splitlines()) <= 1
    return one_line and clean_name(name) == _plain(name) and not mixes_confusable_scripts(name)


def with_id_suffix(label: str, person_id: str, attempt: int = 0) -> str:
    """Add four hex digits of a hash of the id; nobody can forge them: names lose their `#`."""
    salted = f"{person_id}/{attempt}" if attempt else person_id
    return f"{label or 'user'}#{hashlib.sha256(salted.encode(errors='replace')).hexdigest()[:4]}"


def _plain(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name[:_MAX_NAME_CHARS]).split())


def _is_kept(before: str, char: str, after: str) -> bool:
    if char in _EMOJI_JOINERS and (_is_emoji(before) or before in _EMOJI_JOINERS):
        return True
    if char in _JOINERS:
        return script_of(before) == script_of(after) and script_of(before) in _JOINED_SCRIPTS
    if char in _INNER_PUNCTUATION:
        return before.isalnum() and after.isalnum()
    if is_invisible(char) or is_overlay_mark(char) or COLON.match(char):
        return False
    if unicodedata.category(char)[0] == "M":
        return unicodedata.category(before)[0] in "LMN"
    return char in " .-" or unicodedata.category(char)[0] in "LN" or _is_emoji(char)


def _is_emoji(char: str) -> bool:
    if ord(char) in _SKIN_TONES:
        return True
    return unicodedata.category(char) == "So" and ord(char) not in _BOX_DRAWING


def _limit_marks(text: str) -> str:
    """Remove all combining marks from a letter that has too many."""
    runs = [(combining, "".join(run)) for combining, run in groupby(text, _is_combining)]
    return "".join(run for combining, run in runs if not combining or len(run) <= _MAX_MARKS)


def _is_combining(char: str) -> bool:
    return unicodedata.combining(char) > 0


def _spell_emoji(text: str) -> str:
    names = [unicodedata.name(char, "").lower() for char in text if _is_emoji(char)]
    return " ".join(name.removeprefix(_FLAG_LETTER_PREFIX) for name in names)


def _cut(text: str) -> str:
    """Cut to the maximum length, without separating a mark or joiner from its letter."""
    end = min(len(text), MAX_LABEL_CHARS)
    while 0 < end < len(text) and (
        unicodedata.category(text[end])[0] == "M"
        or text[end] in _JOINERS
        or text[end - 1] in _JOINERS
    ):
        end -= 1
    return text[:end]
