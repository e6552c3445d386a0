"""The command of docs/backends.md: the whole loop with a real vLLM, seen from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from store.settings import REPOSITORY, child_environment
from tests.contract.backends import missing_vllm, vllm_python

KINDS = [
    "embedded",
    pytest.param(
        "vllm",
        marks=[
            pytest.mark.vllm,
            pytest.mark.skipif(bool(missing_vllm()), reason=f"no vLLM here: {missing_vllm()}"),
        ],
    ),
]


def go_round(*flags: str) -> dict[str, Any]:
    """Run the command; returns what it tells once it has seen two versions live and a rollback."""
    done = subprocess.run(
        [sys.executable, "-m", "lab.bench.loop", *flags],
        cwd=REPOSITORY, env=child_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    base, first, second = found["versions"]
    assert (base, found["rolled_back_to"]) == (0, first)
    assert first < second
    assert found["same_as_before"] is True
    return found


@pytest.mark.long_run
@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("kind", KINDS)
def test_the_loop_goes_round_and_back(kind: str) -> None:
    python = [f"--set=vllm_python={vllm_python()}"] if kind == "vllm" and vllm_python() else []
    found = go_round("--backend", kind, *python)
    assert found["engine"].startswith("vLLM" if kind == "vllm" else "patina-embedded")
