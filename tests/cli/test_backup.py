"""`run.py backup` and `run.py restore`: all of a home comes back, and what is no whole backup changes nothing."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import sqlite3
import tarfile
import threading
from contextlib import closing
from pathlib import Path

import pytest

from cli.main import main
from store.backup import check_whole
from store.errors import ConfigError
from store.journal import EntryKind, JournalWriter, mark_recorded, segments
from store.processes import hold_home
from store.settings import read_settings
from store.texts import counted
from tests.cli.recorded_home import dump_record, fill_home
from tests.kill_points import run_until

TURNS = 20
SECRET = "sk-of-this-home"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a record, a key, a version, a log and an export list; not to be changed."""
    home = tmp_path_factory.mktemp("filled") / "home"
    home.mkdir(mode=0o700)
    fill_home(home, TURNS)
    (home / "api_key").write_text(SECRET, encoding="utf-8")
    version = home / "adapters" / "patina-tiny@1"
    version.mkdir(parents=True)
    (version / "adapter_model.safetensors").write_bytes(os.urandom(40_000))
    (home / "logs").mkdir()
    (home / "logs" / "proxy.log").write_text("a log", encoding="utf-8")
    with closing(sqlite3.connect(home / "patina.db")) as database, database:
        row = ("patina-tiny", 1, str(version), "0" * 64, "", 0, "published", "", "combine", "{}", 0.0)
        database.execute(f"INSERT INTO adapters VALUES ({', '.join('?' * len(row))})", row)
    return home


@pytest.fixture
def home(filled: Path, tmp_path: Path) -> Path:
    """A copy of it elsewhere."""
    shutil.copytree(filled, tmp_path / "home")
    with closing(sqlite3.connect(tmp_path / "home" / "patina.db")) as database, database:
        database.execute("UPDATE adapters SET path = ?", (str(tmp_path / "home/adapters/patina-tiny@1"),))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def archive(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("archive") / "backup"
    assert run(filled, "backup", str(path)) == 0
    return path.read_bytes()


def run(home: Path, *words: str) -> int:
    return main([*words, f"--home={home}"])


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.parent.name != "run")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def version_path(home: Path) -> Path:
    with closing(sqlite3.connect(home / "patina.db")) as database:
        return Path(database.execute("SELECT path FROM adapters").fetchone()[0])


def test_record_keys_and_versions_come_back_in_another_place(home: Path, tmp_path: Path) -> None:
    backup, other = tmp_path / "backup", tmp_path / "other" / "place"
    assert run(home, "backup", str(backup)) == 0
    assert backup.stat().st_mode & 0o777 == 0o600
    assert run(other, "restore", str(backup)) == 0
    assert dump_record(other / "patina.db") == dump_record(home / "patina.db")
    assert (other / "api_key").read_text(encoding="utf-8") == SECRET
    assert (other / "api_key").stat().st_mode & 0o777 == 0o600
    assert other.stat().st_mode & 0o777 == 0o700
    assert version_path(other) == other / "adapters/patina-tiny@1"
    assert tree(other / "adapters") == tree(home / "adapters")
    assert not (other / "logs").exists()
    assert sorted(path.name for path in other.parent.iterdir()) == ["place"]


def test_what_waits_in_the_journal_is_copied_and_what_is_recorded_is_not(home: Path, tmp_path: Path) -> None:
    async def append(name: str) -> None:
        writer = JournalWriter(home / "journal", name)
        writer.append(EntryKind.FEEDBACK, b"an entry")

    for name in ("waiting", "recorded"):
        asyncio.run(append(name))
    waiting, recorded = sorted(segments(home / "journal"), key=lambda path: "recorded" in path.name)
    with recorded.open("rb") as file:
        mark_recorded(file.fileno())
    assert run(home, "backup", str(tmp_path / "backup")) == 0
    assert run(tmp_path / "other", "restore", str(tmp_path / "backup")) == 0
    assert [path.name for path in segments(tmp_path / "other" / "journal")] == [waiting.name]
    assert (tmp_path / "other" / "journal" / waiting.name).read_bytes() == waiting.read_bytes()


def test_a_backup_while_the_record_is_written_is_one_moment_of_it(home: Path, tmp_path: Path) -> None:
    is_over = threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(home / "patina.db", timeout=60)) as database:
            number = 0
            while not is_over.is_set():
                with database:  # the two rows of a transaction are in the copy together, or neither
                    for name in (f"a{number}", f"b{number}"):
                        database.execute(
                            "INSERT INTO alias_moves (policy, version, moved_at, actor) VALUES (?, 0, 0, '')",
                            (name,),
                        )
                number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(3):
            assert run(home, "backup", str(tmp_path / f"backup-{number}")) == 0
    finally:
        is_over.set()
        writer.join()
    for number in range(3):
        place = tmp_path / f"place-{number}"
        assert run(place, "restore", str(tmp_path / f"backup-{number}")) == 0
        with closing(sqlite3.connect(place / "patina.db")) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            names = {row[0] for row in database.execute("SELECT policy FROM alias_moves")}
        pairs = {name[1:] for name in names}
        assert names == {letter + pair for pair in pairs for letter in "ab"}


