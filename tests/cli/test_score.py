"""`run.py score` through the same entry as a person's shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from cli.score import RecordedReaction, predict
from scorers.registry import build_scorer_chain
from store.settings import read_settings
from tests.scorers.conftest import ScriptedJudge, scripted

__all__ = ["scripted"]  # a fixture

REPLY = "The capital of France is Paris! 😊 It lies on the Seine."
ROWS: list[dict[str, Any]] = [
    {"prompt": "Capital of France?", "reply": REPLY, "text": "Shorter please, and no emoji.", "verdict": -1},
    {
        "prompt": [{"role": "user", "content": "Hi"}],
        "reply": REPLY,
        "text": "Perfect, thank you!",
        "verdict": 1,
    },
    {"text": "And what is the capital of Peru?", "verdict": 0},
    {"reply": REPLY, "text": ""},
    {"reply": REPLY, "text": "great, now it deletes my files", "verdict": -1},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def predictions(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_it_writes_a_line_a_reaction_in_order_and_compares_with_the_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out, home = write(tmp_path / "r.jsonl", ROWS), tmp_path / "p.jsonl", tmp_path / "home"
    assert main(["score", str(file), "--predictions", str(out), "--home", str(home)]) == 0
    written = predictions(out)
    assert [row["verdict"] for row in written] == [-1, 1, 0, None, -1]
    assert [set(row) for row in written] == [{"verdict", "hint", "wish", "wish_scope", "by", "reason"}] * 5
    assert [row["hint"] for row in written] == ["Shorter please, and no emoji.", None, None, None, None]
    assert [row["wish"] for row in written] == ["Shorter please, and no emoji.", None, None, None, None]
    assert [row["wish_scope"] for row in written] == ["lasting", None, None, None, None]
    assert [row["by"] for row in written[:4]] == ["rule:complaint", "rule:thanks", "none", "none"]
    assert all(row["reason"] for row in written)
    printed = capsys.readouterr().out
    assert (
        "5 reactions: 2 complained or wished (-1), 1 accepted (+1), 1 neither or undecided (0), 1 empty; 1 hint, 1 wish"
        in printed
    )
    assert "-1: precision 1.000 (2 of 2), recall 1.000 (2 of 2)" in printed
    assert "accuracy 1.000 (4 of 4)" in printed
    assert not home.exists()


def test_without_labels_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(write(tmp_path / "r.jsonl", [{"text": "Thanks!"}]))]) == 0
    assert "no labels: nothing to compare with" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{broken", "line 3: not JSON"),
        ("[1]", "line 3: not an object"),
        ('{"reply": "x"}', 'line 3: "text" is missing or not a string'),
        ('{"text": 7}', 'line 3: "text" is missing or not a string'),
        ('{"text": "a", "reply": 7}', 'line 3: "reply" is not a string'),
        ('{"text": "a", "prompt": [7]}', 'line 3: "prompt" is neither a string nor a list of messages'),
        ('{"text": "a", "verdict": "good"}', 'line 3: "verdict" is "good", not -1, 0, 1 or null'),
        ('{"text": "a", "verdict": true}', 'line 3: "verdict" is true, not -1, 0, 1 or null'),
    ],
)
def test_a_bad_line_is_one_sentence_with_its_number(
    line: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(f'{{"text": "ok"}}\n\n{line}\n', encoding="utf-8")
    assert main(["score", str(file)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_a_file_that_cannot_be_read_or_written_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["score", str(tmp_path / "missing.jsonl")]) == 2
    assert "cannot read" in capsys.readouterr().err
    file = write(tmp_path / "r.jsonl", [{"text": "ok"}])
    assert main(["score", str(file), "--predictions", str(tmp_path)]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.slow  # imports litellm
async def test_a_named_judge_is_asked_where_the_words_do_not_decide(scripted: ScriptedJudge) -> None:
    settings = read_settings(
        {
            "home": "/nowhere",
            "judge": "openai/some-judge",
            "judge_api_base": scripted.base,
            "judge_api_key": "none",
        }
    )
    undecided = RecordedReaction(prompt="Hi", reply=REPLY, text="And the capital of Peru?", verdict=0)
    sure = RecordedReaction(prompt="Hi", reply=REPLY, text="Shorter please, and no emoji.", verdict=-1)
    first, second = await predict(build_scorer_chain(settings), [undecided, sure])
    assert (first.verdict, first.by, first.reason) == (1, "judge:openai/some-judge", "votes +1, +1, +1")
    assert (second.verdict, second.by) == (-1, "rule:complaint")
    assert len(scripted.requests) == 3


async def test_a_frameworks_text_is_no_complaint_and_a_wrapped_one_is(tmp_path: Path) -> None:
    chain = build_scorer_chain(read_settings({"home": str(tmp_path), "judge": "none"}))
    rejected = f"1 validation error for City [type=json_invalid, input_value={REPLY!r}]\nToo long, be brief!"
    wrapped = "<environment_details>\nmode: code\n</environment_details>\n\n<feedback>\nShorter please.\n</feedback>"
    earlier = [("user", "Hi"), ("assistant", "Hello."), ("user", "And Oslo?")]
    prompt = tuple({"role": role, "content": content} for role, content in earlier)
    program, person = await predict(
        chain,
        [RecordedReaction(prompt=prompt, reply=REPLY, text=text, verdict=-1) for text in (rejected, wrapped)],
    )
    assert (program.verdict, program.hint, program.by) == (-1, None, "rule:schema")
    assert (person.verdict, person.hint) == (-1, "Shorter please.")
