"""`run.py wishes`, and the complaints that taught nothing in `status` and `why`: through the same entry as a person's shell."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from cli.unused import lines_of
from store.drop_reasons import SENTENCES
from store.lifecycle import DropReason
from store.record import Record
from store.values import (
    AdapterState,
    AdapterVersion,
    Heartbeat,
    Json,
    StepReport,
    UnusedComplaint,
    WishReading,
    WishScope,
    WishState,
)
from store.version import COMMAND
from tests.cli.test_commands import fill
from tests.making import make_answer, make_turn, make_verdict

POLICY = "patina-tiny"


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


async def state_wish(
    record: Record,
    turn_id: str,
    text: str,
    *,
    at: float,
    policy: str = POLICY,
    scope: WishScope = WishScope.LASTING,
) -> None:
    await record.write_turns([make_turn(turn_id, session_id=turn_id, created_at=at, policy=policy)])
    wish = WishReading(text=text, scope=scope)
    await record.add_verdict(make_verdict(turn_id, wish=wish, created_at=at))


async def _fill(record: Record) -> None:
    """Four wishes: one with a measured share, one that was stated twice, one retired, one of another policy; and one withdrawn."""
    await state_wish(record, "t-spanish", "Answer in Spanish.", at=1_000.0)
    await state_wish(record, "t-short", "[Shorter], please.", at=1_001.0)
    await state_wish(record, "t-again", "[shorter] please", at=1_002.0)
    await state_wish(record, "t-captain", "Call me Captain.", at=1_003.0)
    await state_wish(record, "t-rhyme", "Answer in rhymes.", at=1_004.0)
    await state_wish(record, "t-no-rhyme", "No more rhymes.", at=1_005.0, scope=WishScope.WITHDRAWAL)
    await state_wish(record, "t-bob", "Be kind.", at=1_006.0, policy="patina-tiny.bob")
    spanish, _, captain, *_ = await record.wishes()
    await record.change_wish(spanish.wish_id, measures={"weights": 0.4, "told": 0.9})
    await record.change_wish(captain.wish_id, state=WishState.RETIRED, measures={"weights": 0.96})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    fill(folder, _fill)
    return folder


def listed(home: Path, capsys: pytest.CaptureFixture[str], *more: str) -> list[Json]:
    capsys.readouterr()
    assert main(["wishes", "--json", *more, "--home", str(home)]) == 0
    found: list[Json] = json.loads(capsys.readouterr().out)["wishes"]
    return found


def states(found: list[Json]) -> list[tuple[str, str, bool]]:
    return [(one["text"], one["state"], one["in_prompt"]) for one in found]


def test_wishes_are_listed_in_the_persons_words_with_where_they_act(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wishes", "--home", str(home)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"{POLICY} was asked for:"
    assert shown[1:3] == ["  1  “Answer in Spanish.”", "     in the prompt, in the weights 40%"]
    second = shown.index("  2  “[Shorter], please.”")
    assert shown[second + 1] == "     in the prompt"
    assert shown[second + 2].startswith("     stated 2 times, last 19")
    assert shown[second + 2].endswith("(turn t-again)")
    assert shown[second + 3] == "     also: “[shorter] please”"
    assert "     retired: the weights follow it alone, in the weights 96%" in shown
    assert shown[shown.index("  4  “Answer in rhymes.”") + 1] == "     withdrawn"
    assert shown.index(f"{POLICY}.bob was asked for:") == len(shown) - 4
    one = listed(home, capsys)[1]
    assert (one["number"], one["policy"], one["stated"], one["edited"]) == (2, POLICY, 2, False)
    assert [statement["turn_id"] for statement in one["statements"]] == ["t-short", "t-again"]
    assert [one["text"] for one in listed(home, capsys, "--policy", "bob")] == ["Be kind."]
    assert [one["text"] for one in listed(home, capsys, "--policy", f"{POLICY}.bob")] == ["Be kind."]


def test_an_edited_wish_has_the_new_words_and_is_in_the_prompt(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wishes", "edit", "3", "Say [my]  name.", "--home", str(home)]) == 0
    output = capsys.readouterr().out
    assert (
        output == "wish 3 is now “Say [my] name.” (before: “Call me Captain.”), from the next request on.\n"
    )
    one = listed(home, capsys)[2]
    assert (one["text"], one["state"], one["edited"], one["measures"]) == (
        "Say [my] name.",
        "prompt",
        True,
        {},
    )
    main(["wishes", "--home", str(home)])
    assert "in the prompt · your own wording" in capsys.readouterr().out


def test_a_removed_wish_is_in_no_prompt_and_an_edit_takes_the_removal_back(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wishes", "remove", "2", "--home", str(home)]) == 0
    assert capsys.readouterr().out == (
        "wish 2 is removed: “[Shorter], please.”. It is in no prompt from the next request on.\n"
    )
    assert states(listed(home, capsys))[1] == ("[Shorter], please.", "withdrawn", False)
    assert main(["wishes", "remove", "2", "--home", str(home)]) == 2
    assert "wish 2 is withdrawn already" in capsys.readouterr().err
    assert main(["wishes", "edit", "2", "Shorter.", "--json", "--home", str(home)]) == 0
    wish = json.loads(capsys.readouterr().out)["wish"]
    assert (wish["text"], wish["state"], wish["in_prompt"]) == ("Shorter.", "prompt", True)


def test_removing_what_the_weights_learnt_says_what_the_next_version_does(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["wishes", "remove", "3", "--home", str(home)])
    assert capsys.readouterr().out.endswith("The next version is made without it.\n")
    main(["pause", "--home", str(home)])
    main(["wishes", "remove", "1", "--home", str(home)])
    assert capsys.readouterr().out.endswith(
        "The next version is made without it, once training is resumed.\n"
    )


def test_only_the_wishes_that_the_gateway_adds_are_in_the_prompt(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def turn_off(record: Record) -> None:
        detail = {"wishes": {"is_on": False}}
        await record.heartbeat(Heartbeat(process="proxy", pid=1, state="running", detail=detail, at=1.0))

    fill(home, turn_off)
    assert not any(one["in_prompt"] for one in listed(home, capsys))
    main(["wishes", "--home", str(home)])
    shown = capsys.readouterr().out
    assert "heard, not in the prompt, in the weights 40%" in shown
    assert "The gateway adds no wishes to prompts (--wishes)." in shown


def test_the_ninth_newest_wish_is_not_in_the_prompt(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def more(record: Record) -> None:
        for number in range(7):
            await state_wish(record, f"more-{number}", f"wish number {number}", at=2_000.0 + number)

    fill(home, more)
    found = [one for one in listed(home, capsys) if one["policy"] == POLICY and one["state"] == "prompt"]
    assert [one["in_prompt"] for one in found] == [False] + [True] * 8


@pytest.mark.parametrize(
    ("argv", "output"),
    [
        (["wishes", "remove", "9"], "there is no wish 9: there are 1, 2, 3, 4, 5"),
        (["wishes", "remove", "1", "--policy", "bob"], "there is no wish 1: there are 5"),
        (
            ["wishes", "remove", "1", "--policy", "eve"],
            "there is no wish 1: nothing was asked of the model yet",
        ),
        (["wishes", "remove"], f"it is `{COMMAND} wishes remove N`"),
        (["wishes", "edit", "1"], f'it is `{COMMAND} wishes edit N "OTHER WORDS"`'),
        (["wishes", "edit", "1", "  "], "the words are empty"),
        (["wishes", "list", "1"], f"it is `{COMMAND} wishes`"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    home: Path, argv: list[str], output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listed(home, capsys)
    assert main([*argv, "--home", str(home)]) == 2
    error = capsys.readouterr().err
    assert output in error
    assert error.count("\n") == 1
    assert listed(home, capsys) == before


def test_without_a_wish_a_sentence_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def nothing(record: Record) -> None:
        assert await record.wishes() == ()

    fill(tmp_path, nothing)
    assert main(["wishes", "--home", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "There is no wish: nothing was asked of the model yet.\n"


def test_explain_shows_what_was_added_to_a_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def serve(record: Record) -> None:
        await record.write_turns([make_turn("t", wish_text="Shorter.\nIn French.", wish_place="behind")])

    fill(tmp_path, serve)
    assert main(["explain", "t", "--home", str(tmp_path)]) == 0
    assert "2 added to its prompt (behind): Shorter. · In French." in capsys.readouterr().out


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
