"""`run.py retain`, and the supervisor that carries it out."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cli.main import main
from cli.supervisor import Child, Forgetting
from migrations import upgrade
from store.keys import KeyFile
from store.record import Record
from store.settings import read_settings
from tests.making import make_turn


@pytest.fixture
def home(tmp_path: Path) -> Path:
    upgrade(read_settings({"home": tmp_path}).database_url)
    return tmp_path


def test_days_are_set_shown_and_taken_back(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    KeyFile(home / "keys.json").add("bob")
    assert main(["retain", "--home", str(home)]) == 0
    assert capsys.readouterr().out == "Conversations are kept until you forget them.\n"
    assert main(["retain", "30", "--home", str(home)]) == 0
    assert "under every key are forgotten when their newest turn is 30 days old" in capsys.readouterr().out
    assert main(["retain", "0.5", "--key", "bob", "--home", str(home)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split(" are forgotten")[0] for line in shown] == [
        "Conversations under every other key",
        "Conversations under the key bob",
    ]
    for key in ("", "bob"):
        assert main(["retain", "always", "--key", key, "--home", str(home)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Conversations are kept until you forget them."


@pytest.mark.parametrize("given", ["0", "-1", "nan", "inf", "soon"])
def test_what_is_no_number_of_days_is_refused(
    home: Path, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["retain", "--home", str(home), "--", given]) == 2
    assert "is no number of days" in capsys.readouterr().err


def test_an_unknown_key_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["retain", "3", "--key", "eve", "--home", str(home)]) == 2
    assert "there is no key 'eve': default" in capsys.readouterr().err


async def test_the_supervisor_asks_for_what_is_too_old_and_starts_the_process(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await Record.open(read_settings({"home": home}).database_url)
    now = time.time()
    await record.write_turns(
        [
            make_turn("old", [{"role": "user", "content": "Hi"}], session_id="a", created_at=now - 90_000),
            make_turn("new", [{"role": "user", "content": "Hi"}], session_id="b", created_at=now),
        ]
    )
    await record.retain(1.0)
    forgetting = Forgetting(read_settings({"home": home}))
    started = []

    async def start(child: Child) -> None:
        started.append(child.name)

    monkeypatch.setattr(Child, "start", start)
    await forgetting.look(record, has_changed=False)
    assert (len(await record.open_forget_jobs()), started) == (1, ["forgetting"])
    await record.close()
