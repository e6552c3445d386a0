"""`run.py explain` on a record that the recorder wrote."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from cli.main import main
from cli.recorded_traffic import draft_of, parse_line, turn_of
from lab.evals.client_models import lines_of
from migrations import upgrade
from recorder.turn_recorder import TurnRecorder
from store.record import Record
from store.settings import read_settings
from store.values import Feedback, Json, WishReading, WishScope
from tests.making import make_verdict


def continued(lines: list[Json], seq: int) -> Json:
    """Return a request that continues the one of ``seq``: only then a repeated prompt is a verdict."""
    line = next(line for line in lines if line["seq"] == seq)
    reply = line["response"]["choices"][0]["message"]
    messages = [*line["body"]["messages"], reply, {"role": "user", "content": "And a second one?"}]
    body = {**line["body"], "messages": messages}
    response = {**line["response"], "id": "chatcmpl-scripts-continued"}
    return {**line, "seq": 90, "time": line["time"] + 1.5, "body": body, "response": response}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of a chat with a title, an edit and a retry."""
    folder = tmp_path_factory.mktemp("home")
    url = read_settings({"home": folder}).database_url
    upgrade(url)

    async def fill() -> None:
        record = await Record.open(url)

        async def opening() -> Record:
            return record

        recorder = TurnRecorder(opening)
        for offset, name in ((0, "titled-after"), (100, "scripts")):
            for line in [*lines_of(name), *([continued(lines_of(name), 5)] if name == "scripts" else [])]:
                row = parse_line(json.dumps({**line, "seq": line["seq"] + offset}).encode(), name, 1)
                draft = draft_of(row)
                assert draft is not None
                await recorder.write([draft])
        await record.add_feedback(
            Feedback(
                feedback_id="f",
                turn_id=turn_of(104),
                score=-1.0,
                text="no accents",
                idempotency_key="f",
                created_at=5.0,
            )
        )
        wish = WishReading(text="no emoji, [ever]", scope=WishScope.LASTING)
        await record.add_verdict(make_verdict(turn_of(102), wish=wish))
        await record.close()

    asyncio.run(fill())
    return folder


def explained(home: Path, turn: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["explain", turn, "--home", str(home)]) == 0
    return capsys.readouterr().out


def test_a_side_turn_is_shown_with_its_rule_and_evidence(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = explained(home, turn_of(2), capsys)
    assert "side, because: title (a name for the conversation)" in text
    assert re.search(r"evidence +\+\d\.\d\d +about_title +the newest text: a name for the conversation", text)
    assert re.search(r"evidence +\+\d\.\d\d +the sum: side", text)
    assert "next, because: quotes a recorded exchange (confidence 0.90)" in text
    assert f"parent  {turn_of(1)}: “My sourdough starter" in text
    assert "became  dropped (side_turn): title" in text


def test_every_next_state_is_shown_for_branches_and_retries_too(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = explained(home, f"{turn_of(101)}.1", capsys)
    assert "main, because: conversation (no evidence of a side turn outweighs the rest)" in first
    assert "user, next" in first
    assert "“too grand”" in first
    assert "user, branch" in first
    assert "“something Italian”" in first
    again = explained(home, turn_of(104), capsys)
    assert f"user, retry, {again.split('user, retry, ')[1][:19]}: asked again ({turn_of(105)})" in again
    assert "feedback  -1 no accents" in again
    assert "verdict  -1 by" in explained(home, turn_of(102), capsys)


def test_the_wish_of_a_verdict_stands_beside_its_hint_with_its_scope(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turn_id = turn_of(102)
    assert "lasting wish: “no emoji, [ever]”" in explained(home, turn_id, capsys)
    assert main(["explain", turn_id, "--json", "--home", str(home)]) == 0
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert (verdict["wish"], verdict["wish_scope"]) == ("no emoji, [ever]", "lasting")


def test_the_end_of_an_id_and_a_completion_id_name_a_turn_too(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = explained(home, turn_of(105), capsys)
    assert explained(home, turn_of(105)[-8:], capsys) == whole
    assert explained(home, "chatcmpl-scripts-5", capsys) == whole


def test_the_newest_main_turn_is_called_last(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(home, "last", capsys) == explained(home, turn_of(18), capsys)


def test_as_json_it_is_all_that_is_recorded(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", turn_of(104), "--json", "--home", str(home)]) == 0
    story = json.loads(capsys.readouterr().out)
    assert story["parent"]["turn_id"] == f"{turn_of(101)}.1"
    assert [state["relation"] for state in story["next_states"]] == ["retry"]


def test_a_turn_that_is_not_there_is_one_sentence(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "turn_absent%", "--home", str(home)]) == 2
    assert "no turn 'turn_absent%' is recorded" in capsys.readouterr().err
