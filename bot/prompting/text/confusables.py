"""Detect confusable names and hidden text (Unicode UTS #39)."""

import re
import unicodedata
from pathlib import Path

from bot.texts.caches import text_cache

# The confusables of UTS #39 that matter for names: Cyrillic and Greek letters that look Latin, and
# characters that screen fonts draw alike. Applied after case folding.
_LATIN_LOOKALIKES = str.maketrans(
    "авекмнорстухіјѕԁһԛԝгѵӏ" + "αβεηικνορτυχϲϳγ" + "ıl10",
    "abekmhopctyxijsdhqwrvi" + "abenikvoptuxcjy" + "iiio",
)
# Letters of other scripts and of phonetic alphabets, each group behind the Latin letter that they
# read like (UTS #39).
_OTHER_LOOKALIKES: dict[int, str] = {
    ord(other): group[0]
    for group in (Path(__file__).parent / "lookalikes.txt").read_text("utf-8").split()
    for other in group[1:]
}
# Two scripts whose capitals look like Latin ones, so that whole names can: ꓐꓳꓐ, ᏢᎪᎷ.
_CAPITAL_LOOKALIKES = str.maketrans(
    "ꓐꓑꓓꓔꓖꓗꓙꓚꓜꓝꓟꓠꓡꓢꓣꓦꓧꓪꓫꓬꓮꓰꓲꓳꓴ" + "ᎠᎡᎢᎥᎪᎫᎬᎳᎷᎻᏀᏃᏏᏒᏔᏕᏙᏚᏞᏟᏢᏦᏧᏳᏴ",
    "bpdtgkjczfmnlsrvhwxyaeiou" + "drtiajewmhgzbrwsvslcpkdgb",
)
# ɴᴏʀᴀ: small capitals are separate letters in Unicode, but read like a font.
_SMALL_CAPITALS = str.maketrans("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘꞯʀꜱᴛᴜᴠᴡʏᴢ", "abcdefghijklmnopqrstuvwyz")
# Letters in circles, squares and brackets: Ⓑ, 🄱, 🅑, 🅱, 🇧 and ⒝. Unicode counts them as symbols.
_ENCLOSED_ALPHABETS = (0x24B6, 0x24D0, 0x1F130, 0x1F150, 0x1F170, 0x1F1E6, 0x249C, 0x1F110)
_ENCLOSED_LETTERS = {
    first + index: chr(ord("a") + index) for first in _ENCLOSED_ALPHABETS for index in range(26)
}
_LOOKALIKES: dict[int, int | str] = {
    **_SMALL_CAPITALS,
    **_CAPITAL_LOOKALIKES,
    **_OTHER_LOOKALIKES,
}
# Scripts that share letter shapes; no real name mixes them within a word (UTS #39, 5.2).
_CONFUSABLE_SCRIPTS = frozenset(
    {"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU"}
)
COLON = re.compile("[:：﹕︓︰∶ː꞉˸׃፡։܃܄᛬᠃᠄⁚ꓽ]")
"""Matches the ends of speaker tags, and lookalikes."""

_NO_ASCII_SPELLING = re.compile("[^a-z0-9]+")
_CACHE_SIZE = 4096
# Tag characters; a variation selector after another one, since a character needs only one; and rows
# of joiners and directional marks longer than any spelling has: they encode hidden text.
_TAGS = "\U000e0000-\U000e007f"
_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_ZERO_WIDTH = "\u180e\u200b-\u200f\u2060-\u2064\u206a-\u206f\ufeff"
_HIDDEN = re.compile(f"[{_TAGS}]|(?<=[{_SELECTORS}])[{_SELECTORS}]+|[{_ZERO_WIDTH}]{{4,}}")
_MAY_HIDE = re.compile(f"[{_TAGS}{_SELECTORS}{_ZERO_WIDTH}]")

# Letters and marks without ink: fillers and variation selectors.
_BLANK = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]))
)
# Combining classes of marks that decorate a letter: through it, above and below it. The other
# classes are part of the spelling.
_THROUGH, _ABOVE_OR_BELOW = 1, 200


@text_cache(_CACHE_SIZE)
def skeleton(text: str) -> str:
    """Return the skeleton of a name (UTS #39): confusable names have equal skeletons.

    Only letters and digits remain, without diacritics: `N.o.r.á` is `nora`.
    """
    if text.isascii():  # the same, in a fraction of the time
        plain = _NO_ASCII_SPELLING.sub("", text.lower())
        return plain.translate(_LATIN_LOOKALIKES).replace("rn", "m")
    plain = spell_enclosed_letters(text)
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", plain).casefold())
    spelled = "".join(char for char in decomposed if _is_spelling(char))
    return spelled.translate(_LOOKALIKES).translate(_LATIN_LOOKALIKES).replace("rn", "m")


def spell_enclosed_letters(text: str) -> str:
    """Replace letters in circles, squares and brackets by plain ones: Ⓑⓞⓑ by `bob`."""
    return text if text.isascii() else text.translate(_ENCLOSED_LETTERS)


def mixes_confusable_scripts(text: str) -> bool:
    """Whether a word mixes scripts whose letters look alike."""
    if text.isascii():
        return False
    return any(len(_CONFUSABLE_SCRIPTS & set(map(script_of, word))) > 1 for word in text.split())


def is_invisible(char: str) -> bool:
    """Whether a character is invisible: a control, directional mark, joiner or filler."""
    return char in _BLANK or unicodedata.category(char)[0] == "C"


def is_overlay_mark(char: str) -> bool:
    """Whether a mark is drawn over or around a letter, which names need in no script."""
    return unicodedata.combining(char) == _THROUGH or unicodedata.category(char) == "Me"


def strip_hidden_text(text: str) -> str:
    """Remove hidden text, which models read but people do not see."""
    if text.isascii() or not _MAY_HIDE.search(text):
        return text  # nearly always, and in a tenth of the time
    return _HIDDEN.sub("", text)


def script_of(char: str) -> str:
    """Return a letter's script from its Unicode name, such as LATIN; empty for non-letters."""
    return unicodedata.name(char, "").partition(" ")[0] if char[:1].isalpha() else ""


def _is_spelling(char: str) -> bool:
    if is_invisible(char):
        return False
    if unicodedata.category(char)[0] == "M":
        return not is_overlay_mark(char) and unicodedata.combining(char) < _ABOVE_OR_BELOW
    return char.isalnum()
