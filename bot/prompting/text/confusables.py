"""Detect confusable names and hidden text (Unicode UTS #39)."""

import re
import unicodedata
from pathlib import Path

from bot.texts.caches import text_cache

# The confusable characters of UTS #39 that matter for names: Cyrillic and Greek letters that look
# Latin, and characters that look alike in screen fonts. Used after case folding.
_LATIN_LOOKALIKES = str.maketrans(
    "авекмнорстухіјѕԁһԛԝгѵӏ" + "αβεηικνορτυχϲϳγ" + "ıl10",
    "abekmhopctyxijsdhqwrvi" + "abenikvoptuxcjy" + "iiio",
)
# Letters of other scripts and of phonetic alphabets. Each group follows the Latin letter that it
# looks like (UTS #39).
_OTHER_LOOKALIKES: dict[int, str] = {
    ord(lookalike): group[0]
    for group in (Path(__file__).parent / "lookalikes.txt").read_text("utf-8").split()
    for lookalike in group[1:]
}
# Two scripts whose capitals look Latin, so that a whole name can be imitated: ꓐꓳꓐ, ᏢᎪᎷ.
_CAPITAL_LOOKALIKES = str.maketrans(
    "ꓐꓑꓓꓔꓖꓗꓙꓚꓜꓝꓟꓠꓡꓢꓣꓦꓧꓪꓫꓬꓮꓰꓲꓳꓴ" + "ᎠᎡᎢᎥᎪᎫᎬᎳᎷᎻᏀᏃᏏᏒᏔᏕᏙᏚᏞᏟᏢᏦᏧᏳᏴ",
    "bpdtgkjczfmnlsrvhwxyaeiou" + "drtiajewmhgzbrwsvslcpkdgb",
)
# ɴᴏʀᴀ: small capitals are letters of their own in Unicode, but look like a font.
_SMALL_CAPITALS = str.maketrans("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘꞯʀꜱᴛᴜᴠᴡʏᴢ", "abcdefghijklmnopqrstuvwyz")
# Letters in circles, squares, and brackets, which are symbols in Unicode: Ⓑ, 🄱, 🅑, 🅱, 🇧, ⒝.
_ENCLOSED_ALPHABETS = (0x24B6, 0x24D0, 0x1F130, 0x1F150, 0x1F170, 0x1F1E6, 0x249C, 0x1F110)
_ENCLOSED_LETTERS = {
    first_code + index: chr(ord("a") + index)
    for first_code in _ENCLOSED_ALPHABETS
    for index in range(26)
}
_LOOKALIKES: dict[int, int | str] = {**_SMALL_CAPITALS, **_CAPITAL_LOOKALIKES, **_OTHER_LOOKALIKES}
# Scripts that share letter shapes; no real name mixes them in a word (UTS #39, 5.2).
_CONFUSABLE_SCRIPTS = frozenset(
    {"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU"}
)
COLON = re.compile("[:：﹕︓︰∶ː꞉˸׃፡։܃܄᛬᠃᠄⁚ꓽ]")
"""Matches a colon or a lookalike, which ends a speaker's tag."""

_NON_ALPHANUMERICS = re.compile("[^a-z0-9]+")
_SKELETON_CACHE_SIZE = 4096
# Characters that encode hidden text: tag characters, repeated variation selectors (a character
# needs only one), and more joiners and directional marks in a row than any spelling has.
_TAG_CHARACTERS = "\U000e0000-\U000e007f"
_VARIATION_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_ZERO_WIDTH_CHARACTERS = "\u180e\u200b-\u200f\u2060-\u2064\u206a-\u206f\ufeff"
_HIDDEN_TEXT = re.compile(
    f"[{_TAG_CHARACTERS}]|(?<=[{_VARIATION_SELECTORS}])[{_VARIATION_SELECTORS}]+|[{_ZERO_WIDTH_CHARACTERS}]{{4,}}"
)
_HIDDEN_CHARACTER = re.compile(f"[{_TAG_CHARACTERS}{_VARIATION_SELECTORS}{_ZERO_WIDTH_CHARACTERS}]")

# Invisible letters and marks: fillers and variation selectors.
_BLANK_LETTERS = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]))
)
# Combining classes of marks that only decorate a letter. Marks of other classes are part of the
# spelling.
_OVERLAY_MARK_CLASS, _MIN_ATTACHED_MARK_CLASS = 1, 200


@text_cache(_SKELETON_CACHE_SIZE)
def confusable_skeleton(text: str) -> str:
    """Return a name's skeleton (UTS #39): names that can be confused have equal skeletons.

    Only letters and digits remain, without diacritics: `N.o.r.á` is `nora`.
    """
    if text.isascii():  # the same result, in a fraction of the time
        plain_text = _NON_ALPHANUMERICS.sub("", text.lower())
        return plain_text.translate(_LATIN_LOOKALIKES).replace("rn", "m")
    plain_text = spell_enclosed_letters(text)
    nfkd_text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", plain_text).casefold())
    letters = "".join(char for char in nfkd_text if _is_part_of_spelling(char))
    return letters.translate(_LOOKALIKES).translate(_LATIN_LOOKALIKES).replace("rn", "m")


def spell_enclosed_letters(text: str) -> str:
    """Replace letters in circles, squares, and brackets with plain letters: Ⓑⓞⓑ with `bob`."""
    return text if text.isascii() else text.translate(_ENCLOSED_LETTERS)


def mixes_confusable_scripts(text: str) -> bool:
    """Return whether any word mixes scripts whose letters look alike."""
    if text.isascii():
        return False
    return any(len(_CONFUSABLE_SCRIPTS & set(map(find_script, word))) > 1 for word in text.split())


def is_invisible(char: str) -> bool:
    """Return whether a character is a control, directional mark, joiner, or filler."""
    return char in _BLANK_LETTERS or unicodedata.category(char)[0] == "C"


def is_overlay_mark(char: str) -> bool:
    """Return whether a character strikes through or encloses letters; names never need that."""
    return unicodedata.combining(char) == _OVERLAY_MARK_CLASS or unicodedata.category(char) == "Me"


def strip_hidden_text(text: str) -> str:
    """Remove text that models can read but people cannot see."""
    if text.isascii() or not _HIDDEN_CHARACTER.search(text):
        return text  # the usual case, in a tenth of the time
    return _HIDDEN_TEXT.sub("", text)


def find_script(char: str) -> str:
    """Return a letter's script by its Unicode name, such as LATIN, or "" for non-letters."""
    return unicodedata.name(char, "").partition(" ")[0] if char[:1].isalpha() else ""


def _is_part_of_spelling(char: str) -> bool:
    if is_invisible(char):
        return False
    if unicodedata.category(char)[0] == "M":
        return not is_overlay_mark(char) and unicodedata.combining(char) < _MIN_ATTACHED_MARK_CLASS
    return char.isalnum()
