"""Prometheus metrics of the service; labels come from closed sets, never from people."""

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from bot.chat.prompt import Usage

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180)

MESSAGES_RECEIVED = Counter("troupe_heard_total", "Messages stored in the inbox", ["platform"])
MESSAGES_FINISHED = Counter(
    "troupe_finished_total",
    "Messages that are finished, by outcome",
    # answered, command, greeted, observed, ignored, told, failed, set_aside
    ["platform", "outcome"],
)
SECONDS_TO_FINISH = Histogram(
    "troupe_seconds_to_finish", "From the platform's time stamp to finished", buckets=_SECONDS
)
SECONDS_TO_FIRST_TOKEN = Histogram(
    "troupe_seconds_to_first_word",
    "From the request to a model to its first token",
    buckets=_SECONDS,
)
_PROMPT_TOKENS = Counter("troupe_prompt_tokens_total", "Prompt tokens, as counted by providers")
_CACHED_PROMPT_TOKENS = Counter(
    "troupe_cached_prompt_tokens_total", "Prompt tokens that came from a prefix cache"
)
_WRITTEN_PROMPT_TOKENS = Counter(
    "troupe_cache_written_prompt_tokens_total", "Prompt tokens that were written to a prefix cache"
)
_ANSWER_TOKENS = Counter("troupe_answer_tokens_total", "Tokens of answers, reasoning included")
OUTBOX_SENDS = Counter(
    "troupe_outbox_total",
    "Attempts to send an outbox row, by outcome",
    ["platform", "outcome"],  # sent, rate_limited, unreachable, unknown, refused, set_aside, fatal
)
OUTBOX_RECONCILIATIONS = Counter(
    "troupe_reconciled_total", "Unknown outcomes that were looked up", ["platform", "arrived"]
)
LIMITED_MESSAGES = Counter(
    "troupe_limited_total",
    "Messages over the limit of a person, a channel or a conversation's queue, by outcome",
    ["outcome"],  # slowed, refused, queue_full, commands, deletions, unreadable, voice
)
FENCED = Counter(
    "troupe_fenced_total",
    "Work that was dropped because another process has taken it over",
    ["queue"],  # conversations, lanes
)
POLLING_CONFLICTS = Counter(
    "troupe_conflicts_total", "Polls refused because another process polls this bot (HTTP 409)"
)
RATE_LIMIT_REFUSALS = Counter(
    "troupe_rate_limit_refusals_total",
    "Calls that a platform refused for a while (HTTP 429)",
    ["platform", "scope"],  # route, chat, bot
)
RATE_LIMIT_SECONDS = Counter(
    "troupe_rate_limit_seconds_total", "Seconds that platforms refused calls for", ["platform"]
)
QUEUE_AGE = Gauge("troupe_queue_age_seconds", "How long the oldest of a queue waits", ["queue"])
HELD_ROLES = Gauge(
    "troupe_held_roles", "Roles of which this process is the only holder, by their name", ["role"]
)
IDENTIFIES_LEFT = Gauge(
    "troupe_discord_identifies_left",
    "New gateway sessions that Discord still allows today; only where Discord was asked",
    ["platform"],  # without a label, processes that never asked would say 0
)
LOOP_LAG = Histogram(
    "troupe_loop_lag_seconds",
    "How late the event loop of this process ran a timer",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
KEYS_IN_PROGRESS = Gauge("troupe_working", "Keys of a queue that are being processed", ["queue"])


def record_usage(usage: Usage) -> None:
    """Add one answer's token usage to the counters."""
    for counter, tokens in (
        (_PROMPT_TOKENS, usage.prompt_tokens),
        (_CACHED_PROMPT_TOKENS, usage.cached_tokens),
        (_WRITTEN_PROMPT_TOKENS, usage.written_tokens),
        (_ANSWER_TOKENS, usage.output_tokens),
    ):
        if tokens:
            counter.inc(tokens)


def count_unanswered(platform: str) -> int:
    """Return how many messages of a platform got a notice instead of an answer."""
    found = (
        REGISTRY.get_sample_value(
            "troupe_finished_total", {"platform": platform, "outcome": outcome}
        )
        for outcome in ("failed", "told", "set_aside")
    )
    return sum(int(count or 0) for count in found)
