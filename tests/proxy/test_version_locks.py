"""Versions that several gateways use: none is unloaded under another gateway's requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from proxy.version_locks import VersionLocks
from store.settings import REPOSITORY


def test_a_version_that_another_gateway_holds_cannot_be_claimed(tmp_path: Path) -> None:
    one, two = VersionLocks(tmp_path), VersionLocks(tmp_path)
    assert one.hold("tiny@3")
    assert two.hold("tiny@3")  # shared
    one.release_unused(set())
    assert one.claim("tiny@3") is None
    two.release_unused({"tiny@4"})
    claim = one.claim("tiny@3")
    assert claim is not None
    assert not two.hold("tiny@3")  # it is being unloaded
    one.free(claim)
    assert two.hold("tiny@3")


def test_versions_are_locked_one_by_one(tmp_path: Path) -> None:
    one, two = VersionLocks(tmp_path), VersionLocks(tmp_path)
    assert two.hold("tiny@3")
    assert two.hold("tiny@4")
    two.release_unused({"tiny@4"})
    claim = one.claim("tiny@3")
    assert claim is not None
    assert one.claim("tiny@4") is None


def test_a_gateway_that_dies_holds_nothing(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from proxy.version_locks import VersionLocks; "
        "locks = VersionLocks(Path(sys.argv[1])); assert locks.hold('tiny@3'); print('held', flush=True); os.read(0, 1)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        locks = VersionLocks(tmp_path)
        assert locks.claim("tiny@3") is None
        other.kill()
        other.wait(60)
    claim = locks.claim("tiny@3")
    assert claim is not None
    locks.free(claim)


def test_a_single_gateway_needs_no_files() -> None:
    locks = VersionLocks(None)
    assert locks.hold("tiny@3")
    claim = locks.claim("tiny@3")
    assert claim is not None
    locks.free(claim)
