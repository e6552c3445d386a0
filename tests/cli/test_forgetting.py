"""A forget ends, whatever dies or stands in between, and never takes the clean version."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import time
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import orjson
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from cli.forgetting import Forgetter
from cli.forgetting import main as go_on
from cli.main import main
from migrations import upgrade
from recorder.__main__ import main as recorder
from scripts.verify_receipt import check as check_receipt
from store.journal import STATE_FILE, EntryKind, JournalWriter
from store.record import Record
from store.settings import Settings, read_settings
from store.values import ForgetStage, Selection, StepRole
from tests.kill_points import die_at_each, holding, run_until
from tests.recorder.exchanges import make_captured, user
from tests.store.queries.test_forget import SENTINEL, fill, train
from wire.captured_exchange import dump_exchange

WORDS = b"sentinel-4711"
ANN = "patina-tiny.ann"


def settings_of(home: Path) -> Settings:
    return read_settings({"home": home, "served_model_name": "patina-tiny"})


def run(home: Path, *words: str) -> int:
    return main([*words, "--home", str(home), "--served-model-name", "patina-tiny"])


async def fill_home(home: Path) -> None:
    """Two policies, each with a clean and a tainted version, and the words in everything that a home may hold."""
    record = await Record.open(settings_of(home).database_url)
    await fill(record)
    for policy, folder in (("patina-tiny", home / "adapters"), (ANN, home / "adapters" / ANN)):
        for version, turns in ((1, ()), (2, ("three",)), (3, ())):  # the third has no row: its step died
            place = folder / f"{policy}@{version}.abc"
            place.mkdir(parents=True)
            (place / "metrics.json").write_bytes(b"shorter" if version == 1 else SENTINEL.encode())
            if version < 3:
                await train(
                    record, version, path=str(place), parent=0, policy=policy, others={StepRole.SERVED: turns}
                )
    (home / "adapters" / ".writing-1-ab").mkdir()
    (home / "adapters" / ".writing-1-ab" / "state.json").write_bytes(b'["three"] ' + SENTINEL.encode())
    (home / "logs").mkdir()
    (home / "logs" / "trainer.log").write_text(f"before\nquoted: {SENTINEL}\nafter\n")
    (home / "journal" / "rejected").mkdir(parents=True)
    (home / "journal" / "rejected" / "1-a-1.entry").write_bytes(orjson.dumps({"text": SENTINEL}))
    (home / "patina.db.damaged-20260101-000000").write_bytes(b"old pages " + SENTINEL.encode())
    writer = JournalWriter(home / "journal", "proxy")
    feedback = {
        "feedback_id": "late", "turn_id": "one", "score": -1.0, "text": SENTINEL, "idempotency_key": "late", "created_at": 9.0,
    }  # fmt: skip
    writer.append(EntryKind.FEEDBACK, orjson.dumps(feedback))
    await writer.close()
    await record.close()
    settings_of(home).dump(home / "run" / "settings.json")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a home is copied from: its paths are those of its copy."""
    top = tmp_path_factory.mktemp("forgetting")
    home = top / "home"
    home.mkdir()
    upgrade(settings_of(home).database_url)
    asyncio.run(fill_home(home))
    assert run(home, "trajectories", "--format", "jsonl", "--output", str(top / "export.jsonl")) == 0
    (top / "kept").mkdir()
    for name in ("home", "export.jsonl"):
        (top / name).rename(top / "kept" / name)
    return top


@pytest.fixture
def home(template: Path) -> Path:
    return make(template)


def make(template: Path) -> Path:
    """Return the home as it was before anything was asked for."""
    home = template / "home"
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(template / "kept" / "home", home)
    shutil.copy2(template / "kept" / "export.jsonl", template / "export.jsonl")
    return home


