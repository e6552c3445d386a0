"""`run.py classify` through the same entry as a person's shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import main
from lab.evals.client_models import lines_of


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    path = tmp_path / "traffic.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines_of("titled-after")), encoding="utf-8")
    return path


def test_it_prints_what_it_found_and_writes_a_line_a_request(
    traffic: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "predictions.jsonl"
    assert main(["classify", str(traffic), "--predictions", str(out)]) == 0
    output = capsys.readouterr().out
    assert "18 requests in 4 sessions: 14 main, 4 side" in output
    assert "side because: 3 title, 1 same_body" in output
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, 19))
    assert set(lines[0]) == {"seq", "session", "kind", "parent_seq", "relation", "link_reason", "kind_reason"}
    assert (lines[1]["kind"], lines[1]["session"]) == ("side", lines[0]["session"])


def test_a_bad_line_is_one_sentence_and_exit_code_2(
    traffic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with traffic.open("a", encoding="utf-8") as file:
        file.write("{broken\n")
    assert main(["classify", str(traffic)]) == 2
    output = capsys.readouterr().err
    assert "line 19: not JSON" in output
    assert output.count("\n") == 1


def test_predictions_that_cannot_be_written_are_one_sentence(
    traffic: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["classify", str(traffic), "--predictions", str(tmp_path)]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_it_touches_no_home(traffic: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert main(["classify", str(traffic), "--home", str(home)]) == 0
    assert not home.exists()
