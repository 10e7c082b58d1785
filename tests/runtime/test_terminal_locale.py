"""The terminal's locale is the first of POSIX's locale variables that is not empty."""

import pytest

from bot.runtime.terminal import terminal_locale


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"LANG": "zh_CN.UTF-8"}, "zh_CN.UTF-8"),
        ({"LC_ALL": "", "LC_MESSAGES": "zh_CN.UTF-8", "LANG": "en_GB.UTF-8"}, "zh_CN.UTF-8"),
        ({"LC_ALL": "C", "LC_MESSAGES": "zh_CN.UTF-8", "LANG": "zh_CN.UTF-8"}, "C"),
    ],
)
def test_locale_comes_from_the_first_variable_that_is_set(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: str | None
) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert terminal_locale() == expected
