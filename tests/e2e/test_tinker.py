"""The whole loop with a Tinker server, as a person starts it: `run.py --backend tinker --method combine`, the built-in model, the openai SDK."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from store.settings import BUILTIN_FOLDER, REPOSITORY, child_environment
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
        return TinkerServer(BUILTIN_FOLDER, folder)
    python = skyrl_python()
    assert python is not None
    return SkyrlServer(python, BUILTIN_FOLDER, folder, slots=16)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_complaints_make_versions_live_on_tinker_and_a_rollback_takes_one_back(
    kind: str, tmp_path: Path
) -> None:
    server = server_of(kind, tmp_path)
    try:
        server.start()
        done = subprocess.run(
            [
                sys.executable, "-m", "bench.loop", "--backend", "tinker", "--tinker-base-url", server.url,
                "--patience-s", "1100",
            ],
            cwd=REPOSITORY,
            env=child_environment(),
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
    finally:
        server.stop()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    base, first, second = found["versions"]
    assert (base, found["rolled_back_to"]) == (0, first)
    assert first < second
    assert found["same_as_before"] is True
