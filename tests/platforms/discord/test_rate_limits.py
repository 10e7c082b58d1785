"""Test when Discord's rate limit buckets allow requests."""

from collections.abc import Mapping

from bot.platforms.discord.rest import BucketLimits

SEND = "POST /channels/{}/messages"


def headers(remaining: int, reset_after: float, name: str = "b1", limit: int = 5) -> dict[str, str]:
    return {
        "x-ratelimit-bucket": name,
        "x-ratelimit-limit": str(limit),
        "x-ratelimit-remaining": str(remaining),
        "x-ratelimit-reset-after": str(reset_after),
    }


def take(limits: BucketLimits, now: float, endpoint: str = SEND, resource: str = "1") -> float:
    """Count a request if its bucket allows it; return the seconds to wait, or 0 if allowed."""
    bucket = limits.get_bucket(endpoint, resource, now)
    wait = limits.seconds_until_free(bucket, now)
    if wait <= 0:
        bucket.count_request(now)
    return wait


def tell(
    limits: BucketLimits,
    said: Mapping[str, str],
    now: float,
    endpoint: str = SEND,
    resource: str = "1",
) -> None:
    limits.apply_headers(limits.get_bucket(endpoint, resource, now), endpoint, resource, said, now)


def test_bucket_allows_requests_until_discord_reports_a_limit() -> None:
    limits = BucketLimits()
    assert [take(limits, now) for now in (0, 0, 0)] == [0, 0, 0]
    tell(limits, {}, 0)
    tell(limits, {"x-ratelimit-remaining": "many"}, 0)
    assert take(limits, 0) == 0


def test_endpoints_with_the_same_bucket_name_share_a_bucket() -> None:
    limits = BucketLimits()
    take(limits, 0)
    take(limits, 0, "PATCH")
    tell(limits, headers(3, 4), 0)
    tell(limits, headers(0, 4), 0, "PATCH")
    assert take(limits, 0) == 4


def test_expired_buckets_are_dropped() -> None:
    limits = BucketLimits()
    take(limits, 0, resource="0")
    tell(limits, headers(0, 60), 0, resource="0")
    for channel in range(1, 5000):
        take(limits, 1, resource=str(channel))
    assert take(limits, 1, resource="0") == 59
    assert len(limits) < 2000
