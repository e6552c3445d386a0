"""`run.py recover`: a damaged record loses what cannot be read, and nothing else."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cli.main import main
from store.processes import hold_home
from tests.cli.recorded_home import dump_record, fill_home

TURNS = 400


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose record has `TURNS` turns in conversations of two."""
    fill_home(tmp_path, TURNS)
    return tmp_path


def count(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("SELECT count(*) FROM turns").fetchone()[0])


def run(home: Path, *words: str) -> int:
    return main([*words, f"--home={home}"])


def test_unreadable_pages_cost_only_their_rows(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / "patina.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = database.execute("PRAGMA page_size").fetchone()[0]
        names = "turns", "messages"
        pages = {
            row[0]
            for name in names
            for row in database.execute(
                "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY pageno", (name,)
            )
        }
    with path.open("r+b") as file:
        for page in sorted(pages)[3:6]:
            file.seek((page - 1) * size)
            file.write(b"\xff" * size)
    assert run(home, "recover") == 0
    printed = capsys.readouterr().out
    assert "Recovered:" in printed
    assert len(list(home.glob("patina.db.damaged-*"))) >= 1
    assert TURNS * 0.6 < count(path) < TURNS
    assert run(home, "verify") == 0


def test_a_whole_record_is_copied_whole(home: Path) -> None:
    path = home / "patina.db"
    before = dump_record(path)
    assert run(home, "recover") == 0
    assert dump_record(path) == before
    assert run(home, "verify") == 0


def test_a_truncated_record_is_refused_at_the_start_with_the_way_out_and_salvaged(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = home / "patina.db"
    with path.open("r+b") as file:
        file.write(b"not a database at all")
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    assert run(home, "status") == 2
    assert "run.py recover" in capsys.readouterr().err
    assert run(home, "recover") == 0
    assert "nothing could be read" in capsys.readouterr().out
    assert count(path) == 0


def test_a_running_patina_is_not_recovered(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hold_home(home):
        assert run(home, "recover") == 2
    assert "runs on" in capsys.readouterr().err
    assert count(home / "patina.db") == TURNS


#: Kills itself before the n-th change of a name of the record; what it printed before names the change.
KILLED = """
import os, signal, sys
from cli.main import main
home, at = sys.argv[1], int(sys.argv[2])
seen = 0
def watch(event, arguments):
    global seen
    if event in ("os.link", "os.rename", "os.remove") and "patina.db" in str(arguments[0]):
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
sys.exit(main(["recover", f"--home={home}"]))
"""


@pytest.mark.slow
def test_a_kill_before_any_change_of_a_name_leaves_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_home(tmp_path, 4)
    path = tmp_path / "patina.db"
    before, killed = dump_record(path), 0
    for at in range(1, 40):
        words = [sys.executable, "-c", KILLED, str(tmp_path), str(at)]
        ended = subprocess.run(words, capture_output=True, text=True, check=False).returncode
        assert dump_record(path) == before, at
        assert run(tmp_path, "status") == 0
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        killed += 1
    assert killed >= 2  # before the second name of the damaged file, and before the exchange
    assert run(tmp_path, "recover") == 0
    assert dump_record(path) == before
    assert run(tmp_path, "verify") == 0
