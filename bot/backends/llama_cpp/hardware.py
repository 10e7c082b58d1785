"""Check the hardware for local models: CPU features, GPUs, and free memory."""

import platform
from collections.abc import Iterator
from pathlib import Path

from bot.errors import SettingsError

_REQUIRED_CPU_FLAGS = frozenset({"avx2", "bmi2", "f16c", "fma"})  # xllamacpp is compiled for them
_ALL_LAYERS = 999  # more than any model has


def require_cpu_flags(setting_prefix: str) -> None:
    """Raise `SettingsError` if the CPU lacks instructions that the prebuilt engine needs."""
    cpuinfo_file = Path("/proc/cpuinfo")  # only Linux has this file
    if platform.machine() != "x86_64" or not cpuinfo_file.exists():
        return
    cpuinfo_text = cpuinfo_file.read_text(encoding="utf-8", errors="replace")
    if missing_flags := find_missing_cpu_flags(cpuinfo_text):
        raise SettingsError(
            f"this processor lacks {', '.join(missing_flags)}, which the built-in engine needs; "
            f"set {setting_prefix}KIND=openai and {setting_prefix}BASE_URL to a server that has "
            "a model"
        )


def find_missing_cpu_flags(cpuinfo_text: str) -> list[str]:
    flag_lines = [line.split() for line in cpuinfo_text.splitlines() if line.startswith("flags")]
    return sorted(_REQUIRED_CPU_FLAGS.difference(*flag_lines)) if flag_lines else []


def choose_gpu_layer_count(gpu_count: int, layer_setting: str) -> int:
    if layer_setting == "auto":
        return _ALL_LAYERS if gpu_count else 0
    return int(layer_setting)


def count_free_bytes(file_system_root: Path = Path("/")) -> int | None:
    """Return how many bytes can be allocated without swapping, or None if unknown."""
    return min(_iterate_available_bytes(file_system_root), default=None)


def _iterate_available_bytes(root: Path) -> Iterator[int]:
    available_kib = _read_number_fields(root / "proc/meminfo").get("MemAvailable:")
    if available_kib is not None:
        yield available_kib * 1024  # "kB" in this file means KiB
    cgroup_root = root / "sys/fs/cgroup"
    own_cgroup = cgroup_root / _read_file(root / "proc/self/cgroup").partition("0::/")[2].strip()
    for cgroup in (own_cgroup, *own_cgroup.parents):  # each parent group may have a limit, too
        if cgroup.is_relative_to(cgroup_root):
            limit, usage = (
                _read_file(cgroup / f"memory.{name}").strip() for name in ("max", "current")
            )
            if limit.isdecimal() and usage.isdecimal():
                reclaimable_bytes = _read_number_fields(cgroup / "memory.stat").get(
                    "inactive_file", 0
                )
                yield max(0, int(limit) - int(usage) + reclaimable_bytes)


def _read_number_fields(file: Path) -> dict[str, int]:
    lines = (line.split() for line in _read_file(file).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


def _read_file(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
