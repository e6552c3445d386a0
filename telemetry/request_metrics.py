"""Prometheus metrics of recorded exchanges. The recorder keeps them and writes them to a file that `/metrics` includes."""

from __future__ import annotations

import logging
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, write_to_textfile

from telemetry.observation import ExchangeObservation

log = logging.getLogger(__name__)

#: Of OpenTelemetry's conventions, in seconds and tokens.
DURATION_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
OUTPUT_TOKEN_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
)  # fmt: skip
TOKEN_BUCKETS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
_OVERHEAD_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0,
)  # fmt: skip
#: Clients choose their names: so many get a label of their own.
_MAX_CLIENTS = 30
OTHER = "other"


def client_family(client: str) -> str:
    """Return the program's name without its version, at most 40 characters."""
    return client.partition("/")[0].strip()[:40] or "unknown"


class RequestMetrics:
    """Counters and histograms of exchanges, from the start of this process on."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._families: set[str] = set()
        model = ("gen_ai_operation_name", "gen_ai_request_model")
        self._requests = Counter(
            "patina_requests", "Recorded requests.", ("kind", "client", "status", "stream"), registry=self.registry
        )  # fmt: skip
        self._duration = Histogram(
            "gen_ai_server_request_duration_seconds",
            "Seconds from the request to the end of its reply.",
            (*model, "error_type"),
            buckets=DURATION_BUCKETS,
            registry=self.registry,
        )
        self._first_token = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "Seconds from the request to the first bytes of a streamed reply.",
            model,
            buckets=FIRST_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self._output_token = Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean seconds of a token after the first of a streamed reply.",
            model,
            buckets=OUTPUT_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self._tokens = Histogram(
            "gen_ai_client_token_usage",
            "Tokens of a request.",
            (*model, "gen_ai_token_type"),
            buckets=TOKEN_BUCKETS,
            registry=self.registry,
        )
        self._overhead = Histogram(
            "patina_overhead_seconds",
            "Seconds that Patina added to a request: its duration without the wait for the backend.",
            buckets=_OVERHEAD_BUCKETS,
            registry=self.registry,
        )

    def observe(self, seen: ExchangeObservation) -> None:
        """Count one exchange."""
        family = client_family(seen.client)
        if family not in self._families:
            if len(self._families) < _MAX_CLIENTS:
                self._families.add(family)
            else:
                family = OTHER
        stream = "true" if seen.is_streamed else "false"
        self._requests.labels(seen.kind, family, str(seen.status_code), stream).inc()
        model = (seen.operation, seen.policy)
        self._duration.labels(*model, seen.error).observe(max(0.0, seen.finished_at - seen.created_at))
        if seen.is_streamed and seen.first_chunk_at is not None:
            self._first_token.labels(*model).observe(max(0.0, seen.first_chunk_at - seen.created_at))
        if (output_token := seen.output_token_s) is not None:
            self._output_token.labels(*model).observe(output_token)
        self._tokens.labels(*model, "input").observe(seen.input_tokens)
        self._tokens.labels(*model, "output").observe(seen.output_tokens)
        if (overhead := seen.overhead_s) is not None:
            self._overhead.observe(overhead)

    def write(self, path: Path) -> bool:
        """Write the metrics to a file, at once; returns whether it was written. A failure is logged."""
        try:
            write_to_textfile(str(path), self.registry)
        except OSError as exc:
            log.warning("the metrics could not be written: %s", exc)
            return False
        return True
