"""Find the language of whoever uses this terminal, as POSIX says it."""

import os

_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")  # the first one that is not empty decides


def terminal_locale() -> str | None:
    """Return the locale of this process, such as "zh_CN.UTF-8"; None if none is set."""
    ours = os.environ  # noqa: TID251 -- no setting of Troupe is read
    return next((ours[name] for name in _VARIABLES if ours.get(name)), None)
