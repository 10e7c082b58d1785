"""The roles of a process: what it does of an installation's work.

One process has all roles, unless `troupe run --role` names some of them.
"""

import difflib
from collections.abc import Sequence
from enum import StrEnum

from bot.errors import SettingsError
from bot.platforms.spec import PlatformSpec


class Role(StrEnum):
    """A part of the work that any number of processes can share."""

    GATEWAY = "gateway"
    """Receives from the platforms and stores what it receives; loads no model."""

    WORKER = "worker"
    """Answers what is stored; keeps no connection to a platform, and edits growing answers."""

    SENDER = "sender"
    """Sends what is queued, reconciles unknown outcomes, deletes expired rows."""

    CONSOLE = "console"
    """Serves the web pages of the operators."""


ALL_ROLES = frozenset(Role)
_ALL = "all"
_NOT_SET_UP = "is not set up (docs/settings.md); set up are"


def parse_roles(names: str) -> frozenset[Role]:
    """Read the value of --role: names separated by commas, or `all`.

    Raises:
        SettingsError: there is no such role; the text names the nearest one.
    """
    roles: set[Role] = set()
    for name in split_names(names):
        if name == _ALL:
            roles |= ALL_ROLES
        elif name in ALL_ROLES:
            roles.add(Role(name))
        else:
            raise SettingsError(f"--role: {_unknown(name, [*ALL_ROLES, _ALL])}")
    if not roles:
        raise SettingsError(f"--role: name one of {', '.join([*sorted(ALL_ROLES), _ALL])}")
    return frozenset(roles)


def select_platforms(names: str, configured: Sequence[PlatformSpec]) -> Sequence[PlatformSpec]:
    """Return the platforms that --platforms names.

    Raises:
        SettingsError: one of them is not set up; the text names those that are.
    """
    specs = {spec.kind: spec for spec in configured}
    selected = split_names(names)
    for name in selected:
        if name not in specs:
            raise SettingsError(f"--platforms: {_unknown(name, list(specs), _NOT_SET_UP)}")
    if not selected:
        raise SettingsError("--platforms: name at least one platform, such as telegram")
    return [specs[name] for name in dict.fromkeys(selected)]


def split_names(names: str) -> list[str]:
    """Return the names of a list that is separated by commas, in lower case."""
    return [name.strip().lower() for name in names.split(",") if name.strip()]


def _unknown(name: str, known: Sequence[str], problem: str = "is not one of") -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {str(near[0])!r}?" if near else ""
    there = ", ".join(sorted(known)) or "none"
    return f"{name!r} {problem}: {there}{hint}"
