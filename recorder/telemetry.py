"""What the recorder measures: each exchange that it wrote, and the verdicts and steps that came into the record meanwhile."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import orjson

from recorder.turns import ClassifiedExchange
from store.errors import RecordError
from store.record import Record
from store.values import NewTurn, adapter_name
from telemetry.observation import ExchangeObservation
from telemetry.otlp import OtlpExporter
from telemetry.request_metrics import RequestMetrics

log = logging.getLogger(__name__)

_INTERVAL_S = 4.0
_PHASES = ("teach", "train", "gate")


class RecorderTelemetry:
    """Metrics of the exchanges in a file, and spans where an endpoint is set.

    Args:
        file: where the metrics are written.
        exporter: sends spans; None: no endpoint is set.
        with_content: export the text of messages and replies as well.
    """

    def __init__(
        self, file: Path, exporter: OtlpExporter | None = None, *, with_content: bool = False
    ) -> None:
        self._file = file
        self._exporter = exporter
        self._with_content = with_content
        self._metrics = RequestMetrics()
        self._written_at = 0.0
        self._is_written = False
        self._after_verdict: int | None = None  # the newest verdict that was exported
        self._after_step = time.time()

    def observe(self, captured: ClassifiedExchange, turn: NewTurn) -> None:
        """Count an exchange that was written."""
        seen = observation_of(captured, turn, with_content=self._with_content)
        self._metrics.observe(seen)
        self._is_written = False
        if self._exporter is not None:
            self._exporter.exchange(seen)

    async def tick(self, record: Record | None) -> None:
        """Write the file and export what is new in the record; does nothing within some seconds of the last time."""
        now = time.monotonic()
        if now - self._written_at < _INTERVAL_S:
            return
        self._written_at = now
        if (
            not self._is_written
        ):  # a file in the record's folder wakes every process that waits for the record
            self._is_written = self._metrics.write(self._file)
        if self._exporter is not None and record is not None:
            try:
                await self._export_learning(record, self._exporter)
            except RecordError as exc:
                log.warning("verdicts and steps are exported later: %s", exc)

    async def _export_learning(self, record: Record, exporter: OtlpExporter) -> None:
        verdicts = await record.verdicts_after(self._after_verdict)
        if self._after_verdict is None:  # what was judged before this process began is not new
            self._after_verdict = max((one.verdict_id for one in verdicts), default=0)
            verdicts = []
        for one in verdicts:
            exporter.verdict(
                turn_id=one.turn_id,
                response_id=one.completion_id or "",
                conversation=one.session_id,
                value=one.value,
                source=one.source,
                explanation=one.hint if self._with_content else "",
            )
            self._after_verdict = one.verdict_id
        for step in await record.steps_finished_after(self._after_step):
            ended_at = step.finished_at or step.started_at
            exporter.version(
                policy=step.policy,
                version=step.version or 0,
                method=step.method,
                started_at=step.started_at,
                ended_at=ended_at,
                error=step.error or "",
                phases={
                    name: float(step.metrics[f"{name}_s"]) for name in _PHASES if f"{name}_s" in step.metrics
                },
            )
            self._after_step = max(self._after_step, ended_at)

    def close(self) -> None:
        """Write the file a last time and send what waits."""
        self._metrics.write(self._file)
        if self._exporter is not None:
            self._exporter.close()


def observation_of(
    captured: ClassifiedExchange, turn: NewTurn, *, with_content: bool = False
) -> ExchangeObservation:
    """Return what is measured of an exchange; ``turn`` is its first choice."""
    usage = captured.reply.usage or {}
    completions = captured.reply.completions
    fault = captured.fault
    max_tokens = captured.chat.body.get("max_completion_tokens", captured.chat.body.get("max_tokens"))
    version = captured.adapter_version
    return ExchangeObservation(
        turn_id=captured.turn_id,
        response_id=captured.reply.completion_id or "",
        conversation=turn.session_id,
        kind=turn.kind.value,
        client=captured.client,
        operation="text_completion" if captured.chat.is_completion else "chat",
        policy=captured.policy,
        served_model=adapter_name(captured.policy, version) if version else captured.policy,
        status_code=captured.status_code,
        is_streamed=captured.streamed,
        created_at=captured.created_at,
        finished_at=captured.finished_at,
        sent_at=captured.sent_at,
        first_chunk_at=captured.first_chunk_at,
        backend_ended_at=captured.backend_ended_at,
        input_tokens=_count(usage.get("prompt_tokens"), len(captured.reply.prompt_token_ids)),
        output_tokens=_count(usage.get("completion_tokens"), sum(len(one.token_ids) for one in completions)),
        finish_reasons=tuple(one.finish_reason for one in completions if one.finish_reason),
        temperature=captured.temperature,
        max_tokens=max_tokens if isinstance(max_tokens, int) else None,
        traceparent=captured.traceparent,
        error=fault[0].value if fault is not None else "",
        input_messages=orjson.dumps(captured.chat.messages).decode() if with_content else "",
        output_text=orjson.dumps([one.text for one in completions]).decode() if with_content else "",
    )


def _count(reported: object, counted: int) -> int:
    return reported if isinstance(reported, int) and reported >= 0 else counted
