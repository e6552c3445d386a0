"""`run.py wishes`, and the complaints that taught nothing in `status` and `why`: through the same entry as a person's shell."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from cli.unused import lines_of
from cli.wishes import version_before
from store.drop_reasons import SENTENCES
from store.lifecycle import DropReason
from store.record import Record
from store.settings import read_settings
from store.values import AdapterState, AdapterVersion, Json, StepReport, UnusedComplaint, WishEdit
from store.version import COMMAND
from tests.cli.test_commands import fill
from tests.making import make_answer, make_turn, make_verdict

POLICY = "patina-tiny"


def row(*turns: str, state: str = "active", overruled_by: str = "", now: float | None = 0.96) -> Json:
    return {
        "turns": list(turns),
        "state": state,
        "overruled_by": overruled_by,
        "version": 1,
        "before": 0.1,
        "now": now,
        "best": 0.97,
    }


def version(number: int, metrics: Json, **changes: Any) -> AdapterVersion:
    fields: dict[str, Any] = {
        "policy": POLICY,
        "version": number,
        "path": f"/adapters/{number}",
        "content_hash": "0" * 64,
        "parent_version": number - 1,
        "state": AdapterState.PUBLISHED,
        "reason": "4 turns: 4 complaints",
        "method": "combine",
        "metrics": metrics,
        "created_at": 2_000.0,
    }
    return AdapterVersion(**{**fields, **changes})


async def add_turn(
    record: Record, turn_id: str, text: str, *, hint: str | None, value: int = -1, at: float = 1_000.0
) -> None:
    asked = make_turn(
        turn_id,
        [{"role": "user", "content": f"Question {turn_id}?"}],
        session_id=f"s-{turn_id}",
        created_at=at,
    )
    reacted = make_turn(
        f"{turn_id}-next",
        session_id=f"s-{turn_id}",
        parent_turn_id=turn_id,
        turn_index=1,
        next_state=make_answer(turn_id, f"{turn_id}-next", text),
    )
    await record.write_turns([asked, reacted])
    await record.add_verdict(make_verdict(turn_id, value, hint=hint))


async def publish(record: Record, adapter: AdapterVersion, turn_ids: Sequence[str] = ()) -> None:
    report = StepReport(
        step_id=f"step-{adapter.version}",
        policy=POLICY,
        method="combine",
        started_at=1_990.0,
        finished_at=2_000.0,
        version=adapter.version,
        error=None,
        metrics={},
    )
    await record.publish(adapter, turn_ids, report, worker="w")


async def _fill(record: Record) -> None:
    """Version 1 was made without wishes; version 2 is live and has three."""
    await add_turn(record, "t-spanish", "in spanish!", hint="Answer in Spanish.", at=1_000.0)
    await add_turn(record, "t-wordy", "too long", hint="Too long.", at=1_001.0)
    await add_turn(record, "t-short", "[shorter] please", hint="[Shorter], please.", at=1_002.0)
    await add_turn(record, "t-french", "in french", hint="Answer in French.", at=1_003.0)
    await add_turn(record, "t-again", "shorter", hint="[Shorter], please.", at=1_004.0)
    await record.claim(POLICY, 9, worker="w", lease_s=60)
    await publish(record, version(1, {"turns": 1, "wishes": []}), ["t-again"])
    rows = [
        row("t-spanish", state="overruled", overruled_by="t-french", now=None),
        row("t-wordy", "t-short"),
        row("t-french", now=0.5),
    ]
    turns = ["t-spanish", "t-wordy", "t-short", "t-french"]
    await publish(record, version(2, {"turns": 4, "wishes": rows}), turns)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    fill(folder, _fill)
    return folder


def edits_of(home: Path) -> list[WishEdit]:
    async def read() -> list[WishEdit]:
        record = await Record.open(read_settings({"home": home}).database_url)
        try:
            return await record.wish_edits(POLICY)
        finally:
            await record.close()

    return asyncio.run(read())


def listed(home: Path, capsys: pytest.CaptureFixture[str]) -> list[Json]:
    capsys.readouterr()
    assert main(["wishes", "--json", "--home", str(home)]) == 0
    found: list[Json] = json.loads(capsys.readouterr().out)["wishes"]
    return found


def test_wishes_are_listed_in_the_persons_words_with_how_well_they_are_followed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wishes", "--home", str(home)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"{POLICY}@2 was asked for:"
    assert shown[1:3] == ["  1  “Answer in Spanish.”", "     overruled by 3 · not measured in this version"]
    second = shown.index("  2  “[Shorter], please.”")
    assert shown[second + 1] == "     active · followed now in 96% of replies (best 97%)"
    assert shown[second + 2].startswith("     stated 3 times, last 19")
    assert shown[second + 2].endswith("(turn t-again)")
    assert shown[second + 3] == "     also: “Too long.”"
    one = listed(home, capsys)[1]
    assert (one["text"], one["other_wordings"], one["stated"], one["last_turn_id"]) == (
        "[Shorter], please.",
        ["Too long."],
        3,
        "t-again",
    )
    assert (one["now"], one["state"], one["removed"]) == (0.96, "active", False)


def test_an_edited_wish_has_the_new_words_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wishes", "edit", "2", "At most [ten]  words.", "--home", str(home)]) == 0
    output = capsys.readouterr().out
    assert output.startswith("wish 2 is now “At most [ten] words.” (before: “[Shorter], please.”)")
    assert "from the next version on" in output
    assert edits_of(home) == [
        WishEdit(turn_id="t-wordy", text=""),
        WishEdit(turn_id="t-short", text="At most [ten] words."),
    ]
    one = listed(home, capsys)[1]
    assert (one["text"], one["other_wordings"], one["stated"]) == ("At most [ten] words.", [], 3)


def test_a_removed_wish_says_what_happens_next_and_an_edit_takes_the_removal_back(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wishes", "remove", "2", "--home", str(home)]) == 0
    output = capsys.readouterr().out
    assert "The next version unlearns it; no new turn is needed." in output
    assert f"`{COMMAND} rollback 1` goes back to version 1" in output
    assert edits_of(home) == [WishEdit(turn_id=i, text=None) for i in ("t-wordy", "t-short")]
    assert [one["removed"] for one in listed(home, capsys)] == [False, True, False]
    main(["wishes", "--home", str(home)])
    assert "removed: the next version unlearns it" in capsys.readouterr().out
    main(["wishes", "edit", "2", "Shorter.", "--home", str(home)])
    assert [one["removed"] for one in listed(home, capsys)] == [False, False, False]


def test_removing_while_training_is_paused_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["pause", "--home", str(home)])
    main(["wishes", "remove", "3", "--json", "--home", str(home)])
    changed = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert (changed["live"], changed["wish"]["removed"]) == (2, True)
    main(["wishes", "remove", "1", "--home", str(home)])
    assert "once training is resumed" in capsys.readouterr().out


def test_withdrawn_wishes_are_shown_and_cannot_be_changed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def next_version(record: Record) -> None:
        rows = [row("t-french", state="withdrawn", now=0.4), row("t-short", state="unlearnt", now=0.0)]
        await publish(record, version(3, {"turns": 0, "wishes": rows}))

    fill(home, next_version)
    main(["wishes", "--home", str(home)])
    shown = capsys.readouterr().out
    assert "withdrawn, being unlearnt · followed now in 40%" in shown
    assert "withdrawn and unlearnt · followed now in 0%" in shown
    assert main(["wishes", "remove", "1", "--home", str(home)]) == 2
    assert "ask for it in a conversation to have it back" in capsys.readouterr().err


def test_a_wish_whose_words_are_forgotten_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def next_version(record: Record) -> None:
        await publish(record, version(3, {"turns": 0, "wishes": [row("gone")]}))

    fill(home, next_version)
    main(["wishes", "--home", str(home)])
    assert "(the words are not in the record any more)" in capsys.readouterr().out
    assert main(["wishes", "edit", "1", "words", "--home", str(home)]) == 2


@pytest.mark.parametrize(
    ("argv", "output"),
    [
        (["wishes", "remove", "9"], "has no wish 9: there are 1 to 3"),
        (["wishes", "remove"], f"it is `{COMMAND} wishes remove N`"),
        (["wishes", "edit", "1"], f'it is `{COMMAND} wishes edit N "OTHER WORDS"`'),
        (["wishes", "edit", "1", "  "], "the words are empty"),
        (["wishes", "list", "1"], f"it is `{COMMAND} wishes`"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    home: Path, argv: list[str], output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--home", str(home)]) == 2
    error = capsys.readouterr().err
    assert output in error
    assert error.count("\n") == 1
    assert edits_of(home) == []


def test_without_a_version_or_a_wish_a_sentence_says_so(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["rollback", "1", "--home", str(home)])
    capsys.readouterr()
    assert main(["wishes", "--home", str(home)]) == 0
    assert "patina-tiny@1 has no wish" in capsys.readouterr().out
    main(["rollback", "0", "--home", str(home)])
    capsys.readouterr()
    assert main(["wishes", "--home", str(home)]) == 0
    assert "without a version" in capsys.readouterr().out
    assert main(["wishes", "remove", "1", "--home", str(home)]) == 2
    assert "nothing was asked of the model yet" in capsys.readouterr().err


def test_the_version_before_a_wish_is_the_newest_ancestor_that_can_serve_without_it() -> None:
    first = version(1, {"wishes": []})
    second = version(2, {"wishes": [row("a")]})
    third = version(3, {"wishes": [row("b", "a")]})
    other = version(4, {"wishes": [row("x")]}, parent_version=3)
    live = version(5, {"wishes": [row("b")]}, parent_version=3)
    assert version_before([first, second, third, other, live], 5, ["b"]) == 1
    pruned = version(1, {"wishes": []}, state=AdapterState.PRUNED)
    assert version_before([pruned, second, third, live], 5, ["b"]) is None
    assert version_before([version(1, {"wishes": [row("a")]})], 1, ["a"]) == 0


# --------------------------------------------------------- what taught nothing


async def _drop(record: Record) -> None:
    """A batch of a complaint that teaches, two that do not, thanks as always, and one neutral turn."""
    now = time.time()
    await add_turn(record, "1-used", "shorter", hint="shorter")
    await add_turn(record, "2-vague", "That is wrong, check again.", hint="That is wrong, check again.")
    await add_turn(record, "3-empty", "Wrong.", hint=None)
    await add_turn(record, "4-neutral", "and Italy?", hint=None, value=0)
    await add_turn(record, "5-long-ago", "Bad.", hint=None)
    await record.claim(POLICY, 9, worker="w", lease_s=60)
    detail = "the model does not act on these words: effect 0.010 nat on this reply, 0.003 on others"
    await record.drop(["2-vague"], DropReason.HINT_IRRELEVANT, now - 20, worker="w", detail=detail)
    await record.drop(["3-empty", "4-neutral"], DropReason.NO_SIGNAL, now - 10, worker="w")
    await record.drop(["5-long-ago"], DropReason.NO_SIGNAL, now - 8 * 86_400, worker="w")
    unused = {"2-vague": "hint_irrelevant", "3-empty": "no_signal", "4-neutral": "no_signal"}
    await publish(record, version(1, {"turns": 1, "unused_turns": unused}), ["1-used"])


def test_status_names_the_complaints_that_changed_nothing_newest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, _drop)
    assert main(["status", "--home", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "changed nothing" in line]
    assert lines == [
        "1 of your complaints in the last 7 days changed nothing: “Wrong.” (it does not say what to do differently)",
        "1 of your complaints in the last 7 days changed nothing: “That is wrong, check again.” "
        "(the model does not act on these words; say what to do differently)",
    ]
    main(["status", "--json", "--home", str(tmp_path)])
    unused = json.loads(capsys.readouterr().out)["unused_complaints"]
    assert [(one["turn_id"], one["drop_reason"]) for one in unused] == [
        ("3-empty", "no_signal"),
        ("2-vague", "hint_irrelevant"),
    ]
    assert unused[0]["sentence"] == "it does not say what to do differently"


def test_why_shows_which_turns_of_the_batch_taught_and_why_the_others_did_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, _drop)
    assert main(["why", "1", "--home", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "1 of your turns" in shown
    assert "2 of its turns taught nothing" in shown
    assert "hint_irrelevant: the model does not act on these words" in shown
    assert "no_signal: it does not say what to do differently" in shown
    assert "1 neutral turns came along" in shown
    main(["why", "1", "--json", "--home", str(tmp_path)])
    why = json.loads(capsys.readouterr().out)
    assert [turn["turn_id"] for turn in why["turns"]] == ["1-used"]
    assert [turn["turn_id"] for turn in why["unused_turns"]] == ["2-vague", "3-empty", "4-neutral"]


def test_equal_words_are_shown_once_and_many_are_counted() -> None:
    def complaint(text: str, detail: str = "") -> UnusedComplaint:
        return UnusedComplaint(
            turn_id="t",
            text=text,
            hint=text,
            drop_reason=DropReason.HINT_IRRELEVANT,
            detail=detail,
            dropped_at=1.0,
        )

    answer = "the words give an answer to this question, not a preference"
    lines = lines_of(
        [*(complaint(text) for text in ("a", "b", "a", "c", "d", "e")), complaint("No, Lyon.", answer)], 7
    )
    assert lines[0].startswith(
        "6 of your complaints in the last 7 days changed nothing: “a”, “b”, “c” and 2 more ("
    )
    assert lines[1].endswith(f"“No, Lyon.” ({answer}; say what to do differently)")
    assert lines_of([]) == []


def test_every_drop_reason_has_a_sentence() -> None:
    assert set(SENTENCES) == set(DropReason)
