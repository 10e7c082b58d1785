"""Traces of messages by OpenTelemetry, where TROUPE_TRACES_URL is set.

The spans of a message are made in several processes: received by a gateway, answered by a worker,
delivered by a sender. Its trace id is derived from the name of its turn, which all of them know, so
nothing has to be carried along or stored. Spans hold no words and no ids of people.

See https://opentelemetry.io/docs/specs/otel/trace/api/.
"""

import hashlib
from collections.abc import Callable
from importlib import import_module  # noqa: TID251 # an extra that few installations have
from typing import Any

from bot import __version__
from bot.errors import SettingsError

_NANOSECONDS = 1_000_000_000


class MessageTraces:
    """Makes spans with a tracer; all spans of a turn have one parent that is never sent."""

    def __init__(self, tracer: Any) -> None:
        """Take a tracer of OpenTelemetry's API."""
        self._tracer = tracer
        self._api = import_module("opentelemetry.trace")

    def record(
        self, name: str, turn: str, began: float, ended: float, attributes: dict[str, str]
    ) -> None:
        """Record a span; times are in Unix seconds."""
        api, digest = self._api, hashlib.sha256(turn.encode()).digest()
        parent = api.SpanContext(
            trace_id=int.from_bytes(digest[:16], "big"),
            span_id=int.from_bytes(digest[16:24], "big"),
            is_remote=True,
            trace_flags=api.TraceFlags(api.TraceFlags.SAMPLED),
        )
        span = self._tracer.start_span(
            name,
            context=api.set_span_in_context(api.NonRecordingSpan(parent)),
            attributes={f"troupe.{key}": value for key, value in attributes.items()},
            start_time=int(began * _NANOSECONDS),
        )
        span.end(end_time=max(int(began * _NANOSECONDS), int(ended * _NANOSECONDS)))


_current: list[MessageTraces] = []  # one, or none while there are no traces


def record_span(name: str, turn: str, began: float, ended: float, **attributes: str) -> None:
    """Record what happened to a message, if there are traces; times are in Unix seconds.

    Args:
        name: what was done.
        turn: the name of the turn that answers the message.
        began: when it began.
        ended: when it ended.
        attributes: from closed sets, never from people.
    """
    for traces in _current:
        traces.record(name, turn, began, ended, attributes)


def start_traces(url: str) -> Callable[[], None]:
    """Send the spans of this process to a collector (OTLP over HTTP); returns what ends that.

    Raises:
        SettingsError: the extra is not installed.
    """
    try:
        sdk = import_module("opentelemetry.sdk.trace")
        export = import_module("opentelemetry.sdk.trace.export")
        resources = import_module("opentelemetry.sdk.resources")
        otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError:
        raise SettingsError(
            "TROUPE_TRACES_URL needs an extra: pip install 'troupe[traces]', or unset it"
        ) from None
    about = {"service.name": "troupe", "service.version": __version__}
    provider = sdk.TracerProvider(resource=resources.Resource.create(about))
    exporter = otlp.OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces")
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    traces = MessageTraces(provider.get_tracer("troupe"))
    _current.append(traces)

    def end() -> None:
        _current.remove(traces)
        provider.shutdown()  # sends what waits

    return end
