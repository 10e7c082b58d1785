"""The spans of a message have one trace, whichever process makes them, and nobody's words."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry import trace

from bot.errors import SettingsError
from bot.intake.intake import InboxIntake
from bot.runtime.clock import SystemClock
from bot.storage.sql.database import Database
from bot.storage.sql.inbox import SqlInbox
from bot.telemetry import traces
from bot.telemetry.traces import MessageTraces, record_span, start_traces
from tests.samples import make_incoming


@dataclass
class RecordedSpan:
    name: str
    trace_id: int
    attributes: dict[str, str]
    began: int
    ended: int = 0

    def end(self, end_time: int) -> None:
        self.ended = end_time


@dataclass
class RecordingTracer:
    """Keeps the spans that are started, as an exporter would get them."""

    spans: list[RecordedSpan] = field(default_factory=list)

    def start_span(
        self, name: str, *, context: Any, attributes: dict[str, str], start_time: int
    ) -> RecordedSpan:
        parent = trace.get_current_span(context).get_span_context()
        assert parent.is_valid
        assert parent.trace_flags.sampled
        self.spans.append(RecordedSpan(name, parent.trace_id, attributes, start_time))
        return self.spans[-1]


@pytest.fixture
def tracer() -> Iterator[RecordingTracer]:
    recording = RecordingTracer()
    kept = MessageTraces(recording)
    traces._current.append(kept)
    yield recording
    traces._current.remove(kept)


def test_spans_of_a_turn_share_a_trace_and_those_of_another_do_not(
    tracer: RecordingTracer,
) -> None:
    record_span("answer", "telegram:5:1", 10.0, 10.5, outcome="answered")
    record_span("deliver", "telegram:5:1", 10.5, 10.7, platform="telegram", outcome="sent")
    record_span("answer", "telegram:5:2", 10.0, 9.0, outcome="answered")
    answer, deliver, other = tracer.spans
    assert answer.trace_id == deliver.trace_id != other.trace_id
    assert answer.attributes == {"troupe.outcome": "answered"}
    assert (answer.began, answer.ended) == (10_000_000_000, 10_500_000_000)
    assert other.ended == other.began, "a clock that was set back makes no negative span"


async def test_received_message_begins_the_trace_of_its_turn(
    tracer: RecordingTracer, database: Database
) -> None:
    message = make_incoming("my secret words")
    await InboxIntake(SqlInbox(database, SystemClock()), lambda _: None).receive([message], {})
    record_span("answer", f"telegram:{message.external_key}", 1.0, 2.0)
    received, answered = tracer.spans
    assert received.name == "receive"
    assert received.trace_id == answered.trace_id
    assert "secret" not in repr(tracer.spans)


def test_nothing_of_opentelemetry_is_needed_without_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    record_span("answer", "telegram:5:1", 1.0, 2.0)
    with pytest.raises(SettingsError, match=r"troupe\[traces\]"):
        start_traces("http://127.0.0.1:4318")
