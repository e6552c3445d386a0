"""`run.py forget`: nothing of what was forgotten is left in the home's bytes, and the receipt says so."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest

from cli.home_files import note_lines_folder
from cli.main import main
from migrations import upgrade
from scorers.record_lines import RecordLines
from store.journal import EntryKind, JournalWriter
from store.record import Record
from store.record_lines import line_files
from store.settings import read_settings
from store.values import AdapterState, Selection, StepRole
from tests.making import make_turn
from tests.store.queries.test_forget import SENTINEL, fill, said, train

WORDS = b"SENTINEL-4711"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a conversation that holds the sentinel."""
    folder = tmp_path / "home"
    folder.mkdir()
    upgrade(read_settings({"home": folder}).database_url)
    in_record(folder, fill)
    return folder


def in_record(home: Path, work: Callable[[Record], Awaitable[None]]) -> None:
    async def run() -> None:
        record = await Record.open(read_settings({"home": home}).database_url)
        await work(record)
        await record.close()

    asyncio.run(run())


def run(home: Path, *arguments: str) -> int:
    return main([*arguments, "--home", str(home), "--served-model-name", "patina-tiny"])


def holding(home: Path) -> list[str]:
    return [
        str(path.relative_to(home))
        for path in sorted(home.rglob("*"))
        if path.is_file() and WORDS in path.read_bytes()
    ]


