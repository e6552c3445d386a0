"""Prometheus metrics of learning, read from the record when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from store.values import Json, LearningMetrics, RecordStatus

_PHASES = {"teach_s": "teach", "train_s": "train", "gate_s": "gate"}
#: Counters of a gateway's heartbeat, and what each counts.
_GATEWAY_COUNTERS = {
    "passed_through": "Requests that were forwarded and not recorded.",
    "unfinished": "Replies whose client disconnected.",
    "unrecorded": "Requests that could not be recorded.",
    "busy": "Requests that were refused because too many large ones were in flight.",
    "upstream_errors": "Errors of the backend.",
}
#: Counters of a gateway's adapter alias.
_ADAPTER_COUNTERS = {
    "cold_loads": "Versions that were loaded because a request asked for them.",
    "refused": "Requests for which no adapter slot got free in time.",
    "by_base": "Requests that the base model answered because the live version cannot be loaded.",
}
#: Fields of the recorder's state, with name and meaning.
_RECORDER = {
    "lag_turns": ("patina_store_lag_turns", "Journal entries that are not recorded."),
    "lag_s": ("patina_store_lag_seconds", "Age of the oldest journal entry that is not recorded."),
    "rejected": ("patina_store_rejected_entries", "Journal entries that can never be recorded."),
}


def render_metrics(
    status: RecordStatus, learning: LearningMetrics, recorder: Json | None, files: Iterable[Path], now: float
) -> bytes:
    """Return the page `/metrics` in Prometheus' text format.

    Args:
        recorder: its newest state (`store.catch_up.read_recorder_state`); None: there is none.
        files: metrics that other processes wrote; a missing one is left out.
        now: Unix time, seconds.
    """
    registry = CollectorRegistry()
    registry.register(_RecordCollector(status, learning, recorder or {}, now))
    parts = [generate_latest(registry)]
    for path in files:
        try:
            parts.append(path.read_bytes())
        except FileNotFoundError:
            continue
    return b"".join(parts)


class _RecordCollector(Collector):
    def __init__(self, status: RecordStatus, learning: LearningMetrics, recorder: Json, now: float) -> None:
        self._status, self._learning, self._recorder, self._now = status, learning, recorder, now
        self._damaged = 0  # values that no metric can show

    def collect(self) -> Iterable[Metric]:
        status = self._status
        yield self._gauges("patina_turns", "Recorded turns by kind.", "kind", status.kinds)
        yield self._gauges("patina_turn_stage", "Main turns by stage.", "stage", status.stages)
        yield self._gauges("patina_dropped", "Dropped main turns by reason.", "reason", status.drop_reasons)
        yield self._gauges("patina_versions", "Adapter versions by state.", "state", status.versions)
        yield self._gauges("patina_live_version", "The version that serves.", "policy", status.live)
        yield self._gauges(
            "patina_training_paused", "1: training is paused.", "policy",
            {"": int(status.training != "running"), **dict.fromkeys(status.paused, 1)},
        )  # fmt: skip
        yield self._gauges(
            "patina_feedback_to_live_seconds",
            "Seconds from the newest feedback in the live version until it went live.",
            "policy",
            self._learning.feedback_to_live_s,
        )
        yield self._gauges(
            "patina_canary_releases", "Canary releases by stage.", "stage", self._learning.releases
        )
        stored = [beat.detail for beat in status.heartbeats] + [one.metrics for one in self._learning.newest]
        self._damaged += sum("unreadable" in one for one in stored)
        yield self._verdicts()
        yield from self._version_metrics()
        yield from self._process_metrics()
        yield from self._gateway_metrics()
        for field, (name, help) in _RECORDER.items():
            if isinstance(value := self._recorder.get(field), int | float):
                yield GaugeMetricFamily(name, help, value=value)
        yield GaugeMetricFamily(
            "patina_damaged_values",
            "Damaged values of the record, which the other metrics leave out.",
            value=self._damaged,
        )

    def _numbers(self, values: Iterable[object]) -> Iterator[float]:
        """Yield the finite numbers among the values and count the others."""
        for value in values:
            if isinstance(value, int | float) and math.isfinite(value):
                yield value
            else:
                self._damaged += 1

    def _object(self, value: object) -> Json:
        """Return a JSON object; an empty one for None and, counted, for what is none."""
        if isinstance(value, dict):
            return value
        self._damaged += value is not None
        return {}

    def _add(self, family: Metric, labels: Sequence[str], value: object) -> None:
        """Add a sample, unless its value is damaged."""
        for number in self._numbers([value]):
            family.add_metric(labels, number)  # type: ignore[attr-defined]

    def _gauges(self, name: str, help: str, label: str, values: Mapping[str, Any]) -> Metric:
        family = GaugeMetricFamily(name, help, labels=(label,))
        for key, value in values.items():
            self._add(family, (key,), value)
        return family

    def _verdicts(self) -> Metric:
        family = GaugeMetricFamily(
            "patina_verdicts", "Verdicts by value and source.", labels=("value", "source")
        )
        counts: Mapping[Any, int] = self._learning.verdicts  # a damaged value is no number
        for (value, source), count in counts.items():
            if value is None or isinstance(value, int | float):
                family.add_metric(("abstained" if value is None else str(value), source), count)
            else:
                self._damaged += count
        return family

    def _version_metrics(self) -> Iterable[Metric]:
        phases = GaugeMetricFamily(
            "patina_step_seconds", "Seconds of each phase of the newest version.", labels=("policy", "phase")
        )
        gate = GaugeMetricFamily(
            "patina_gate", "Measures of the gate for the newest version.", labels=("policy", "measure")
        )
        for version in self._learning.newest:
            for name, phase in _PHASES.items():
                if isinstance(seconds := version.metrics.get(name), int | float):
                    phases.add_metric((version.policy, phase), seconds)
            after = self._object(self._object(version.metrics.get("gate")).get("after"))
            for name, value in after.items():
                if isinstance(value, int | float):
                    gate.add_metric((version.policy, name), float(value))
        yield from (phases, gate)

    def _process_metrics(self) -> Iterable[Metric]:
        age = GaugeMetricFamily(
            "patina_process_heartbeat_age_seconds",
            "Age of a process's newest heartbeat.",
            labels=("process",),
        )
        restarts = CounterMetricFamily(
            "patina_process_restarts", "Restarts by the supervisor.", labels=("process",)
        )
        for beat in self._status.heartbeats:
            for at in self._numbers([beat.at]):
                age.add_metric((beat.process,), max(0.0, self._now - at))
            if beat.process == "supervisor":
                for name, one in beat.detail.items():
                    if isinstance(one, dict) and "restarts" in one:
                        self._add(restarts, (str(name),), one["restarts"])
        yield from (age, restarts)

    def _gateway_metrics(self) -> Iterable[Metric]:
        gateways = [beat for beat in self._status.heartbeats if beat.process.startswith("proxy")]
        details = [beat.detail for beat in gateways]
        backends = [self._object(detail.get("backend")) for detail in details]
        yield self._sum(GaugeMetricFamily, "patina_in_flight", "Requests in flight.", details, "in_flight")
        for name, help in _GATEWAY_COUNTERS.items():
            yield self._sum(CounterMetricFamily, f"patina_{name}", help, details, name)
        not_captured: dict[str, float] = {}
        for detail in details:
            for reason, value in self._object(detail.get("not_captured")).items():
                for count in self._numbers([value]):
                    not_captured[reason] = not_captured.get(reason, 0) + count
        found = CounterMetricFamily(
            "patina_not_captured", "Requests that could not be captured, by reason.", labels=("reason",)
        )
        for reason, count in sorted(not_captured.items()):
            found.add_metric((reason,), count)
        yield found
        journals = [self._object(detail.get("journal")) for detail in details]
        yield self._sum(
            CounterMetricFamily,
            "patina_lost_turns",
            "Turns that neither journal nor memory could take.",
            journals,
            "lost",
        )
        yield self._gauges(
            "patina_swap_seconds",
            "Seconds in which a gateway loaded the newest version into the backend (the slowest gateway).",
            "policy",
            self._swap_seconds(backends),
        )
        for name, help in _ADAPTER_COUNTERS.items():
            yield self._sum(CounterMetricFamily, f"patina_adapter_{name}", help, backends, name)
        yield self._sum(
            GaugeMetricFamily,
            "patina_held",
            "Requests that wait for a version or the device.",
            backends,
            "held",
        )

    def _sum(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        help: str,
        parts: Iterable[Json],
        field: str,
    ) -> Metric:
        return kind(name, help, value=sum(self._numbers(part.get(field, 0) for part in parts)))

    def _swap_seconds(self, backends: Iterable[Json]) -> dict[str, float]:
        """Return the seconds of loading each policy's newest version (loads are named policy@version)."""
        newest: dict[str, tuple[int, float]] = {}
        for backend in backends:
            for name, value in self._object(backend.get("load_s")).items():
                policy, _, version = name.rpartition("@")
                for seconds in self._numbers([value if version.isdecimal() else None]):
                    newest[policy] = max(newest.get(policy, (0, 0.0)), (int(version), seconds))
        return {policy: seconds for policy, (_, seconds) in sorted(newest.items())}
