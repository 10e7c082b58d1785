"""What the service counts, for Prometheus. Labels come from closed sets, never from people."""

from prometheus_client import Counter, Gauge, Histogram

from bot.chat.prompt import Usage

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180)

HEARD = Counter("troupe_heard_total", "Messages stored in the inbox", ["platform"])
FINISHED = Counter(
    "troupe_finished_total",
    "Messages that are done, by what became of them",
    ["platform", "outcome"],  # answered, command, overheard, ignored, told, failed, set_aside
)
SECONDS_TO_FINISH = Histogram(
    "troupe_seconds_to_finish", "From the platform's time stamp to done", buckets=_SECONDS
)
SECONDS_TO_FIRST_WORD = Histogram(
    "troupe_seconds_to_first_word", "From asking a model to its first word", buckets=_SECONDS
)
_PROMPT_TOKENS = Counter("troupe_prompt_tokens_total", "Tokens of prompts, as providers count")
_CACHED_PROMPT_TOKENS = Counter(
    "troupe_cached_prompt_tokens_total", "Those of them that a model had read before"
)
_ANSWER_TOKENS = Counter("troupe_answer_tokens_total", "Tokens of answers, thoughts included")
SENT = Counter(
    "troupe_outbox_total",
    "Outbox rows, by what came of sending them",
    ["platform", "outcome"],  # sent, rate_limited, unreachable, unknown, refused, fatal
)
RECONCILED = Counter(
    "troupe_reconciled_total", "Unknown outcomes looked up", ["platform", "arrived"]
)
WORKING = Gauge("troupe_working", "Keys under work", ["queue"])


def count_tokens(usage: Usage) -> None:
    """Count what a model has read and written."""
    _PROMPT_TOKENS.inc(usage.prompt_tokens)
    _CACHED_PROMPT_TOKENS.inc(usage.cached_tokens)
    _ANSWER_TOKENS.inc(usage.output_tokens)