def test_a_dry_run_lists_what_would_go_and_changes_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(home, "forget", "three", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "1 turns that you named: three" in out
    assert "1 turns that continue them: four" in out
    assert "1 turns that repeat their words: quote" in out
    assert "1 turns that stay, without the reaction to them and what it taught: two" in out
    assert run(home, "forget", "--match", "sentinel-4711", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["selected"] == ["two", "three", "four", "quote"]
    assert "patina.db" in holding(home)[0]
    assert not (home / "receipts").exists()


def test_the_words_are_nowhere_in_the_home_afterwards(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "journal" / "rejected").mkdir(parents=True)
    (home / "journal" / "rejected" / "1-a-1.entry").write_bytes(b'{"text": "' + SENTINEL.encode() + b'"}')
    (home / "patina.db.damaged-20260101-000000").write_bytes(b"old pages " + SENTINEL.encode())
    (home / "patina.db.damaged-20250101-000000").write_bytes(b"nothing of it")
    export = tmp_path / "export.jsonl"
    assert run(home, "trajectories", "--format", "jsonl", "--output", str(export)) == 0
    capsys.readouterr()
    assert WORDS in export.read_bytes()
    assert run(home, "forget", "three", "--json") == 0
    receipt = json.loads(capsys.readouterr().out)
    assert holding(home) == []
    assert receipt["complete"] is True
    assert sorted(receipt["turns"]) == ["four", "quote", "three"]
    assert WORDS not in json.dumps(receipt).encode()
    assert [Path(path).name for path in receipt["copies"]] == [
        "1-a-1.entry",
        "patina.db.damaged-20260101-000000",
    ]
    assert (home / "patina.db.damaged-20250101-000000").exists()
    rows = [json.loads(line) for line in export.read_text().splitlines()]
    assert [row["turn_id"] for row in rows] == ["one", "same", "bob"]
    (path,) = (home / "receipts").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert run(home, "verify", str(path)) == 0
    assert "nothing is found again" in capsys.readouterr().out
    assert run(home, "verify") == 0


def test_lines_of_record_jsonl_outside_of_the_home_are_cleaned(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "lines"
    note_lines_folder(home, folder)
    (folder / "2025-01-01.jsonl").write_text('{"type": "start", "verdict_id": 0, "created_at": 0.0}\n')

    async def follow(record: Record) -> None:
        await RecordLines(record, home, folder, lambda _: None).write_new()

    in_record(home, follow)
    newest = line_files(folder)[-1]
    with newest.open("ab") as file:
        file.write(b'{"type": "turn", "turn_id": "three", "torn": "' + WORDS)  # by a process that was killed
    assert newest.read_bytes().count(WORDS) > 1
    assert run(home, "forget", "three", "--json") == 0
    receipt = json.loads(capsys.readouterr().out)
    assert receipt["complete"] is True
    assert {one["path"]: one["removed"] for one in receipt["exports"]} == {
        str(folder / "2025-01-01.jsonl"): 0,
        str(newest): 6,  # four turns and two verdicts
    }
    assert WORDS not in newest.read_bytes()
    rows = [json.loads(line) for line in newest.read_text().splitlines()]
    assert [row.get("turn_id") for row in rows] == [None, "one", "same", "bob", "one", "same"]
    assert newest.stat().st_mode & 0o777 == 0o600
    in_record(home, follow)  # a restart writes nothing of it again
    assert WORDS not in newest.read_bytes()


def test_a_receipt_that_was_changed_or_does_not_hold_any_more_is_reported(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(home, "forget", "quote") == 0
    (path,) = (home / "receipts").iterdir()

    async def say_it_again(record: Record) -> None:
        messages = said(f"I said: {SENTINEL}")
        await record.write_turns([make_turn("again", messages, created_at=time.time())])
        await record.write_turns([make_turn("late", messages, created_at=1.0)])
        assert await record.known_turns(["again", "late"]) == {"again"}

    in_record(home, say_it_again)
    assert run(home, "verify", str(path)) == 1
    assert "a client sent the same words" in capsys.readouterr().out
    changed = json.loads(path.read_text())
    changed["turns"] = {}
    path.write_text(json.dumps(changed))
    assert run(home, "verify", str(path)) == 2
    assert "the signature of" in capsys.readouterr().err


def test_what_is_in_the_journal_and_not_recorded_goes_as_well(home: Path) -> None:
    async def journal() -> None:
        writer = JournalWriter(home / "journal", "proxy")
        feedback = {
            "feedback_id": "late", "turn_id": "three", "score": -1.0, "text": SENTINEL, "idempotency_key": "late",
            "created_at": 9.0,
        }  # fmt: skip
        assert writer.append(EntryKind.FEEDBACK, orjson.dumps(feedback)) is None
        await writer.close()

    asyncio.run(journal())
    assert any(name.startswith("journal/") for name in holding(home))
    assert run(home, "forget", "--match", SENTINEL.upper()) == 0
    assert holding(home) == []


def test_what_is_not_there_or_not_said_is_an_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["nothing"], "the record has no turn for turn nothing"),
        ([], "what is to be forgotten?"),
        (["three", "--match", "words"], "name one of"),
        (["--key", "bob", "--since", "soon"], "--since 'soon'"),
        (["--match", "a"], "three characters"),
    ):
        assert run(home, "forget", *arguments) == 2
        assert message in capsys.readouterr().err


def test_files_of_tainted_versions_are_removed_and_the_clean_version_is_live(home: Path) -> None:
    folder = home / "adapters" / "patina-tiny@1.abc"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_bytes(WORDS)
    refused = (
        home / "adapters" / "patina-tiny@2.def"
    )  # of a step that was under way when its turn was forgotten
    other = home / "adapters" / "patina-tiny@3.012"
    for place, turn_id in ((refused, "three"), (other, "one")):
        place.mkdir()
        (place / "state.json").write_text(json.dumps({"reservoir": [turn_id]}))

    async def train_two(record: Record) -> None:
        await train(record, 1, "three", path=str(folder), parent=0)
        await train(record, 3, "one", path=str(other), parent=0)

    in_record(home, train_two)
    assert run(home, "forget", "three") == 0
    assert [place.exists() for place in (folder, refused, other)] == [False, False, True]
    assert holding(home) == []

    async def check(record: Record) -> None:
        assert (await record.aliases())["patina-tiny"].version == 3
        first, _ = await record.adapters("patina-tiny")
        assert first.state is AdapterState.FORGOTTEN
        assert (await record.find_closure(Selection(turn="one"))).tainted == {"patina-tiny": (3,)}

    in_record(home, check)


def test_the_live_version_of_another_policy_stays_in_its_folder(home: Path) -> None:
    """Row 0 of the second attack: the policy's whole folder was taken for one unknown version."""
    clean, tainted, torn = (
        home / "adapters" / "patina-tiny.ann" / f"patina-tiny.ann@{n}.abc" for n in (1, 2, 3)
    )
    for place in (clean, tainted, torn):
        place.mkdir(parents=True)
        (place / "state.json").write_text(json.dumps({"reservoir": ["three"]}))

    async def train_ann(record: Record) -> None:
        await train(record, 1, path=str(clean), parent=0, policy="patina-tiny.ann")
        await train(
            record,
            2,
            path=str(tainted),
            parent=0,
            policy="patina-tiny.ann",
            others={StepRole.SERVED: ("three",)},
        )

    in_record(home, train_ann)
    assert (
        run(home, "forget", "three", "--keep-replies") == 1
    )  # the clean version's file was made to name the turn
    assert [place.exists() for place in (clean, tainted, torn)] == [True, False, False]

    async def check(record: Record) -> None:
        assert await record.live_version("patina-tiny.ann") == 1

    in_record(home, check)


def test_verify_names_what_should_be_there_and_what_should_be_gone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Row 8 of the second attack: a correct forget was one thing wrong, and a tainted folder that stayed was none."""
    folder = home / "adapters" / "patina-tiny.ann" / "patina-tiny.ann@1.abc"
    folder.mkdir(parents=True)

    async def train_ann(record: Record) -> None:
        await train(record, 1, "three", path=str(folder), parent=0, policy="patina-tiny.ann")
        await train(record, 2, "one", path="gone", parent=0, policy="patina-tiny.ann")

    in_record(home, train_ann)
    assert run(home, "forget", "three") == 0
    assert run(home, "verify") == 1
    assert "patina-tiny.ann@2: there is no adapter folder" in capsys.readouterr().out
    folder.mkdir()
    assert run(home, "verify") == 1
    out = capsys.readouterr().out
    assert f"{folder} is of no version that the record keeps" in out
    assert "all is well" not in out