def check(home: Path, turns: Collection[str] = ("one", "two", "same", "bob")) -> None:
    """Nothing of the sentinel in any byte, clean versions live and there, training runs, one complete receipt."""
    assert holding(home, WORDS) == []
    assert WORDS not in (home.parent / "export.jsonl").read_bytes().lower()
    (path,) = (home / "receipts").glob("*")
    receipt = json.loads(path.read_text())
    assert (receipt["complete"], receipt["remaining"]) == (True, [])
    assert sorted(receipt["turns"]) == ["four", "quote", "three"]
    check_receipt(receipt, load_pem_public_key((home / "signing_key.pub").read_bytes()))
    assert list((home / "run").glob("*.turns*")) == []
    with closing(sqlite3.connect(home / "patina.db")) as database:
        stages = database.execute("SELECT job_id, stage FROM forget_jobs").fetchall()
        assert stages == [(path.stem, "done")]
        newest = "SELECT version FROM alias_moves WHERE policy = ? ORDER BY move_id DESC LIMIT 1"
        for policy in ("patina-tiny", ANN):
            assert database.execute(newest, (policy,)).fetchone() == (1,)
        assert database.execute("SELECT * FROM controls WHERE name = 'training'").fetchall() == []
        assert {row[0] for row in database.execute("SELECT turn_id FROM turns")} == set(turns)
    folders = sorted(str(one.relative_to(home / "adapters")) for one in (home / "adapters").rglob("*@*"))
    assert folders == ["patina-tiny.ann/patina-tiny.ann@1.abc", "patina-tiny@1.abc"]


def take_up(home: Path) -> int:
    """What the supervisor starts."""
    return go_on(["--settings", str(home / "run" / "settings.json")])


