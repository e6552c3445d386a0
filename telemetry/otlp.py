"""Spans and histograms of exchanges, verdicts and versions, sent by OTLP over HTTP in the background.

Needs the packages of the extra `otel`. A queue that is full drops what comes, and an endpoint that does not answer costs nothing but a log line.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from store.errors import ConfigError
from store.version import VERSION
from telemetry.observation import ExchangeObservation
from telemetry.request_metrics import (
    DURATION_BUCKETS,
    FIRST_TOKEN_BUCKETS,
    OUTPUT_TOKEN_BUCKETS,
    TOKEN_BUCKETS,
)

_PROVIDER = "patina"
_NS = 1_000_000_000


class OtlpExporter:
    """Sends spans and metrics to an OTLP endpoint.

    Args:
        endpoint: base URL; `/v1/traces` and `/v1/metrics` follow it.
        headers: as in `OTEL_EXPORTER_OTLP_HEADERS`: `name=value,name=value`.
        service: name of this process.
        metric_interval_s: seconds between two exports of metrics.

    Raises:
        ConfigError: the packages are not installed, or the headers cannot be read.
    """

    def __init__(
        self, endpoint: str, *, headers: str = "", service: str, metric_interval_s: float = 30.0
    ) -> None:
        if importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is None:
            raise ConfigError("--otlp-endpoint needs the extra `otel`: pip install 'patina[otel]'")
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        base, sent = endpoint.rstrip("/"), read_headers(headers)
        resource = Resource.create(
            {"service.name": f"patina-{service}", "service.namespace": "patina", "service.version": VERSION}
        )
        self._spans = TracerProvider(resource=resource)
        self._queue = BatchSpanProcessor(OTLPSpanExporter(f"{base}/v1/traces", headers=sent))
        self._spans.add_span_processor(self._queue)
        self._scope = InstrumentationScope("patina", VERSION)
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(f"{base}/v1/metrics", headers=sent),
            export_interval_millis=metric_interval_s * 1000,
        )
        self._metrics = MeterProvider(
            resource=resource, metric_readers=[reader], exemplar_filter=AlwaysOffExemplarFilter()
        )
        self._tracer = self._spans.get_tracer("patina", VERSION)
        meter = self._metrics.get_meter("patina", VERSION)
        self._duration = meter.create_histogram(
            "gen_ai.server.request.duration", "s", explicit_bucket_boundaries_advisory=DURATION_BUCKETS
        )
        self._first_token = meter.create_histogram(
            "gen_ai.server.time_to_first_token", "s", explicit_bucket_boundaries_advisory=FIRST_TOKEN_BUCKETS
        )
        self._output_token = meter.create_histogram(
            "gen_ai.server.time_per_output_token",
            "s",
            explicit_bucket_boundaries_advisory=OUTPUT_TOKEN_BUCKETS,
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", explicit_bucket_boundaries_advisory=TOKEN_BUCKETS
        )

    def exchange(self, seen: ExchangeObservation) -> None:
        """Send the span and the measurements of one exchange."""
        self._send_span(seen)
        common = {
            "gen_ai.operation.name": seen.operation,
            "gen_ai.provider.name": _PROVIDER,
            "gen_ai.request.model": seen.policy,
        }
        failed = {"error.type": seen.error} if seen.error else {}
        self._duration.record(max(0.0, seen.finished_at - seen.created_at), {**common, **failed})
        if seen.is_streamed and seen.first_chunk_at is not None:
            self._first_token.record(max(0.0, seen.first_chunk_at - seen.created_at), common)
        if (output_token := seen.output_token_s) is not None:
            self._output_token.record(output_token, common)
        self._tokens.record(seen.input_tokens, {**common, "gen_ai.token.type": "input"})
        self._tokens.record(seen.output_tokens, {**common, "gen_ai.token.type": "output"})

    def _send_span(self, seen: ExchangeObservation) -> None:
        """Queue the span of an exchange. It has ended, so that it needs no lock, sampler or checked attributes of a span that runs."""
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
        from opentelemetry.trace import get_current_span as span_of
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent: SpanContext | None = None
        if seen.traceparent:
            context = TraceContextTextMapPropagator().extract({"traceparent": seen.traceparent})
            found = span_of(context).get_span_context()
            if found.is_valid:
                parent = found
        if parent is not None and not parent.trace_flags.sampled:
            return
        ids = self._spans.id_generator
        trace_id = parent.trace_id if parent is not None else ids.generate_trace_id()
        span = ReadableSpan(
            f"{seen.operation} {seen.policy}",
            context=SpanContext(trace_id, ids.generate_span_id(), False, TraceFlags(TraceFlags.SAMPLED)),
            parent=parent,
            resource=self._spans.resource,
            attributes=_attributes_of(seen),
            kind=SpanKind.SERVER,
            instrumentation_scope=self._scope,
            status=Status(StatusCode.ERROR, seen.error) if seen.error else Status(),
            start_time=int(seen.created_at * _NS),
            end_time=int(max(seen.created_at, seen.finished_at) * _NS),
        )
        self._queue.on_end(span)

    def verdict(
        self,
        *,
        turn_id: str,
        response_id: str,
        conversation: str,
        value: int | None,
        source: str,
        explanation: str,
    ) -> None:
        """Send a verdict as a span with the event `gen_ai.evaluation.result`.

        Args:
            response_id: id of the completion, or "".
            explanation: the hint, where the content may be exported, else "".
        """
        names = {
            "patina.turn.id": turn_id,
            "gen_ai.response.id": response_id or turn_id,
            "gen_ai.conversation.id": conversation,
        }
        span = self._tracer.start_span("evaluate", attributes={"gen_ai.operation.name": "evaluate", **names})
        result: dict[str, Any] = {
            **names,
            "gen_ai.evaluation.name": "reaction",
            "gen_ai.evaluation.score.label": _LABELS[value],
            "patina.verdict.source": source,
        }
        if value is not None:
            result["gen_ai.evaluation.score.value"] = float(value)
        if explanation:
            result["gen_ai.evaluation.explanation"] = explanation
        span.add_event("gen_ai.evaluation.result", result)
        span.end()

    def version(
        self,
        *,
        policy: str,
        version: int,
        method: str,
        started_at: float,
        ended_at: float,
        error: str,
        phases: Mapping[str, float],
    ) -> None:
        """Send a training step as a span, with a span for each phase.

        Args:
            version: 0: the step made none.
            phases: seconds by name, in the order in which they ran; the last ended with the step.
        """
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        span = self._tracer.start_span(
            f"train {policy}",
            attributes={
                "gen_ai.operation.name": "train",
                "patina.policy": policy,
                "patina.version": version,
                "patina.method": method,
            },
            start_time=int(started_at * _NS),
        )
        at = ended_at - sum(phases.values())
        for name, seconds in phases.items():
            inner = self._tracer.start_span(
                name, context=set_span_in_context(span), start_time=int(max(started_at, at) * _NS)
            )
            at += seconds
            inner.end(int(max(started_at, at) * _NS))
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(int(ended_at * _NS))

    def close(self) -> None:
        """Send what waits, and stop; takes some seconds where the endpoint does not answer."""
        self._spans.shutdown()
        self._metrics.shutdown(timeout_millis=5_000)


_LABELS = {1: "good", 0: "neutral", -1: "bad", None: "abstained"}


def _attributes_of(seen: ExchangeObservation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "gen_ai.operation.name": seen.operation,
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.request.model": seen.policy,
        "gen_ai.response.model": seen.served_model,
        "gen_ai.response.id": seen.response_id or seen.turn_id,
        "gen_ai.conversation.id": seen.conversation,
        "gen_ai.usage.input_tokens": seen.input_tokens,
        "gen_ai.usage.output_tokens": seen.output_tokens,
        "gen_ai.response.finish_reasons": list(seen.finish_reasons),
        "gen_ai.request.temperature": seen.temperature,
        "http.response.status_code": seen.status_code,
        "patina.turn.id": seen.turn_id,
        "patina.turn.kind": seen.kind,
        "patina.client": seen.client,
    }
    optional = {
        "gen_ai.request.max_tokens": seen.max_tokens,
        "error.type": seen.error or None,
        "gen_ai.input.messages": seen.input_messages or None,
        "gen_ai.output.messages": seen.output_text or None,
        "patina.overhead_s": seen.overhead_s,
    }
    return {**found, **{name: value for name, value in optional.items() if value is not None}}


def read_headers(text: str) -> dict[str, str]:
    """Return headers written as `name=value,name=value` (values percent-encoded). Raises: ConfigError."""
    found = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set otlp_headers: {part!r} is not name=value")
        found[name.strip().lower()] = unquote(value.strip())
    return found
