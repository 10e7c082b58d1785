"""Whether this processor can run the built-in engine, which would die on others without a word."""

import platform
from pathlib import Path

from bot.errors import SettingsError

_NEEDED = frozenset({"avx2", "bmi2", "f16c", "fma"})  # what xllamacpp is compiled for


def check(provider: str) -> None:
    """Refuse a processor on which the engine would meet an illegal instruction.

    Raises:
        SettingsError: it lacks something; the text says what, and what to do instead.
    """
    check_for(f"TROUPE_PROVIDERS__{provider.upper()}__")


def check_for(setting: str) -> None:
    """Do the same for what is set up by the settings whose names begin so."""
    described = Path("/proc/cpuinfo")  # other systems with such processors are all new enough
    if platform.machine() != "x86_64" or not described.exists():
        return
    if lacking := missing(described.read_text(encoding="utf-8", errors="replace")):
        raise SettingsError(
            f"this processor lacks {', '.join(lacking)}, which the built-in engine needs; "
            f"set {setting}KIND=openai and {setting}BASE_URL to a server that has a model"
        )


def missing(cpuinfo: str) -> list[str]:
    """What the engine needs and /proc/cpuinfo, if it lists anything, does not list."""
    lists = [line.split() for line in cpuinfo.splitlines() if line.startswith("flags")]
    return sorted(_NEEDED.difference(*lists)) if lists else []