def test_a_forget_cleans_all_that_a_home_may_hold(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(holding(home, WORDS)) >= 9
    assert run(home, "forget", "three") == 0
    check(home)
    assert run(home, "forget", "three") == 0  # asked for again: the same receipt
    assert run(home, "forget", "--session", "nothing") == 2
    check(home)


def kill_everywhere(template: Path, step: int) -> int:
    """Kill a forget at every ``step``-th of its points, and at half of them what takes it up too; returns the number of points."""
    home = make(template)

    def forget() -> int:
        return run(home, "forget", "three")

    def take_up_there() -> int:
        return take_up(home)

    code, points = run_until(forget, 0)
    assert code == 0
    check(home)
    for last in range(1, points + 1, step):
        make(template)
        code, _ = run_until(forget, last)
        assert code is None, f"point {last} of {points} was not reached"
        if last // 2 % 2:
            run_until(take_up_there, 1 + last * 7 % points)
        if last % 2:
            assert take_up(home) == 0
        # Before its row was there nothing was asked for: the second call does it all.
        assert forget() == 0, last
        try:
            check(home)
        except AssertionError as exc:
            raise AssertionError(f"after a kill at point {last} of {points}: {exc}") from exc
    return points


def test_a_forget_that_is_killed_is_finished_by_the_next_call_or_start(template: Path) -> None:
    assert kill_everywhere(template, 23) > 100


@pytest.mark.long_run
@pytest.mark.timeout(900)
def test_a_forget_may_be_killed_at_every_statement_file_operation_and_message(template: Path) -> None:
    kill_everywhere(template, 1)


def test_a_restore_leaves_out_a_turn_that_only_the_backup_has_by_its_text(home: Path) -> None:
    """The record that was asked had lost the turn, so that no list of ids knows it."""
    archive = home.parent / "older"
    assert run(home, "backup", str(archive)) == 0
    with closing(sqlite3.connect(home / "patina.db")) as database, database:
        for table in ("next_states", "turn_states", "verdicts", "turns"):
            database.execute(f"DELETE FROM {table} WHERE turn_id = 'quote'")
    assert run(home, "forget", "three") == 0
    with closing(sqlite3.connect(home / "patina.db")) as database:
        assert database.execute("SELECT * FROM forgotten_turns WHERE turn_id = 'quote'").fetchall() == []
    assert run(home, "restore", str(archive)) == 0
    with closing(sqlite3.connect(home / "patina.db")) as database:
        turns = {row[0] for row in database.execute("SELECT turn_id FROM turns")}
        assert turns == {"one", "two", "same", "bob"}
        assert database.execute("SELECT at FROM forgotten_turns WHERE turn_id = 'quote'").fetchone()
    assert WORDS not in (home / "patina.db").read_bytes().lower()
    for aside in home.parent.glob("home.before-*"):
        shutil.rmtree(aside)


async def test_a_reader_of_the_database_is_waited_for_and_named(home: Path) -> None:
    """Row 3 of the second attack: the call failed after its commit, and nothing could finish it."""
    settings = settings_of(home)
    record = await Record.open(settings.database_url)
    forgetter = Forgetter(record, settings)
    with closing(sqlite3.connect(home / "patina.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM turns").fetchone()
        job_id = await record.ask_to_forget(Selection(turn="three"))
        assert not await forgetter.run(job_id, patience_s=0.0)
        job = await record.forget_job(job_id)
        assert job is not None
        assert job.stage is ForgetStage.CLEANED
        assert "it is being read all the time" in job.waits
        assert (await record.status()).forgetting == (job.sentence,)
        assert not await record.holds_training()
        assert not (home / "receipts").exists()
    assert await forgetter.run(job_id, patience_s=30.0)
    await record.close()
    check(home)


async def leave_with_a_reply_in_the_journal(home: Path) -> None:
    """Ask for a forget and leave it where it waits for the recorder: the journal holds replies that began before it."""
    settings = settings_of(home)
    began = time.time() - 5
    writer = JournalWriter(home / "journal", "proxy")
    for name, text in (("late", SENTINEL), ("clean", "What is a wasp?")):
        made = make_captured(
            name, [user(text)], "Noted.", key_name="alice", policy="patina-tiny", created_at=began
        )
        writer.append(EntryKind.EXCHANGE, dump_exchange(made, None))
    await writer.close()
    # As while a recorder runs: it is not started a second time, and the job waits.
    (home / "journal" / STATE_FILE).write_bytes(orjson.dumps({"at": time.time() + 60}))
    record = await Record.open(settings.database_url)
    job_id = await record.ask_to_forget(Selection(turn="three"))
    assert not await Forgetter(record, settings).run(job_id, patience_s=0.0)
    job = await record.forget_job(job_id)
    assert job is not None
    assert (job.stage, job.waits) == (ForgetStage.UNLEARNT, "the recorder: 2 segments of the journal")
    await record.close()
    (home / "journal" / STATE_FILE).unlink()


def kill_the_recorder_everywhere(template: Path, step: int) -> int:
    """Kill the recorder at every ``step``-th of its points while a forget waits for it; returns the number of points."""
    home = make(template)
    asyncio.run(leave_with_a_reply_in_the_journal(home))
    waiting = template / "waiting"
    shutil.rmtree(waiting, ignore_errors=True)
    shutil.copytree(home, waiting)

    def record_once() -> int:
        return recorder(["--settings", str(home / "run" / "settings.json"), "--once"])

    def attempt(last: int) -> tuple[int | None, int]:
        make(template)
        shutil.rmtree(home)
        shutil.copytree(waiting, home)
        ended = run_until(record_once, last)
        assert take_up(home) == 0
        try:
            check(home, turns={"one", "two", "same", "bob", "turn_clean"})
        except AssertionError as exc:
            raise AssertionError(f"after the recorder died at point {last}: {exc}") from exc
        return ended

    return die_at_each(attempt, step)


def test_a_forget_ends_when_the_recorder_dies_while_it_is_waited_for(template: Path) -> None:
    assert kill_the_recorder_everywhere(template, 11) > 20


@pytest.mark.long_run
@pytest.mark.timeout(900)
def test_the_recorder_may_die_at_every_statement_while_it_is_waited_for(template: Path) -> None:
    kill_the_recorder_everywhere(template, 1)
