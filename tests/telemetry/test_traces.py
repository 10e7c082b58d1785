"""All spans of a message share one trace, from any process, and contain no text from people."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry import trace

from bot.chat.prompt import Finish, FinishReason, ToolCall, Usage
from bot.errors import BackendUnavailable, SettingsError
from bot.intake import InboxIntake
from bot.runtime.clock import SystemClock
from bot.storage.database import Database
from bot.storage.inbox import SqlInbox
from bot.telemetry import metrics
from bot.telemetry.metrics import (
    ROOT_SPAN_NAME,
    SpanRecorder,
    TurnIdGenerator,
    record_span,
    start_tracing,
)
from tests.fakes import CallingFakeBackend
from tests.samples import make_incoming
from tests.turn.setup import Setup


@dataclass
class RecordedSpan:
    name: str
    parent: trace.SpanContext
    trace_id: int
    span_id: int
    attributes: dict[str, Any]
    kind: trace.SpanKind
    began: int
    ended: int = 0
    status: trace.StatusCode = trace.StatusCode.UNSET

    def set_status(self, status: trace.StatusCode, _description: str = "") -> None:
        self.status = status

    def set_attribute(self, name: str, value: str) -> None:
        self.attributes[name] = value

    def end(self, end_time: int) -> None:
        self.ended = end_time


@dataclass
class RecordingTracer:
    ids: TurnIdGenerator = field(default_factory=TurnIdGenerator)
    spans: list[RecordedSpan] = field(default_factory=list)

    def start_span(
        self,
        name: str,
        *,
        context: Any,
        kind: trace.SpanKind,
        attributes: dict[str, Any],
        start_time: int,
    ) -> RecordedSpan:
        parent = trace.get_current_span(context).get_span_context()
        trace_id = parent.trace_id if parent.is_valid else self.ids.generate_trace_id()
        span_id = self.ids.generate_span_id()
        made = RecordedSpan(name, parent, trace_id, span_id, dict(attributes), kind, start_time)
        self.spans.append(made)
        return made


@pytest.fixture
def tracer() -> Iterator[RecordingTracer]:
    recording = RecordingTracer()
    kept = SpanRecorder(recording, recording.ids)
    metrics._active_recorders.append(kept)
    yield recording
    metrics._active_recorders.remove(kept)


def test_all_spans_of_a_turn_have_the_same_root_span(
    tracer: RecordingTracer,
) -> None:
    record_span("answer", "telegram:5:1", 10.0, 10.5, attributes={"troupe.outcome": "answered"})
    record_span("deliver", "telegram:5:1", 10.5, 10.7, error="refused")
    record_span("answer", "telegram:5:2", 10.0, 9.0)
    record_span(ROOT_SPAN_NAME, "telegram:5:1", 9.0, 10.5)
    answer, deliver, other, root = tracer.spans
    assert answer.trace_id == deliver.trace_id == root.trace_id != other.trace_id
    assert answer.parent.span_id == deliver.parent.span_id == root.span_id
    assert not root.parent.is_valid
    assert len({span.span_id for span in tracer.spans}) == 4
    assert answer.attributes == {"troupe.outcome": "answered"}
    assert answer.status is root.status is trace.StatusCode.OK
    assert deliver.status is trace.StatusCode.ERROR
    assert deliver.attributes == {"error.type": "refused"}
    assert (answer.began, answer.ended) == (10_000_000_000, 10_500_000_000)
    assert other.ended == other.began, "a clock that was set back makes no negative span"


async def test_models_and_tools_have_spans(tracer: RecordingTracer, database: Database) -> None:
    call = ToolCall("c1", "dice", '{"dice": "2d6", "secret": "words"}')
    first = Finish(FinishReason.STOP, Usage(7, 0, 5), (call,))
    setup = Setup(
        database,
        backend=CallingFakeBackend([first], ["secret An eight!"], [BackendUnavailable("away")]),
        preset={"tools": ["dice"]},
    )
    await setup.say("roll two secret dice")
    await setup.say("again")
    asked, failed = (one.trace_id for one in tracer.spans if one.name == ROOT_SPAN_NAME)
    spans = {(one.trace_id, one.name): one for one in tracer.spans}
    tool, model = spans[asked, "execute_tool dice"], spans[failed, "chat m"]
    assert tool.attributes["gen_ai.tool.name"] == "dice"
    assert model.status is spans[failed, ROOT_SPAN_NAME].status is trace.StatusCode.ERROR
    assert model.attributes["error.type"] == "BackendUnavailable"
    assert model.kind is trace.SpanKind.CLIENT
    [first_request] = [one for one in tracer.spans if 7 in one.attributes.values()]
    assert first_request.trace_id == asked
    assert first_request.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "p",
        "gen_ai.request.model": "m",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 5,
    }
    assert "secret" not in repr(tracer.spans)


async def test_received_message_starts_the_trace_of_its_turn(
    tracer: RecordingTracer, database: Database
) -> None:
    message = make_incoming("my secret words")
    await InboxIntake(SqlInbox(database, SystemClock()), lambda _: None).receive([message], {})
    record_span("answer", f"telegram:{message.external_key}", 1.0, 2.0)
    received, answered = tracer.spans
    assert received.name == "receive"
    assert received.trace_id == answered.trace_id
    assert "secret" not in repr(tracer.spans)


def test_opentelemetry_is_not_imported_unless_tracing_is_enabled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    record_span("answer", "telegram:5:1", 1.0, 2.0)
    with pytest.raises(SettingsError, match=r"troupe-bot\[traces\]"):
        start_tracing("http://127.0.0.1:4318")
