"""Tell when two names look the same to a reader, whatever signs they are written with."""

import re
import unicodedata
from functools import lru_cache

# Unicode's confusables (UTS #39) as far as names of people go: letters of Cyrillic and Greek that
# look Latin, and what a screen font shows alike. Read after case folding.
_LATIN_TWINS = str.maketrans(
    "авекмнорстухіјѕԁһԛԝгѵӏ" + "αβεηικνορτυχϲϳγ" + "ıl10",
    "abekmhopctyxijsdhqwrvi" + "abenikvoptuxcjy" + "iiio",
)
# Two scripts whose capitals are drawn like Latin ones, whole names of them: ꓐꓳꓐ, ᏢᎪᎷ.
_CAPITAL_TWINS = str.maketrans(
    "ꓐꓑꓓꓔꓖꓗꓙꓚꓜꓝꓟꓠꓡꓢꓣꓦꓧꓪꓫꓬꓮꓰꓲꓳꓴ" + "ᎠᎡᎢᎥᎪᎫᎬᎳᎷᎻᏀᏃᏏᏒᏔᏕᏙᏚᏞᏟᏢᏦᏧᏳᏴ",
    "bpdtgkjczfmnlsrvhwxyaeiou" + "drtiajewmhgzbrwsvslcpkdgb",
)
# ɴᴏʀᴀ: small capitals are letters of their own to Unicode, and a font for names to people.
_SMALL_CAPITALS = str.maketrans("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘꞯʀꜱᴛᴜᴠᴡʏᴢ", "abcdefghijklmnopqrstuvwyz")
_TWINS = {**_SMALL_CAPITALS, **_CAPITAL_TWINS}
# Scripts that share shapes of letters; nobody's name mixes them within a word (UTS #39, 5.2).
_SHAPES_ALIKE = frozenset({"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU"})
COLON = re.compile("[:：﹕︓︰∶ː꞉˸׃፡։܃܄᛬᠃᠄⁚ꓽ]")
"""What ends a speaker's tag, or looks as if it did."""

_MOST_REMEMBERED = 4096
# Tag characters; variation selectors behind another one, for a sign needs one; and rows of joiners
# and marks of direction, of which no spelling has so many: hidden words do.
_SELECTOR = "[\ufe00-\ufe0f\U000e0100-\U000e01ef]"
_UNSEEN = "[\u180e\u200b-\u200f\u2060-\u2064\u206a-\u206f\ufeff]"
_HIDDEN = re.compile(f"[\U000e0000-\U000e007f]|(?<={_SELECTOR}){_SELECTOR}+|{_UNSEEN}{{4,}}")

# What takes no ink although it is a letter, a sign or a mark: fillers and variation selectors.
_BLANK = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]))
)
# Combining classes of marks that decorate a letter: through it, above and below it. The others are
# spelling.
_THROUGH, _ABOVE_OR_BELOW = 1, 200


@lru_cache(_MOST_REMEMBERED)
def skeleton(text: str) -> str:
    """What is left when look-alikes are made one: same skeletons, easily mistaken names.

    Only letters and digits count, without the marks above and below them, so `N.o.r.á` is `nora`.
    """
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    spelled = "".join(sign for sign in decomposed if _spells(sign))
    return spelled.translate(_TWINS).translate(_LATIN_TWINS).replace("rn", "m")


def mixes_confusable_scripts(text: str) -> bool:
    """Tell whether some word borrows letters from a script that looks like its own."""
    return any(len(_SHAPES_ALIKE & set(map(script_of, word))) > 1 for word in text.split())


def is_invisible(sign: str) -> bool:
    """Tell whether nobody sees it: controls, marks of direction, joiners, fillers."""
    return sign in _BLANK or unicodedata.category(sign)[0] == "C"


def is_overlay_mark(sign: str) -> bool:
    """Tell whether a mark is drawn over a letter or around it: no script spells a name so."""
    return unicodedata.combining(sign) == _THROUGH or unicodedata.category(sign) == "Me"


def strip_hidden_text(text: str) -> str:
    """Take out what spells words that models read and people do not see."""
    return _HIDDEN.sub("", text)


def script_of(sign: str) -> str:
    """Name a letter's script as Unicode does: LATIN, ARABIC; other signs have none."""
    return unicodedata.name(sign, "").partition(" ")[0] if sign[:1].isalpha() else ""


def _spells(sign: str) -> bool:
    if is_invisible(sign):
        return False
    if unicodedata.category(sign)[0] == "M":
        return not is_overlay_mark(sign) and unicodedata.combining(sign) < _ABOVE_OR_BELOW
    return sign.isalnum()
