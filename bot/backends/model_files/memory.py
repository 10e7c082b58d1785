"""Read how much memory is free for a model, with the limits of a container."""

from collections.abc import Iterator
from pathlib import Path


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return how many bytes can be allocated without swapping; None where that is unknown."""
    return min(_free_amounts(root), default=None)


def _free_amounts(root: Path) -> Iterator[int]:
    available = _fields(root / "proc/meminfo").get("MemAvailable:")
    if available is not None:
        yield available * 1024  # the file says kB and means KiB
    groups = root / "sys/fs/cgroup"
    own = _read(root / "proc/self/cgroup").partition("0::/")[2].strip()
    for group in (groups / own, *(groups / own).parents):  # each group may have its own limit
        if group.is_relative_to(groups):
            yield from _free_in_group(group, "memory.max", "memory.current", "inactive_file")
    old = groups / "memory"
    yield from _free_in_group(
        old, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    )


def _free_in_group(group: Path, limit: str, used: str, reclaimable: str) -> Iterator[int]:
    """Yield what a control group may still allocate; nothing if it has no limit."""
    most, taken = _read(group / limit).strip(), _read(group / used).strip()
    if most.isdecimal() and taken.isdecimal():
        cached = _fields(group / "memory.stat").get(reclaimable, 0)
        yield max(0, int(most) - int(taken) + cached)


def _fields(file: Path) -> dict[str, int]:
    lines = (line.split() for line in _read(file).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
