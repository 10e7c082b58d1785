"""Test that unsuccessful responses from Discord become the right errors."""

import json
from pathlib import Path

import pytest

from bot.errors import RateLimited
from bot.platforms.discord.rest import to_platform_error

REFUSALS = json.loads(Path(__file__).with_name("refusals.json").read_text("utf-8"))


@pytest.mark.parametrize(("status", "code", "meaning"), REFUSALS)
def test_status_and_code_become_an_error(status: int, code: int, meaning: str) -> None:
    assert type(to_platform_error(status, code, "no")).__name__ == meaning


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [("7", 7.0), (None, 5.0), ("Sat, 21 Nov 2026 10:00:00 GMT", 5.0)],
)
def test_rate_limit_of_a_proxy_uses_retry_after(retry_after: str | None, seconds: float) -> None:
    limited = to_platform_error(429, 0, "no", retry_after)
    assert isinstance(limited, RateLimited)
    assert limited.retry_after_seconds == seconds
