"""Validate preset names, so that commands and files can use them."""

import re
import unicodedata

from bot.prompting.text.confusables import is_invisible
from bot.texts.text import Text, translatable

MAX_NAME_CHARS = 64

# Names that Windows opens as a device in any folder.
_DEVICES = re.compile(r"(con|prn|aux|nul|(com|lpt)\d|con(in|out)\$|clock\$)(\..*)?", re.IGNORECASE)

# Slashes, look-alikes of slashes, percent encodings (also twice: %252f), and drives.
_PATH_SEPARATORS = re.compile(r"[/\\∕⁄⧸]|%[0-9a-f]{2}|^[a-z]:", re.IGNORECASE)

# What a shell or Windows gives a meaning in a name that is pasted into a command.
_SHELL_CHARACTERS = re.compile(r"[$`;|<>]")

# Control and format characters, surrogates, line and paragraph separators.
_FORBIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # Persian spelling and emoji sequences need them


def preset_id(name: str) -> str:
    """Return the form of a name that lookups compare: without case and width."""
    return unicodedata.normalize("NFKC", name).casefold()


def name_problem(name: str) -> Text | None:
    """Return why a name cannot be used in commands and file names; None if it can."""
    plain = unicodedata.normalize("NFKC", name)
    if all(char.isspace() or is_invisible(char) for char in name):
        return translatable("a name must not be empty")
    if len(name) > MAX_NAME_CHARS:
        return translatable("a name has at most {limit} characters", limit=MAX_NAME_CHARS)
    if any(
        unicodedata.category(char) in _FORBIDDEN_CATEGORIES for char in name if char not in _JOINERS
    ):
        return translatable("a name must not contain control characters or line breaks")
    if _PATH_SEPARATORS.search(plain):
        return translatable("a name must not contain path separators")
    if name != name.strip() or plain[0] in ".-~":
        return translatable(
            "a name must not begin with a dot, a hyphen or a tilde, nor with or end in a space"
        )
    if _DEVICES.fullmatch(plain):
        return translatable("Windows reserves this name for a device")
    if found := _SHELL_CHARACTERS.search(plain):
        return translatable("a name must not contain {character}", character=repr(found[0]))
    return None
