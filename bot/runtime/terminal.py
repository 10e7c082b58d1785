"""The terminal's locale and user name, and functions that make untrusted text safe to print."""

import getpass
import os
import re

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Characters that change the direction of text are escaped as well.
_UNSAFE_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def strip_control_characters(text: str) -> str:
    """Remove control characters (C0, C1 and DEL) except line breaks and tabs."""
    return _CONTROL_CHARACTERS.sub("", text)


def escape_control_characters(text: str) -> str:
    r"""Escape control characters as in Python, such as `\x1b`; keep line breaks and tabs."""
    return _UNSAFE_CHARACTERS.sub(lambda found: repr(found[0])[1:-1], text)


_LOCALE_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")  # the first one that is set decides


def terminal_locale() -> str | None:
    """Return this process's locale, such as "zh_CN.UTF-8", or None if no variable sets one."""
    environment = os.environ  # noqa: TID251 -- no setting of Troupe is read
    return next((environment[name] for name in _LOCALE_VARIABLES if environment.get(name)), None)


def login_name() -> str:
    """Return the name of the user running this process, or "you" if the user has no name."""
    try:
        return getpass.getuser()
    except (ImportError, OSError, KeyError):
        return "you"
