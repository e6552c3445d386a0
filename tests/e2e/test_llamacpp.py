"""The whole loop on llama.cpp: two versions are learned and served, and a rollback answers as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.bench.loop import Loop
from lab.evals.stack import Stack
from serving.llamacpp.installation import INSTALL, is_installed
from store.settings import read_settings
from tests.fixtures import PATINA_TINY
from tests.gguf_model import write_gguf_model


@pytest.mark.long_run
@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.skipif(not is_installed(), reason=f"no llama.cpp here: {INSTALL}")
def test_the_loop_goes_round_and_back(tmp_path: Path) -> None:
    settings = {
        "backend": "llamacpp",
        "model_folder": str(PATINA_TINY),
        "model_gguf": str(write_gguf_model(PATINA_TINY, tmp_path / "model.gguf")),
        "batch_size": 6,
        "max_wait_s": 3.0,
    }
    with Stack(read_settings(settings), ready_s=300.0) as stack:
        found = Loop(stack, patience_s=600.0).run()
    base, first, second = found["versions"]
    assert (base, found["rolled_back_to"]) == (0, first)
    assert first < second
    assert found["same_as_before"] is True
    assert found["differs_between_versions"] is True
    assert found["engine"].startswith("patina-llamacpp")
