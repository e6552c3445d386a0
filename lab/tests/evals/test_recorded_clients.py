"""Traffic of unmodified clients, labelled by hand before it was classified (lab/research/2026-11-25-reader.md)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cli.recorded_traffic import read_traffic, replay
from lab.evals.traffic_score import score
from wire.classify import WEIGHTS

FOLDER = Path(__file__).parents[3] / "tests" / "recorder" / "data" / "clients"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.jsonl")), ids=lambda path: path.stem)
def test_kinds_and_sessions_of_a_client_are_found(path: Path) -> None:
    rows = read_traffic(path)
    found = score(rows, asyncio.run(replay(rows, WEIGHTS)))
    assert found is not None
    assert found.accuracy >= 0.9
    assert found.main.f1 == 1.0
