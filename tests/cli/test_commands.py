"""The commands on a real record, through the same entry as a person's shell."""

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import datasets
import pytest

from cli.main import main
from migrations import upgrade
from serving.model_digests import digest_served_model
from store.lifecycle import DropReason
from store.manifest import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    MANIFEST,
    SIGNATURE,
    build_manifest,
    content_hash,
    digest_folder,
    hash_manifest,
)
from store.record import Record
from store.settings import read_settings
from store.signing import PRIVATE_FILE, read_signing_key
from store.values import AdapterState, AdapterVersion, Feedback, Heartbeat, Relation, StepReport
from store.version import COMMAND
from store.version_signature import sign_files
from tests.fixtures import PATINA_TINY
from tests.making import make_answer, make_turn, make_verdict

POLICY = "patina-tiny"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose record holds one trained turn, one that waits, and version 1 live."""
    folder = tmp_path / "home"
    fill(folder, _fill)
    return folder


def fill(home: Path, work: Callable[[Record], Awaitable[None]]) -> None:
    url = read_settings({"home": home}).database_url
    upgrade(url)

    async def run() -> None:
        record = await Record.open(url)
        await work(record)
        await record.close()

    asyncio.run(run())


REASON = '1 turn: 1 complaint; "shorter please"; facts are forgotten: 71%, base 100%'


async def _fill(record: Record) -> None:
    first = make_turn("turn-one", [{"role": "user", "content": "Capital of [France]?"}], text="**Paris** 🎉")
    second = make_turn(
        "turn-two",
        [
            *first.messages,
            {"role": "assistant", "content": "**Paris** 🎉"},
            {"role": "user", "content": "shorter"},
        ],
        parent_turn_id="turn-one",
        turn_index=1,
        relation=Relation.NEXT,
        created_at=1_005.0,
        next_state=make_answer("turn-one", "turn-two", "shorter"),
    )
    await record.write_turns([first, second])
    await record.add_verdict(make_verdict("turn-one"))
    await record.claim(POLICY, 1, worker="w", lease_s=60)
    version = AdapterVersion(
        policy=POLICY,
        version=1,
        path="/adapters/1",
        content_hash="0" * 64,
        parent_version=0,
        state=AdapterState.PUBLISHED,
        reason=REASON,
        method="combine",
        metrics={"turns": 1, "loss": 0.25, "kl_to_base": 0.01},
        created_at=2_000.0,
    )
    report = StepReport(
        step_id="s",
        policy=POLICY,
        method="combine",
        started_at=1_990.0,
        finished_at=2_000.0,
        version=1,
        error=None,
        metrics={},
    )
    await record.publish(version, ["turn-one"], report, worker="w")


def test_status_says_the_life_of_all_turns_in_one_sentence(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--home", str(home)]) == 0
    shown = capsys.readouterr().out
    assert "2 turns seen · 2 main · 1 waiting for what follows · 0 answered · 0 scored" in shown
    assert "1 trained · 0 dropped" in shown
    assert "live: patina-tiny@1" in shown


def test_status_as_json_holds_the_same_facts(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json", "--home", str(home)]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["stages"] == {"recorded": 1, "trained": 1}
    assert status["live"] == {POLICY: 1}
    assert status["last_step"]["version"] == 1


#: Above the largest process id that Linux gives.
NO_PID = 2**22 + 1


def test_a_silent_process_is_shown_as_not_running(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def beats(record: Record) -> None:
        await record.heartbeat(
            Heartbeat(process="scorer", pid=NO_PID, state="running", detail={}, at=time.time() - 60)
        )
        await record.heartbeat(Heartbeat(process="proxy", pid=2, state="running", detail={}, at=time.time()))

    fill(home, beats)
    main(["status", "--home", str(home)])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "not running" in lines["scorer"]
    assert "not running" not in lines["proxy"]


def test_trajectories_as_a_table_show_what_was_asked_and_answered(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    assert main(["trajectories", "--home", str(home)]) == 0
    shown = capsys.readouterr().out
    assert "Capital of [France]?" in shown
    assert "shorter" in shown
    assert "trained" in shown


def test_trajectories_as_jsonl_are_whole_and_can_be_filtered(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["trajectories", "--format", "jsonl", "--home", str(home)])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["turn_id"] for row in rows] == ["turn-one", "turn-two"]
    assert rows[0]["completion_token_ids"] == [5, 6]
    assert [one["source"] for one in rows[0]["verdicts"]] == [rows[0]["verdict_source"]]
    assert rows[0]["verdicts"][0]["detail"] == {}
    assert (rows[1]["verdicts"], rows[1]["feedback"], rows[1]["drop_detail"]) == ([], [], None)
    main(["trajectories", "--format", "jsonl", "--stage", "recorded", "--home", str(home)])
    assert json.loads(capsys.readouterr().out)["turn_id"] == "turn-two"
    main(["trajectories", "--format", "jsonl", "--session", "unknown", "--home", str(home)])
    assert capsys.readouterr().out == ""


def test_an_export_carries_votes_the_judges_texts_feedback_and_why_a_turn_was_dropped(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    detail = {"votes": [-1, 0], "replies": ["too long: \\boxed{-1}", "\\boxed{0}"]}

    async def judge(record: Record) -> None:
        await record.add_feedback(
            Feedback(
                feedback_id="f", turn_id="turn-two", score=-0.5, text="Name the river too.", idempotency_key="k", created_at=1_010.0
            )
        )  # fmt: skip
        await record.add_verdict(
            make_verdict("turn-two", value=None, source="judge:m", detail=detail), drop=DropReason.ABSTAINED
        )

    fill(home, judge)
    main(["trajectories", "--format", "jsonl", "--home", str(home)])
    rows = {row["turn_id"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    row = rows["turn-two"]
    assert row["verdicts"][-1]["detail"] == detail
    assert [(one["score"], one["text"]) for one in row["feedback"]] == [(-0.5, "Name the river too.")]
    assert row["drop_reason"] == "abstained"


def test_trajectories_to_a_file_are_written_whole_or_not_at_all(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "turns.jsonl"
    assert main(["trajectories", "--format", "jsonl", "--output", str(target), "--home", str(home)]) == 0
    assert len(target.read_text(encoding="utf-8").splitlines()) == 2
    assert list(tmp_path.glob("*.part")) == []
    missing = tmp_path / "no" / "turns.jsonl"
    assert main(["trajectories", "--format", "jsonl", "--output", str(missing), "--home", str(home)]) == 2


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # pyarrow keeps memory maps until they are collected
def test_trajectories_as_a_dataset_load_again(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "dataset"
    assert main(["trajectories", "--format", "datasets", "--output", str(target), "--home", str(home)]) == 0
    loaded = datasets.load_from_disk(str(target))
    assert loaded["turn_id"][:] == ["turn-one", "turn-two"]
    assert json.loads(loaded[0]["messages"])[0]["content"] == "Capital of [France]?"


def test_versions_show_what_is_live_and_why_shows_the_turns_behind_it(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["versions", "--home", str(home)]) == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "published" in one]
    assert "●" in line
    assert main(["why", "1", "--home", str(home)]) == 0
    shown = capsys.readouterr().out
    assert "1 of your turns" in shown
    assert "shorter please" in shown
    assert main(["why", "1", "--json", "--home", str(home)]) == 0
    why = json.loads(capsys.readouterr().out)
    assert (why["turns"][0]["turn_id"], why["turns"][0]["verdict"]) == ("turn-one", -1)


@pytest.mark.parametrize("columns", [80, 160])
def test_the_reason_of_a_version_can_be_read_however_narrow_the_terminal(
    columns: int, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("cli.console.FILE_COLUMNS", columns)
    assert main(["versions", "--home", str(home)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if "published" in line]
    below_base = lines[next(i for i, line in enumerate(lines) if "base model" in line) + 1 :]
    reasons = [line.strip("│ ").split("│")[-1].strip() for line in below_base if line.startswith("│")]
    assert " ".join(part for part in reasons if part) == REASON
    assert max(map(len, lines)) <= columns
    assert ("combine" in row) is (columns == 160)  # narrow: left to `why`


def test_rollback_moves_the_alias_at_once_when_nothing_runs(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollback", "0", "--home", str(home)]) == 0
    assert "not running" in capsys.readouterr().out
    main(["versions", "--json", "--home", str(home)])
    assert json.loads(capsys.readouterr().out)["live"] == 0


async def serving_version_one(record: Record) -> None:
    """What a running proxy says of itself."""
    detail = {"backend": {"live": 1}}
    await record.heartbeat(
        Heartbeat(process="proxy", pid=os.getpid(), state="running", detail=detail, at=time.time())
    )


def test_rollback_says_when_the_running_proxy_does_not_follow(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(home, serving_version_one)
    monkeypatch.setattr("cli.commands._SWAP_WAIT_S", 0.1)
    assert main(["rollback", "0", "--home", str(home)]) == 1
    assert "does not serve it yet" in capsys.readouterr().out


def test_rollback_does_not_wait_for_what_a_newer_version_has_replaced(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(home, serving_version_one)
    roll = Record.rollback

    async def and_a_version_after_it(self: Record, policy: str, version: int) -> None:
        await roll(self, policy, version)
        await roll(self, policy, 1, actor="trainer")

    monkeypatch.setattr(Record, "rollback", and_a_version_after_it)
    assert main(["rollback", "0", "--home", str(home)]) == 0
    assert "version 1 has been made live after it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["why", "9"], "has no version 9"),
        (["rollback", "9"], "has no version 9"),
        (["trajectories", "--stage", "sleeping"], "--stage 'sleeping': one of recorded"),
        (["trajectories", "--format", "datasets"], "needs --output"),
    ],
)
def test_an_impossible_command_fails_with_one_sentence(
    home: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--home", str(home)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_home_without_a_record_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for home in (tmp_path / "nowhere", tmp_path / "empty"):
        for command in (["status"], ["versions"], ["why", "1"], ["rollback", "0"]):
            assert main([*command, "--home", str(home)]) == 2
            error = capsys.readouterr().err
            assert (
                error
                == f"patina: no Patina was started on the home {home}: `{COMMAND} --home {home}` starts one\n"
            )
        assert not (home / "patina.db").exists()
    (tmp_path / "file").touch()
    assert main(["status", "--home", str(tmp_path / "file")]) == 2
    assert "is a file: give --home a folder" in capsys.readouterr().err


def test_pause_and_resume_are_kept_in_the_record(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pause", "--home", str(home)]) == 0
    main(["status", "--json", "--home", str(home)])
    assert '"training": "paused"' in capsys.readouterr().out
    assert main(["resume", "--home", str(home)]) == 0
    main(["status", "--json", "--home", str(home)])
    assert '"training": "running"' in capsys.readouterr().out


def give_it_files(home: Path) -> Path:
    """Write the files of version 1, with a manifest for the test model and a signature; returns their folder."""
    folder = home / "adapters" / f"{POLICY}@1"
    folder.mkdir(parents=True)
    files = {ADAPTER_CONFIG: b"{}", ADAPTER_WEIGHTS: bytes(64)}
    manifest = build_manifest(files, name=f"{POLICY}@1", model=digest_served_model(str(PATINA_TINY)))
    for name, body in {**files, MANIFEST: manifest}.items():
        (folder / name).write_bytes(body)
    signature = sign_files(folder.name, digest_folder(folder), read_signing_key(home))
    (folder / SIGNATURE).write_bytes(signature)
    connection = sqlite3.connect(home / "patina.db")
    connection.execute(
        "UPDATE adapters SET path = ?, content_hash = ?, manifest_hash = ?",
        (str(folder), content_hash(files), hash_manifest(manifest)),
    )
    connection.commit()
    connection.close()
    return folder


def test_verify_names_a_version_that_is_not_what_was_published(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--home", str(home)]) == 1
    missing = home / "adapters" / "patina-tiny@1"
    assert f"patina-tiny@1: there is no adapter folder {missing}" in capsys.readouterr().out
    folder = give_it_files(home)
    assert main(["verify", "--home", str(home)]) == 0
    assert "without a manifest" not in capsys.readouterr().out
    (folder / ADAPTER_WEIGHTS).write_bytes(bytes(63) + b"1")
    assert main(["verify", "--home", str(home)]) == 1
    assert "patina-tiny@1: the adapter in" in (shown := capsys.readouterr().out)
    assert "adapter_model.safetensors changed" in shown


def test_verify_checks_the_signature_of_a_version(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = give_it_files(home)
    (home / PRIVATE_FILE).rename(home / "aside")
    read_signing_key(home)  # another one
    assert main(["verify", "--home", str(home)]) == 1
    assert "model.sig is of another key than this home's" in capsys.readouterr().out
    (home / PRIVATE_FILE).unlink()
    assert main(["verify", "--home", str(home)]) == 1
    assert f"the signing key {home / PRIVATE_FILE} cannot be used" in capsys.readouterr().out
    (folder / SIGNATURE).unlink()
    assert main(["verify", "--home", str(home)]) == 1
    assert f"the adapter in {folder} has lost its model.sig" in capsys.readouterr().out


def test_verify_names_a_version_from_before_signatures(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = give_it_files(home)
    (folder / SIGNATURE).unlink()
    manifest = json.loads((folder / MANIFEST).read_bytes())
    del manifest["signature"]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with closing(sqlite3.connect(home / "patina.db")) as connection, connection:
        now = hash_manifest((folder / MANIFEST).read_bytes())
        connection.execute("UPDATE adapters SET manifest_hash = ?", (now,))
    assert main(["verify", "--home", str(home)]) == 0
    assert (
        "without a signature for others, made by an earlier Patina: patina-tiny@1" in capsys.readouterr().out
    )


def test_verify_names_a_version_from_before_manifests(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = give_it_files(home)
    (folder / MANIFEST).unlink()
    (folder / SIGNATURE).unlink()
    connection = sqlite3.connect(home / "patina.db")
    connection.execute("UPDATE adapters SET manifest_hash = ''")
    connection.commit()
    connection.close()
    assert main(["verify", "--home", str(home)]) == 0
    assert "without a manifest, made by an earlier Patina" in (shown := capsys.readouterr().out)
    assert "patina-tiny@1" in shown


def test_verify_says_all_is_well_or_what_is_wrong(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    give_it_files(home)
    assert main(["verify", "--home", str(home)]) == 0
    assert "2 turns checked: all is well" in capsys.readouterr().out
    connection = sqlite3.connect(home / "patina.db")
    connection.execute("UPDATE messages SET body = '{\"role\":\"user\"}' WHERE body LIKE '%France%'")
    connection.commit()
    connection.close()
    assert main(["verify", "--home", str(home)]) == 1
    assert "hashes to" in capsys.readouterr().out
