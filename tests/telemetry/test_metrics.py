"""What `/metrics` shows of exchanges and of the record, read back by Prometheus' own parser."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from recorder.telemetry import RecorderTelemetry, observation_of
from recorder.turn_recorder import TurnRecorder
from recorder.turns import ClassifiedExchange
from store.lifecycle import DropReason
from store.record import Record
from store.values import Heartbeat, LearningMetrics, NewTurn
from telemetry.record_metrics import render_metrics
from telemetry.request_metrics import OTHER, RequestMetrics, client_family
from tests.dashboard.conftest import fill
from tests.recorder.exchanges import make_exchange, user
from tests.store.queries.test_canary import publish


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text: str, name: str, **labels: str) -> float:
    return samples(text)[name, frozenset(labels.items())]


TIMES: Mapping[str, float] = {
    "created_at": 100.0,
    "sent_at": 100.002,
    "first_chunk_at": 100.25,
    "backend_ended_at": 101.0,
    "finished_at": 101.003,
}


async def write_one(record: Record, **changes: object) -> tuple[ClassifiedExchange, NewTurn]:
    written: list[tuple[ClassifiedExchange, NewTurn]] = []

    async def opened() -> Record:
        return record

    recorder = TurnRecorder(opened, on_written=lambda *pair: written.append(pair))
    await recorder.write([make_exchange("a", [user("secret words")], "secret reply", **changes)])  # type: ignore[arg-type]
    ((captured, turn),) = written
    return captured, turn


async def test_a_written_exchange_is_counted_with_its_times_and_tokens(
    record: Record, tmp_path: Path
) -> None:
    captured, turn = await write_one(record, streamed=True, client="openclaw/1.2", **TIMES)
    telemetry = RecorderTelemetry(tmp_path / "metrics.prom")
    telemetry.observe(captured, turn)
    telemetry.close()
    text = (tmp_path / "metrics.prom").read_text()
    assert (
        value(text, "patina_requests_total", kind="main", client="openclaw", status="200", stream="true") == 1
    )
    model = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "tiny"}
    name = "gen_ai_server_request_duration_seconds_sum"
    assert value(text, name, **model, error_type="") == pytest.approx(1.003)
    assert value(text, "gen_ai_server_time_to_first_token_seconds_sum", **model) == pytest.approx(0.25)
    assert value(text, "gen_ai_client_token_usage_sum", **model, gen_ai_token_type="output") == 1
    assert value(text, "patina_overhead_seconds_sum") == pytest.approx(0.005)
    assert "secret" not in text
    assert turn.session_id not in text


async def test_a_failed_exchange_has_its_error_and_no_overhead(record: Record) -> None:
    fault = (DropReason.UPSTREAM_ERROR, "the backend answered 500")
    captured, turn = await write_one(record, fault=fault, status_code=500)
    seen = observation_of(captured, turn)
    assert (seen.error, seen.status_code, seen.overhead_s) == ("upstream_error", 500, None)
    assert (seen.input_messages, seen.output_text) == ("", "")
    assert "secret words" in observation_of(captured, turn, with_content=True).input_messages


async def test_the_time_of_a_token_after_the_first_is_that_of_streamed_replies_of_several(
    record: Record,
) -> None:
    seen = observation_of(*await write_one(record, streamed=True, **TIMES))
    assert seen.output_token_s is None
    several = replace(seen, output_tokens=4)
    assert several.output_token_s == pytest.approx(0.251)
    assert replace(several, is_streamed=False).output_token_s is None
    metrics = RequestMetrics()
    metrics.observe(several)
    model = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "tiny"}
    name = "gen_ai_server_time_per_output_token_seconds_sum"
    assert metrics.registry.get_sample_value(name, model) == pytest.approx(0.251)


async def test_clients_beyond_the_bound_share_a_label(record: Record) -> None:
    seen = observation_of(*await write_one(record))
    metrics = RequestMetrics()
    for i in range(40):
        metrics.observe(replace(seen, client=f"client{i}/1.0"))
    names = {
        sample.labels["client"]
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "patina_requests_total"
    }
    assert len(names) == 31
    assert OTHER in names
    assert client_family("  ") == "unknown"


async def test_a_file_that_cannot_be_written_stops_nothing_and_is_written_later(
    record: Record, tmp_path: Path
) -> None:
    file = tmp_path / "missing" / "metrics.prom"
    telemetry = RecorderTelemetry(file)
    telemetry.observe(*await write_one(record))
    await telemetry.tick(record)
    file.parent.mkdir()
    await tick_again(telemetry, record)
    assert "patina_requests_total" in file.read_text()


async def test_the_file_is_written_again_only_after_another_exchange(record: Record, tmp_path: Path) -> None:
    file = tmp_path / "metrics.prom"
    telemetry = RecorderTelemetry(file)
    await telemetry.tick(record)
    first = file.stat()
    await tick_again(telemetry, record)
    assert file.stat() == first
    telemetry.observe(*await write_one(record))
    await tick_again(telemetry, record)
    assert file.stat().st_size > first.st_size


async def tick_again(telemetry: RecorderTelemetry, record: Record) -> None:
    telemetry._written_at = -math.inf
    await telemetry.tick(record)


async def test_the_page_shows_turns_verdicts_versions_gate_and_processes(
    record: Record, tmp_path: Path
) -> None:
    await fill(record)
    gateway = {"in_flight": 2, "passed_through": 3, "not_captured": {"no JSON": 1}, "journal": {"lost": 0}}
    slow = {"patina-tiny@9": 9.0, "patina-tiny@10": 0.5, "patina-tiny.ann@2": 1.5}
    for name, loads in (("proxy", slow), ("proxy-2", {"patina-tiny@10": 0.25})):
        await record.heartbeat(
            Heartbeat(
                process=name,
                pid=1,
                state="running",
                detail={**gateway, "backend": {"held": 1, "load_s": loads}},
                at=2_000.0,
            )
        )
    detail = {"scorer": {"pid": 1, "restarts": 4}}
    await record.heartbeat(Heartbeat(process="supervisor", pid=1, state="running", detail=detail, at=2_000.0))
    (tmp_path / "metrics.prom").write_text("# TYPE other gauge\nother 7.0\n")
    text = render_metrics(
        await record.status(),
        await record.learning_metrics(),
        {"lag_turns": 5, "lag_s": 1.5, "rejected": 0},
        [tmp_path / "metrics.prom", tmp_path / "missing.prom"],
        2_010.0,
    ).decode()
    assert value(text, "patina_turns", kind="main") == 3
    assert value(text, "patina_turn_stage", stage="trained") == 1
    assert value(text, "patina_verdicts", value="-1", source="rule:complaint") == 1
    assert value(text, "patina_live_version", policy="patina-tiny") == 1
    assert value(text, "patina_gate", policy="patina-tiny", measure="facts") == 1
    assert value(text, "patina_step_seconds", policy="patina-tiny", phase="train") == 2.0
    assert value(text, "patina_feedback_to_live_seconds", policy="patina-tiny") > 0
    assert value(text, "patina_store_lag_turns") == 5
    assert value(text, "patina_in_flight") == 4
    assert value(text, "patina_held") == 2
    assert value(text, "patina_swap_seconds", policy="patina-tiny") == 0.5
    assert value(text, "patina_swap_seconds", policy="patina-tiny.ann") == 1.5
    assert value(text, "patina_passed_through_total") == 6
    assert value(text, "patina_not_captured_total", reason="no JSON") == 2
    assert value(text, "patina_process_restarts_total", process="scorer") == 4
    assert value(text, "patina_process_heartbeat_age_seconds", process="proxy") == 10
    assert value(text, "other") == 7
    assert "bob's secret" not in text
    assert "session" not in text


async def test_an_empty_record_gives_a_valid_page(record: Record) -> None:
    learning = await record.learning_metrics()
    assert learning == LearningMetrics(verdicts={}, newest=(), feedback_to_live_s={}, releases={})
    text = render_metrics(await record.status(), learning, None, [], 1.0).decode()
    assert value(text, "patina_in_flight") == 0


async def test_canary_releases_are_counted_by_stage(record: Record) -> None:
    await publish(record, 1)
    await publish(record, 2, share=0.5)
    text = render_metrics(await record.status(), await record.learning_metrics(), None, [], 1.0).decode()
    assert value(text, "patina_canary_releases", stage="running") == 1
