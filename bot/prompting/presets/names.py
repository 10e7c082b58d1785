"""What a preset may be called, so that commands and files can use its name."""

import re
import unicodedata

from bot.prompting.text.confusables import is_invisible

MAX_NAME_CHARS = 64

# What Windows would open as a device, whatever the folder.
_DEVICES = re.compile(r"(con|prn|aux|nul|(com|lpt)\d|con(in|out)\$|clock\$)(\..*)?", re.IGNORECASE)

# Slashes, what looks like one, what becomes one when it is decoded (twice: %252f), and drives.
_LEADS_ELSEWHERE = re.compile(r"[/\\∕⁄⧸]|%[0-9a-f]{2}|^[a-z]:", re.IGNORECASE)

# Controls, marks of direction, halves of surrogate pairs, breaks of lines and paragraphs.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # Persian spelling and families of emoji need them


def preset_id(name: str) -> str:
    """Fold what people type differently: case, and full-width signs."""
    return unicodedata.normalize("NFKC", name).casefold()


def name_problem(name: str) -> str | None:
    """Why a name cannot be typed in a command or become a file's name; None if it can."""
    plain = unicodedata.normalize("NFKC", name)
    if all(sign.isspace() or is_invisible(sign) for sign in name):
        return "a name must not be empty"
    if len(name) > MAX_NAME_CHARS:
        return f"a name has at most {MAX_NAME_CHARS} characters"
    if any(unicodedata.category(sign) in _UNSEEN for sign in name if sign not in _JOINERS):
        return "a name must not contain control characters or line breaks"
    if _LEADS_ELSEWHERE.search(plain):
        return "a name must not contain path separators"
    if name != name.strip() or plain[0] in ".-~":
        return "a name must not begin with a dot, a hyphen or a tilde, nor with or end in a space"
    if _DEVICES.fullmatch(plain):
        return "Windows keeps this name for a device"
    return None
