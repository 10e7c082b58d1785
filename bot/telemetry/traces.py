"""OpenTelemetry traces of messages, if TROUPE_TRACES_URL is set.

The spans of a message are made in several processes: received by a gateway, answered by a worker,
delivered by a sender. Its trace id is derived from the name of its turn, which all of them know, so
nothing has to be carried along or stored: the root span is sent by whoever finishes the message.
Spans hold no words and no ids of people.

See https://opentelemetry.io/docs/specs/otel/trace/api/ and, for models and tools,
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/.
"""

import hashlib
import random
from collections.abc import Callable, Mapping
from importlib import import_module  # noqa: TID251 # an extra that few installations have
from typing import Any

import structlog

from bot import __version__
from bot.errors import SettingsError
from bot.value_class import value_class

_NANOSECONDS = 1_000_000_000


ROOT = "message"
"""The name of the span that all others of a turn belong to."""


class TurnIds:
    """Generates span ids; those of a root span are derived from its turn."""

    def __init__(self) -> None:
        self.root: tuple[int, int] | None = None
        """The ids of the trace and the span that is started next."""

    def generate_trace_id(self) -> int:
        return self.root[0] if self.root else random.getrandbits(128) or 1

    def generate_span_id(self) -> int:
        return self.root[1] if self.root else random.getrandbits(64) or 1


class MessageTraces:
    """Creates spans with an OpenTelemetry tracer that takes its ids from `ids`."""

    def __init__(self, tracer: Any, ids: TurnIds) -> None:
        self._tracer = tracer
        self._ids = ids
        self._api = import_module("opentelemetry.trace")

    def record(self, name: str, turn: str, span: "Span") -> None:
        """Record a span of a turn, or its root."""
        api, digest = self._api, hashlib.sha256(turn.encode()).digest()
        ids = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")
        parent = api.INVALID_SPAN
        if name == ROOT:
            self._ids.root = ids
        else:
            flags = api.TraceFlags(api.TraceFlags.SAMPLED)
            parent = api.NonRecordingSpan(api.SpanContext(*ids, is_remote=True, trace_flags=flags))
        kind = api.SpanKind.CLIENT if span.is_remote_call else api.SpanKind.INTERNAL
        started = self._tracer.start_span(
            name,
            context=api.set_span_in_context(parent),
            kind=kind,
            attributes=span.attributes,
            start_time=int(span.began * _NANOSECONDS),
        )
        self._ids.root = None
        if span.error is None:
            started.set_status(api.StatusCode.OK)
        else:
            started.set_attribute("error.type", span.error)
            started.set_status(api.StatusCode.ERROR, span.error)
        started.end(end_time=int(max(span.began, span.ended) * _NANOSECONDS))


@value_class
class Span:
    """A step of a message; times are in Unix seconds."""

    began: float
    ended: float
    attributes: Mapping[str, object]
    error: str | None = None
    """The outcome or the class of the error; None: it succeeded."""
    is_remote_call: bool = False


_current: list[MessageTraces] = []  # one, or none while there are no traces


def record_span(name: str, turn: str | None, began: float, ended: float, **more: Any) -> None:
    """Record a step of a message, if traces are on.

    Without `turn` it belongs to the turn of the log's context. `more` are further fields of `Span`;
    attributes come from closed sets, never from people.
    """
    for traces in _current:
        of_turn = turn or structlog.contextvars.get_contextvars().get("turn")
        if of_turn is not None:
            span = Span(began, ended, **{"attributes": {}, **more})
            traces.record(name, of_turn, span)


def start_traces(url: str) -> Callable[[], None]:
    """Send this process's spans to a collector (OTLP over HTTP); return a function that stops it.

    Raises:
        SettingsError: the extra is not installed.
    """
    try:
        sdk = import_module("opentelemetry.sdk.trace")
        export = import_module("opentelemetry.sdk.trace.export")
        id_generator = import_module("opentelemetry.sdk.trace.id_generator")
        resources = import_module("opentelemetry.sdk.resources")
        otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError:
        raise SettingsError(
            "TROUPE_TRACES_URL needs an extra: `pip install 'troupe-bot[traces]'`, or unset it"
        ) from None
    about = {"service.name": "troupe", "service.version": __version__}
    ids = type("SdkTurnIds", (TurnIds, id_generator.IdGenerator), {})()
    provider = sdk.TracerProvider(resource=resources.Resource.create(about), id_generator=ids)
    exporter = otlp.OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces")
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    traces = MessageTraces(provider.get_tracer("troupe"), ids)
    _current.append(traces)

    def end() -> None:
        _current.remove(traces)
        provider.shutdown()  # sends what waits

    return end
