"""Free memory, as reported by Linux and by containers."""

from pathlib import Path

import pytest

from bot.backends.llama_cpp.hardware import count_free_bytes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    return tmp_path


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def limit(group: Path, most: str, taken: int, cached: int = 0) -> None:
    write(group / "memory.max", f"{most}\n")
    write(group / "memory.current", f"{taken}\n")
    write(group / "memory.stat", f"anon 5\ninactive_file {cached}\n")


def test_free_bytes_without_limits_is_the_available_memory(root: Path) -> None:
    limit(root / "sys/fs/cgroup", "max", 100)

    assert count_free_bytes(root) == 4000 * 1024


def test_free_bytes_in_a_container_adds_reclaimable_file_cache(root: Path) -> None:
    limit(root / "sys/fs/cgroup", "1000000", 400_000, cached=50_000)

    assert count_free_bytes(root) == 650_000


def test_memory_limit_of_a_parent_cgroup_applies(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/slice/service\n")
    limit(root / "sys/fs/cgroup/slice/service", "max", 10)
    limit(root / "sys/fs/cgroup/slice", "300", 100)

    assert count_free_bytes(root) == 200


def test_free_bytes_is_none_if_unknown(tmp_path: Path) -> None:
    assert count_free_bytes(tmp_path) is None
