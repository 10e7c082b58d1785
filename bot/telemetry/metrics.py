"""What the service counts, for Prometheus. Labels come from closed sets, never from people."""

from prometheus_client import Counter, Gauge, Histogram

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
SENT = Counter(
    "troupe_outbox_total",
    "Outbox rows, by what came of sending them",
    ["platform", "outcome"],  # sent, rate_limited, unreachable, unknown, refused, fatal
)
RECONCILED = Counter(
    "troupe_reconciled_total", "Unknown outcomes looked up", ["platform", "arrived"]
)
WORKING = Gauge("troupe_working", "Keys under work", ["queue"])
