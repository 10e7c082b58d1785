"""Prometheus metrics and OpenTelemetry spans; their labels never contain text from people."""

import hashlib
import random
from collections.abc import Callable, Mapping
from importlib import import_module  # noqa: TID251 # an extra that few installations have
from typing import Any

import structlog
from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from bot import __version__
from bot.chat.prompt import Usage
from bot.extras import import_extra

_HISTOGRAM_BUCKETS_IN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180)

MESSAGES_RECEIVED = Counter("troupe_heard_total", "Messages stored in the inbox", ["platform"])
MESSAGES_FINISHED = Counter(
    "troupe_finished_total",
    "Messages that were processed, by outcome",
    # answered, command, greeted, observed, ignored, told, failed, set_aside
    ["platform", "outcome"],
)
SECONDS_TO_FINISH = Histogram(
    "troupe_seconds_to_finish",
    "Time from the platform's timestamp of a message to the end of its processing",
    buckets=_HISTOGRAM_BUCKETS_IN_SECONDS,
)
SECONDS_TO_FIRST_TOKEN = Histogram(
    "troupe_seconds_to_first_word",
    "Time from the request to a model to its first token",
    buckets=_HISTOGRAM_BUCKETS_IN_SECONDS,
)
_PROMPT_TOKENS = Counter("troupe_prompt_tokens_total", "Prompt tokens, as counted by providers")
_CACHED_PROMPT_TOKENS = Counter(
    "troupe_cached_prompt_tokens_total", "Prompt tokens that were read from a prefix cache"
)
_CACHE_WRITE_TOKENS = Counter(
    "troupe_cache_written_prompt_tokens_total", "Prompt tokens that were written to a prefix cache"
)
_ANSWER_TOKENS = Counter("troupe_answer_tokens_total", "Answer tokens, including reasoning")
OUTBOX_SENDS = Counter(
    "troupe_outbox_total",
    "Attempts to send an outbox row, by outcome",
    ["platform", "outcome"],  # sent, rate_limited, unreachable, unknown, refused, set_aside, fatal
)
OUTBOX_RECONCILIATIONS = Counter(
    "troupe_reconciled_total",
    "Searches for messages with an unknown outcome, and whether they had arrived",
    ["platform", "arrived"],
)
LIMITED_MESSAGES = Counter(
    "troupe_limited_total",
    "Messages over the limit of a person, a channel or a queue, by outcome",
    ["outcome"],  # slowed, refused, queue_full, commands, deletions, unreadable, voice
)
CHECKED_ANSWERS = Counter(
    "troupe_checked_total",
    "Answers withheld by a check, or shown or withheld because moderation was unavailable",
    ["outcome"],  # withheld by words, moderation, plugin, withheld_unchecked; shown unchecked
)
FENCED_WORK = Counter(
    "troupe_fenced_total",
    "Work that was dropped because another process has since claimed it",
    ["queue"],  # conversations, lanes
)
POLLING_CONFLICTS = Counter(
    "troupe_conflicts_total", "Polls refused because another process polls this bot (HTTP 409)"
)
RATE_LIMIT_REFUSALS = Counter(
    "troupe_rate_limit_refusals_total",
    "Calls refused by a platform's rate limit (HTTP 429)",
    ["platform", "scope"],  # route, chat, bot
)
RATE_LIMIT_SECONDS = Counter(
    "troupe_rate_limit_seconds_total",
    "Seconds to wait, as demanded by platforms' rate limits",
    ["platform"],
)
QUEUE_AGE = Gauge("troupe_queue_age_seconds", "Age of the oldest item in a queue", ["queue"])
HELD_ROLES = Gauge(
    "troupe_held_roles", "Exclusive roles that this process holds, by name", ["role"]
)
SESSION_STARTS_LEFT = Gauge(
    "troupe_discord_identifies_left",
    "Gateway sessions that may still be started on Discord today, in processes that query it",
    ["platform"],  # with this label, only processes that query Discord export a value
)
LOOP_LAG_SECONDS = Histogram(
    "troupe_loop_lag_seconds",
    "Delay of a timer in the event loop of this process",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
ITEMS_IN_PROGRESS = Gauge("troupe_working", "Items of a queue that are being processed", ["queue"])


def record_usage(usage: Usage) -> None:
    """Add an answer's token usage to the counters."""
    for counter, tokens in (
        (_PROMPT_TOKENS, usage.prompt_tokens),
        (_CACHED_PROMPT_TOKENS, usage.cached_tokens),
        (_CACHE_WRITE_TOKENS, usage.written_tokens),
        (_ANSWER_TOKENS, usage.output_tokens),
    ):
        if tokens:
            counter.inc(tokens)


def count_withheld_answers() -> int:
    """Return the number of answers that checks withheld since this process started."""
    samples = [one for metric in CHECKED_ANSWERS.collect() for one in metric.samples]
    withheld_samples = (one for one in samples if one.labels.get("outcome") != "unchecked")
    return sum(int(one.value) for one in withheld_samples if one.name.endswith("_total"))


def count_unanswered_messages(platform: str) -> int:
    """Return the number of messages on a platform that got a notice instead of an answer."""
    label_sets = ({"platform": platform, "outcome": one} for one in ("failed", "told", "set_aside"))
    counts = (REGISTRY.get_sample_value("troupe_finished_total", each) for each in label_sets)
    return sum(int(count or 0) for count in counts)


_NANOSECONDS_PER_SECOND = 1_000_000_000
ROOT_SPAN_NAME = "message"
"""The name of a turn's root span, which contains its other spans."""


class TurnIdGenerator:
    """Generates OpenTelemetry ids; a root span's ids are derived from its turn."""

    def __init__(self) -> None:
        self.next_root_ids: tuple[int, int] | None = None
        """The trace and span ids for the next span if it is a root span, else None."""

    def generate_trace_id(self) -> int:
        return self.next_root_ids[0] if self.next_root_ids else random.getrandbits(128) or 1

    def generate_span_id(self) -> int:
        return self.next_root_ids[1] if self.next_root_ids else random.getrandbits(64) or 1


class SpanRecorder:
    """Records spans with an OpenTelemetry tracer and its id generator."""

    def __init__(self, tracer: Any, id_generator: TurnIdGenerator) -> None:
        self._tracer, self._id_generator = tracer, id_generator
        self._api = import_module("opentelemetry.trace")

    def record(
        self,
        name: str,
        turn: str,
        start: float,
        end: float,
        *,
        attributes: Mapping[str, object] | None = None,
        error: str | None = None,
        is_remote_call: bool = False,
    ) -> None:
        """Record a span of a turn, or its root span if `name` is `ROOT_SPAN_NAME`.

        `start` and `end` are in Unix seconds; `error` names an error's class or an outcome.
        """
        api, digest = self._api, hashlib.sha256(turn.encode()).digest()
        ids = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")
        parent = api.INVALID_SPAN
        if name == ROOT_SPAN_NAME:
            self._id_generator.next_root_ids = ids
        else:
            flags = api.TraceFlags(api.TraceFlags.SAMPLED)
            parent = api.NonRecordingSpan(api.SpanContext(*ids, is_remote=True, trace_flags=flags))
        span_kind = api.SpanKind.CLIENT if is_remote_call else api.SpanKind.INTERNAL
        span = self._tracer.start_span(
            name,
            context=api.set_span_in_context(parent),
            kind=span_kind,
            attributes=attributes or {},
            start_time=int(start * _NANOSECONDS_PER_SECOND),
        )
        self._id_generator.next_root_ids = None
        if error is None:
            span.set_status(api.StatusCode.OK)
        else:
            span.set_attribute("error.type", error)
            span.set_status(api.StatusCode.ERROR, error)
        span.end(end_time=int(max(start, end) * _NANOSECONDS_PER_SECOND))


_active_recorders: list[SpanRecorder] = []  # one item while tracing is on, otherwise empty


def record_span(name: str, turn: str | None, start: float, end: float, **attributes: Any) -> None:
    """Record a span for one step in the processing of a message, if tracing is on.

    If `turn` is None, use the turn of the log context. `attributes` contains further arguments for
    `SpanRecorder.record`, none of which may contain text from people.
    """
    for recorder in _active_recorders:
        span_turn = turn or structlog.contextvars.get_contextvars().get("turn")
        if span_turn is not None:
            recorder.record(name, span_turn, start, end, **attributes)


def start_tracing(url: str) -> Callable[[], None]:
    """Export spans by OTLP/HTTP until the returned function is called; raises `SettingsError`."""
    sdk, export_module, id_generator, resources, otlp_module = (
        import_extra(f"opentelemetry.{name}", "TROUPE_TRACES_URL")
        for name in (
            *("sdk.trace", "sdk.trace.export", "sdk.trace.id_generator", "sdk.resources"),
            "exporter.otlp.proto.http.trace_exporter",
        )
    )
    service = {"service.name": "troupe", "service.version": __version__}
    ids = type("SdkTurnIds", (TurnIdGenerator, id_generator.IdGenerator), {})()
    provider = sdk.TracerProvider(resource=resources.Resource.create(service), id_generator=ids)
    exporter = otlp_module.OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces")
    provider.add_span_processor(export_module.BatchSpanProcessor(exporter))
    span_recorder = SpanRecorder(provider.get_tracer("troupe"), ids)
    _active_recorders.append(span_recorder)

    def stop_tracing() -> None:
        _active_recorders.remove(span_recorder)
        provider.shutdown()  # exports the remaining spans

    return stop_tracing
