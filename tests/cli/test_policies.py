"""The commands speak of one policy: the one that is named, or the only one that there is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import main
from store.keys import KeyFile
from store.record import Record
from store.values import AdapterState, AdapterVersion, StepReport
from tests.cli.test_commands import POLICY, fill


async def publish(record: Record, policy: str, version: int) -> None:
    adapter = AdapterVersion(
        policy=policy, version=version, path=f"/adapters/{policy}", content_hash="0" * 64, parent_version=version - 1,
        state=AdapterState.PUBLISHED, reason=f"of {policy}", method="combine", metrics={}, created_at=2_000.0,
    )  # fmt: skip
    step = StepReport(
        step_id=f"{policy}{version}", policy=policy, method="combine", started_at=1.0, finished_at=2.0, version=version,
        error=None, metrics={},
    )  # fmt: skip
    await record.publish(adapter, [], step, worker="w")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home in which two keys of three have versions."""
    file = KeyFile(tmp_path / "keys.json")
    for name in ("ann", "bob"):
        file.add(name)
    file.add("cai", adapter="")

    async def versions(record: Record) -> None:
        for policy, version in ((f"{POLICY}.ann", 1), (f"{POLICY}.ann", 2), (f"{POLICY}.bob", 1)):
            await publish(record, policy, version)

    fill(tmp_path, versions)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], home: Path, *argv: str, code: int = 0) -> str:
    assert main([*argv, "--home", str(home)]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def live(capsys: pytest.CaptureFixture[str], home: Path, *argv: str) -> tuple[str, int]:
    shown = json.loads(said(capsys, home, "versions", "--json", *argv))
    return shown["policy"].removeprefix(f"{POLICY}."), shown["live"]


def test_a_policy_is_named_by_its_name_its_group_or_a_key(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for named in (
        ("--policy", "ann"),
        ("--policy", f"{POLICY}.ann"),
        ("--policy", f"{POLICY}:ann"),
        ("--key", "ann"),
    ):
        assert live(capsys, home, *named) == ("ann", 2)
    assert live(capsys, home, "--key", "cai") == live(capsys, home, "--key", "default") == (POLICY, 0)
    assert live(capsys, home) == (POLICY, 0)  # two others have versions: none of them is meant
    assert "no key named eve" in said(capsys, home, "versions", "--key", "eve", code=2)
    assert "is no policy" in said(capsys, home, "versions", "--policy", "a b", code=2)


def test_without_a_name_the_only_policy_with_versions_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def one(record: Record) -> None:
        await publish(record, f"{POLICY}.ann", 1)

    fill(tmp_path, one)
    assert live(capsys, tmp_path) == ("ann", 1)
    assert f"{POLICY}.ann@1: published" in said(capsys, tmp_path, "why", "1")
    assert "There is no wish" in said(capsys, tmp_path, "wishes")

    async def two(record: Record) -> None:
        await publish(record, POLICY, 1)

    fill(tmp_path, two)
    assert live(capsys, tmp_path) == (POLICY, 1)


def test_rollback_and_why_concern_one_policy(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{POLICY}.ann@1 is live" in said(capsys, home, "rollback", "1", "--key", "ann")
    assert live(capsys, home, "--key", "ann") == ("ann", 1)
    assert live(capsys, home, "--key", "bob") == ("bob", 1)
    assert f"{POLICY}.bob has no version 2" in said(capsys, home, "why", "2", "--policy", "bob", code=2)
    assert f"of {POLICY}.bob" in said(capsys, home, "why", "1", "--policy", "bob")


def test_one_policy_is_paused_or_all(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"training of {POLICY}.ann is paused" in said(capsys, home, "pause", "--key", "ann")
    status = json.loads(said(capsys, home, "status", "--json"))
    assert (status["training"], status["paused"]) == ("running", [f"{POLICY}.ann"])
    assert f"paused: {POLICY}.ann" in said(capsys, home, "status")
    said(capsys, home, "pause")
    assert "all training is paused" in said(capsys, home, "resume", "--key", "ann")
    said(capsys, home, "resume")
    status = json.loads(said(capsys, home, "status", "--json"))
    assert (status["training"], status["paused"]) == ("running", [])


def test_status_of_one_policy_counts_only_what_is_its_own(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = json.loads(said(capsys, home, "status", "--json"))
    hers = json.loads(said(capsys, home, "status", "--json", "--key", "ann"))
    assert (everything["versions"], hers["versions"]) == ({"published": 3}, {"published": 2})
    assert hers["live"] == {f"{POLICY}.ann": 2}