def test_a_restore_keeps_what_was_there_beside_the_home(
    home: Path, archive: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "backup").write_bytes(archive)
    (home / "api_key").write_text("sk-of-today", encoding="utf-8")
    before = tree(home)
    assert run(home, "restore", str(tmp_path / "backup")) == 0
    (kept,) = tmp_path.glob("home.before-*")
    assert str(kept) in capsys.readouterr().out
    assert tree(kept) == before
    assert (home / "api_key").read_text(encoding="utf-8") == SECRET
    assert version_path(home) == home / "adapters/patina-tiny@1"


def test_a_running_home_is_copied_and_never_restored(
    home: Path, archive: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "earlier").write_bytes(archive)
    with hold_home(home):
        assert run(home, "backup", str(tmp_path / "backup")) == 0
        before = tree(home)
        capsys.readouterr()
        assert run(home, "restore", str(tmp_path / "earlier")) == 2
    assert "runs on" in capsys.readouterr().err
    assert tree(home) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "earlier", "home"]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.999])
def test_a_cut_backup_is_refused_with_one_sentence_and_changes_nothing(
    home: Path, archive: bytes, tmp_path: Path, share: float, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cut").write_bytes(archive[: int(len(archive) * share)])
    refused(home, tmp_path / "cut", capsys)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_changed_backup_is_refused(
    home: Path, archive: bytes, tmp_path: Path, share: float, capsys: pytest.CaptureFixture[str]
) -> None:
    at = int(len(archive) * share)
    changed = archive[:at] + bytes([archive[at] ^ 0xFF]) + archive[at + 1 :]
    (tmp_path / "changed").write_bytes(changed)
    refused(home, tmp_path / "changed", capsys)


@pytest.mark.parametrize(
    "name",
    ["../api_key", "home/../../api_key", "/etc/patina", "run/lock", "home", "home/run/lock", "home/run", "home/patina.db-wal",
     "home/logs/x", "home//etc", "home/./run/lock", "record.db/x", "backup.json/x"],
)  # fmt: skip
def test_a_tar_with_names_outside_the_home_is_refused(
    home: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(tmp_path / "foreign", "w:gz") as made:
        member = tarfile.TarInfo(name)
        member.size = 1
        made.addfile(member, io.BytesIO(b"x"))
    refused(home, tmp_path / "foreign", capsys)


@pytest.mark.parametrize("path", ["{}/precious", "{}/patina-tiny@1", "../../precious", "/"])
def test_an_archive_whose_record_names_a_folder_elsewhere_gets_its_own(
    home: Path, tmp_path: Path, path: str
) -> None:
    """Row 15 of the second attack: the next forget removed that folder."""
    precious = tmp_path / "precious"
    precious.mkdir()
    with closing(sqlite3.connect(home / "patina.db")) as database, database:
        database.execute("UPDATE adapters SET path = ?", (path.format(tmp_path),))
    assert run(home, "backup", str(tmp_path / "backup")) == 0
    other = tmp_path / "other"
    assert run(other, "restore", str(tmp_path / "backup")) == 0
    assert version_path(other) == other / "adapters/patina-tiny@1"
    with closing(sqlite3.connect(other / "patina.db")) as database:
        (turn,) = database.execute("SELECT turn_id FROM turns LIMIT 1").fetchone()
        with database:
            database.execute("UPDATE turn_states SET trained_in_version = 1, policy = 'patina-tiny'")
    assert main(["forget", turn, "--served-model-name", "patina-tiny", f"--home={other}"]) == 0
    assert precious.is_dir()
    assert not (other / "adapters/patina-tiny@1").exists()


def test_an_archive_with_a_file_twice_is_refused(
    home: Path, archive: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as read, tarfile.open(tmp_path / "twice", "w:gz") as made:
        for member in [*read.getmembers()[:1], *read.getmembers()]:
            made.addfile(member, read.extractfile(member))
    refused(home, tmp_path / "twice", capsys)


def states(home: Path) -> str:
    """Return which home this is: "old", "new", or what a start says."""
    settings = read_settings({"home": home})
    try:
        check_whole(home, Path(settings.database_url.partition(":///")[2]))
    except ConfigError as exc:
        return str(exc)
    if not (home / "patina.db").exists():
        return "empty"
    assert (home / "api_key").exists()
    key = (home / "api_key").read_text(encoding="utf-8")
    with closing(sqlite3.connect(home / "patina.db")) as database:
        turns = database.execute("SELECT count(*) FROM turns").fetchone()[0]
    assert version_path(home).is_dir()
    assert version_path(home).is_relative_to(home)
    assert (key, turns) in ((SECRET, TURNS), ("sk-of-today", TURNS - 1))
    return "new" if key == SECRET else "old"


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchange", "two renames"])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_restore_that_is_killed_anywhere_leaves_the_old_home_or_the_new_one(
    home: Path, archive: bytes, tmp_path: Path, exchanges: bool, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 16 of the second attack: the home was split, and a start on it made an empty record."""
    (tmp_path / "backup").write_bytes(archive)
    (home / "api_key").write_text("sk-of-today", encoding="utf-8")
    with closing(sqlite3.connect(home / "patina.db")) as database, database:
        database.execute("DELETE FROM turns WHERE turn_id = (SELECT max(turn_id) FROM turns)")
    before = tmp_path / "kept"
    shutil.copytree(home, before)
    if not exchanges:
        monkeypatch.setattr("store.backup._exchange", lambda one, other: False)

    def restore() -> int:
        return run(home, "restore", str(tmp_path / "backup"))

    code, points = run_until(restore, 0)
    assert (code, states(home)) == (0, "new")
    seen = set()
    for last in range(1, points + 1, step):
        for path in tmp_path.glob("home*"):
            shutil.rmtree(path)
        shutil.copytree(before, home)
        assert run_until(restore, last)[0] is None
        state = states(home)
        if state not in ("old", "new"):
            assert not exchanges
            assert "a restore was interrupted" in state
            state = "says what to do"
        seen.add(state)
        if last % 5 == 0:
            assert restore() == 0
            assert states(home) == "new"
    assert seen >= {"old", "new"}
    assert exchanges or step > 1 or "says what to do" in seen


def test_a_start_on_a_home_that_an_earlier_restore_split_says_what_to_do(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.rename(tmp_path / "home.before-20260101-000000")
    (home / "run").mkdir(parents=True)
    for command in (["status"], []):
        assert run(home, *command) == 2
        error = capsys.readouterr().err
        assert "a restore was interrupted. Rename" in error
        assert "home.before-20260101-000000" in error
    assert not (home / "patina.db").exists()


def test_a_record_outside_the_home_is_restored_to_its_place(
    home: Path, archive: bytes, tmp_path: Path
) -> None:
    (tmp_path / "backup").write_bytes(archive)
    place = tmp_path / "elsewhere"
    place.mkdir()
    (home / "patina.db").rename(place / "patina.db")
    assert run(home, "restore", str(tmp_path / "backup"), "--record-dir", str(place)) == 0
    with closing(sqlite3.connect(place / "patina.db")) as database:
        assert database.execute("SELECT count(*) FROM turns").fetchone() == (TURNS,)
    assert not (home / "patina.db").exists()
    (kept,) = tmp_path.glob("home.before-*")
    assert (kept / "patina.db").exists()
    (home / "restored-record").touch()
    assert run(home, "status", "--record-dir", str(place)) == 2


def test_an_older_backup_comes_back_without_what_was_forgotten_since(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Row 7 of the second attack: the turn was back without a word."""
    with closing(sqlite3.connect(home / "patina.db")) as database, database:
        (turn,) = database.execute("SELECT turn_id FROM turns ORDER BY created_at LIMIT 1").fetchone()
        database.execute("UPDATE turn_states SET trained_in_version = 1, policy = 'patina-tiny'")
    export = tmp_path / "precious.jsonl"
    export.write_text(json.dumps({"turn_id": turn, "text": "mine"}) + "\n")
    (home / "exports.json").write_text(json.dumps([str(export)]))
    assert run(home, "backup", str(tmp_path / "older")) == 0
    (home / "exports.json").unlink()
    assert run(home, "forget", turn, "--served-model-name", "patina-tiny") == 0
    assert f"OUT OF REACH: the copy {tmp_path / 'older'}" in capsys.readouterr().out
    (receipt,) = (home / "receipts").glob("*.json")
    gone = json.loads(receipt.read_text())["turns"]
    assert run(home, "restore", str(tmp_path / "older")) == 0
    out = capsys.readouterr().out
    assert (
        f"Left out, since it was forgotten after the backup: {counted(len(gone), 'turn')}, patina-tiny@1."
        in out
    )
    with closing(sqlite3.connect(home / "patina.db")) as database:
        left = {row[0] for row in database.execute("SELECT turn_id FROM turns")}
        assert database.execute("SELECT state FROM adapters").fetchone() == ("forgotten",)
    assert len(left) == TURNS - len(gone)
    assert not left & set(gone)
    assert not (home / "adapters/patina-tiny@1").exists()
    assert run(home, "verify", str(home / "receipts" / receipt.name)) == 0
    # The list in the archive names files elsewhere: they are named, and not rewritten.
    assert run(home, "forget", "--match", "no such words") == 2
    (other,) = sorted(left)[:1]
    assert run(home, "forget", other) in (0, 1)
    assert json.loads(export.read_text())["text"] == "mine"
    (kept,) = tmp_path.glob("home.before-*")
    assert kept.is_dir()


def refused(home: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(home)
    beside = sorted(path.name for path in home.parent.iterdir())
    assert run(home, "restore", str(source)) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert str(source) in error
    assert tree(home) == before
    assert sorted(path.name for path in home.parent.iterdir()) == beside


def test_an_existing_file_is_not_written_over(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "backup").write_text("mine", encoding="utf-8")
    assert run(home, "backup", str(tmp_path / "backup")) == 2
    assert "exists" in capsys.readouterr().err
    assert (tmp_path / "backup").read_text(encoding="utf-8") == "mine"
