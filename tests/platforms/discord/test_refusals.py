"""What responses of Discord that are no success mean."""

import pytest

from bot.errors import (
    ContentRefused,
    MessageNotFound,
    OutcomeUnknown,
    PlatformError,
    RateLimited,
    Refused,
    TokenRejected,
    WordsRefused,
)
from bot.platforms.discord.rest import (
    AlreadyAcknowledged,
    ChannelNotFound,
    ThreadExists,
    WebhookNotFound,
    translate_refusal,
)


@pytest.mark.parametrize(
    ("status", "code", "meaning"),
    [
        (400, 50035, ContentRefused),
        (400, 200000, WordsRefused),
        (400, 200001, WordsRefused),
        (403, 50001, Refused),
        (403, 50013, Refused),
        (400, 50083, Refused),
        (400, 160005, Refused),
        (404, 10003, ChannelNotFound),
        (400, 160004, ThreadExists),
        (404, 10008, MessageNotFound),
        (400, 40060, AlreadyAcknowledged),
        (401, 0, TokenRejected),
        (401, 50027, WebhookNotFound),
        (429, 0, RateLimited),
        (500, 0, OutcomeUnknown),
        (503, 0, OutcomeUnknown),
    ],
)
def test_status_and_code_are_translated(
    status: int, code: int, meaning: type[PlatformError]
) -> None:
    assert type(translate_refusal(status, code, "no")) is meaning


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [("7", 7.0), (None, 5.0), ("Sat, 21 Nov 2026 10:00:00 GMT", 5.0)],
)
def test_rate_limit_of_a_proxy_has_retry_after(retry_after: str | None, seconds: float) -> None:
    limited = translate_refusal(429, 0, "no", retry_after)
    assert isinstance(limited, RateLimited)
    assert limited.retry_after_seconds == seconds
