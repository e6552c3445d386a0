"""The whole loop with a Tinker server, as a person starts it: `run.py --backend tinker --method combine`, the test model, the openai SDK."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_engine_loop import go_round
from tests.fixtures import PATINA_TINY
from tests.tinker.running import SkyrlServer, TinkerServer, missing_skyrl, skyrl_python

KINDS = [
    "ours",
    pytest.param(
        "skyrl",
        marks=[
            pytest.mark.tinker,
            pytest.mark.skipif(bool(missing_skyrl()), reason=f"no SkyRL here: {missing_skyrl()}"),
        ],
    ),
]


def server_of(kind: str, folder: Path) -> TinkerServer | SkyrlServer:
    if kind == "ours":
        return TinkerServer(PATINA_TINY, folder)
    python = skyrl_python()
    assert python is not None
    return SkyrlServer(python, PATINA_TINY, folder, slots=16)


@pytest.mark.long_run
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_complaints_make_versions_live_on_tinker_and_a_rollback_takes_one_back(
    kind: str, tmp_path: Path
) -> None:
    server = server_of(kind, tmp_path)
    try:
        server.start()
        # With the usual 40 samples SkyRL on a CPU takes over 1,100 s for a version: few of them show the same path.
        go_round(
            "--backend", "tinker", "--tinker-base-url", server.url, "--patience-s", "1100", "--learning", "samples=8,anchors=4,passes=1",
        )  # fmt: skip
    finally:
        server.stop()
        print(server.log_tail())  # pytest shows it when the test fails
