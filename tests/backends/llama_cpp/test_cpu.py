"""Whether the built-in engine can run here."""

import pytest

from bot.backends.llama_cpp.cpu import missing


@pytest.mark.parametrize(
    ("cpuinfo", "lacking"),
    [
        ("processor : 0\nflags\t\t: fpu avx avx2 bmi2 f16c fma\n", []),
        ("processor : 0\nflags\t\t: fpu avx\n", ["avx2", "bmi2", "f16c", "fma"]),
        ("processor : 0\nflags\t\t: avx2 bmi2 f16c\nvmx flags : fma", ["fma"]),
        ("nothing that we understand", []),
    ],
)
def test_missing_features_are_found(cpuinfo: str, lacking: list[str]) -> None:
    assert missing(cpuinfo) == lacking
