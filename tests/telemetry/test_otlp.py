"""Spans and metrics reach a collector on loopback, and nothing waits for one that does not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from recorder.telemetry import RecorderTelemetry
from recorder.turn_recorder import TurnRecorder
from recorder.turns import ClassifiedExchange
from store.errors import ConfigError
from store.lifecycle import DropReason
from store.record import Record
from store.values import NewTurn
from telemetry.otlp import OtlpExporter, read_headers
from tests.dashboard.conftest import fill
from tests.recorder.exchanges import make_exchange, user

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Collector(ThreadingHTTPServer):
    """A collector that keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: set[str] = set()
        self.headers: list[str | None] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            raise AssertionError("not asked for")
        self.server.headers.append(self.headers.get("x-token"))
        if self.path == "/v1/traces":
            for one in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.server.spans += [span for scope in one.scope_spans for span in scope.spans]
        elif self.path == "/v1/metrics":
            for one in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.server.metrics |= {m.name for scope in one.scope_metrics for m in scope.metrics}
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def attributes(found: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in found.attributes}


async def test_an_exchange_becomes_a_span_of_its_callers_trace(
    collector: Collector, record: Record, tmp_path: Any
) -> None:
    exporter = OtlpExporter(collector.url, headers="x-token=a%20b", service="recorder")
    telemetry = RecorderTelemetry(tmp_path / "m.prom", exporter)

    async def opened() -> Record:
        return record

    sessions: list[str] = []

    def observe(captured: ClassifiedExchange, turn: NewTurn) -> None:
        telemetry.observe(captured, turn)
        sessions.append(turn.session_id)

    recorder = TurnRecorder(opened, on_written=observe)
    await recorder.write(
        [
            make_exchange(
                "a", [user("secret words")], "secret reply", streamed=True, created_at=100.0, sent_at=100.1, first_chunk_at=100.5,
                backend_ended_at=101.0, finished_at=101.25, traceparent=f"00-{TRACE}-b7ad6b7169203331-01",
            )
        ]
    )  # fmt: skip
    telemetry.close()
    (span,) = collector.spans
    assert span.name == "chat tiny"
    assert span.trace_id.hex() == TRACE
    assert span.parent_span_id.hex() == "b7ad6b7169203331"
    assert (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 == pytest.approx(1.25)
    found = attributes(span)
    assert [found["gen_ai.conversation.id"]] == sessions
    assert found["gen_ai.response.id"] == "c-a"
    assert found["gen_ai.usage.output_tokens"] == 1
    assert "gen_ai.input.messages" not in found
    assert "secret" not in str(span)
    assert {
        "gen_ai.server.request.duration",
        "gen_ai.server.time_to_first_token",
        "gen_ai.client.token.usage",
    } <= collector.metrics
    assert set(collector.headers) == {"a b"}


@pytest.mark.parametrize(
    ("traceparent", "is_sent", "has_parent"),
    [
        (f"00-{TRACE}-b7ad6b7169203331-01", True, True),
        (f"00-{TRACE}-b7ad6b7169203331-00", False, True),  # the caller does not sample this trace
        ("no trace", True, False),
        ("", True, False),
    ],
)
async def test_a_caller_decides_whether_its_trace_is_sampled(
    collector: Collector, record: Record, tmp_path: Any, traceparent: str, is_sent: bool, has_parent: bool
) -> None:
    telemetry = RecorderTelemetry(tmp_path / "m.prom", OtlpExporter(collector.url, service="recorder"))

    async def opened() -> Record:
        return record

    recorder = TurnRecorder(opened, on_written=telemetry.observe)
    fault = (DropReason.UPSTREAM_ERROR, "the backend answered 500")
    await recorder.write(
        [
            make_exchange("a", [user("x")], "y", traceparent=traceparent, fault=fault),
            make_exchange("b", [user("z")], "y", traceparent=traceparent),
        ]
    )
    telemetry.close()
    found = {attributes(span)["gen_ai.response.id"]: span for span in collector.spans}
    assert set(found) == ({"c-a", "c-b"} if is_sent else set())
    if is_sent:
        assert len({span.span_id for span in found.values()}) == 2
        assert (len({span.trace_id for span in found.values()}) == 1) == has_parent
        assert (found["c-a"].status.code, found["c-a"].status.message) == (2, "upstream_error")
        assert (found["c-b"].status.code, found["c-b"].kind) == (0, 2)
        assert bool(found["c-a"].parent_span_id) == has_parent
    assert "gen_ai.server.request.duration" in collector.metrics  # metrics are of every exchange


async def test_verdicts_and_steps_that_come_later_become_spans_once(
    collector: Collector, record: Record, tmp_path: Any
) -> None:
    exporter = OtlpExporter(collector.url, service="recorder")
    telemetry = RecorderTelemetry(tmp_path / "m.prom", exporter)
    telemetry._after_step = 0.0  # the steps of `fill` are of long ago
    await telemetry._export_learning(record, exporter)  # nothing is recorded yet
    await fill(record)
    await telemetry._export_learning(record, exporter)
    await telemetry._export_learning(record, exporter)
    telemetry.close()
    (evaluated,) = [span for span in collector.spans if span.name == "evaluate"]
    (event,) = evaluated.events
    assert event.name == "gen_ai.evaluation.result"
    assert attributes(event)["gen_ai.evaluation.score.value"] == -1.0
    assert "gen_ai.evaluation.explanation" not in attributes(event)
    good, failed = sorted(
        (span for span in collector.spans if span.name == "train patina-tiny"),
        key=lambda span: span.start_time_unix_nano,
    )
    assert attributes(good)["patina.version"] == 1
    assert failed.status.code == 2
    inner = [span.name for span in collector.spans if span.parent_span_id == good.span_id]
    assert sorted(inner) == ["gate", "teach", "train"]


async def test_a_collector_that_is_away_costs_nothing(record: Record, tmp_path: Any) -> None:
    telemetry = RecorderTelemetry(tmp_path / "m.prom", OtlpExporter("http://127.0.0.1:9", service="recorder"))
    await telemetry.tick(record)
    assert (tmp_path / "m.prom").exists()


@pytest.mark.parametrize("text", ["no-equals", "=value"])
def test_headers_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="name=value"):
        read_headers(text)
