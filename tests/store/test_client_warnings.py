"""`run.py clients` and the line of `status`: whose traffic looks wrong, why, and what helps."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from migrations import upgrade
from store import client_warnings as clients
from store.drop_reasons import sentence_of
from store.lifecycle import DropReason
from store.record import Record
from store.settings import read_settings
from store.values import ClientTraffic, Relation, TurnKind
from store.version import COMMAND
from tests.making import make_answer, make_turn


def traffic(client: str = "desk/1", **changes: Any) -> ClientTraffic:
    """Return a healthy client of 30 turns."""
    values: dict[str, Any] = {
        "main": 25,
        "side": 5,
        "linked": 20,
        "followed": 20,
        "trained": 15,
        "side_reasons": {"title": 5},
        "drop_reasons": {DropReason.NO_SIGNAL: 3},
        "last_side_turn": "turn-side",
        "last_main_turn": "turn-main",
        "last_seen_at": 1.0,
    }
    return ClientTraffic(client=client, **{**values, **changes})


def codes(*some: ClientTraffic) -> list[tuple[str, str, str]]:
    return [(one.client, one.code.value, one.reason) for one in clients.warnings_of(some)]


def test_a_healthy_client_gets_no_warning() -> None:
    assert codes(traffic()) == []


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        ({"main": 2, "side": 18, "side_reasons": {"memory": 16, "title": 2}}, "nearly_all_side", "memory"),
        ({"linked": 0, "followed": 0, "trained": 0}, "never_linked", ""),
        ({"followed": 0, "trained": 0}, "never_followed", ""),
        ({"trained": 0, "drop_reasons": {DropReason.CONSTRAINED: 18, DropReason.STALE: 2}}, "never_trained", "constrained"),
    ],
)  # fmt: skip
def test_each_kind_of_wrong_traffic_has_its_code_and_reason(
    changes: dict[str, Any], code: str, reason: str
) -> None:
    assert codes(traffic(**changes)) == [("desk/1", code, reason)]


@pytest.mark.parametrize(
    "changes",
    [
        {"main": 1, "side": 18, "side_reasons": {"memory": 18}},
        {"main": 3, "side": 17, "side_reasons": {"memory": 17}},
        {"main": 19, "side": 0, "linked": 0, "followed": 0, "trained": 0, "side_reasons": {}},
        {"trained": 0, "drop_reasons": {DropReason.CONSTRAINED: 19}},
        {"trained": 1, "drop_reasons": {DropReason.CONSTRAINED: 24}},
    ],
)
def test_too_little_traffic_or_a_smaller_share_is_no_warning(changes: dict[str, Any]) -> None:
    assert codes(traffic(**changes)) == []


def test_the_sentence_names_the_counts_the_reason_and_the_mend() -> None:
    (one,) = clients.warnings_of([traffic(main=2, side=18, side_reasons={"memory": 16, "title": 2})])
    assert one.sentence == (
        "desk/1: 18 of its 20 turns are side turns, 16 of them `memory`, and never train; if a person wrote them, "
        f"`{COMMAND} explain turn-side` shows why, and the header `X-Turn-Type: main` corrects it"
    )


def test_every_drop_reason_gives_a_sentence_and_a_mend() -> None:
    for reason in DropReason:
        (one,) = clients.warnings_of([traffic(trained=0, drop_reasons={reason: 20})])
        assert one.reason == reason.value
        assert one.what.endswith(sentence_of(reason))
        assert len(one.mend) > 10


def test_side_requests_of_a_program_that_names_itself_only_in_its_main_ones_are_no_warning() -> None:
    library = traffic("OpenAI/JS 7", main=0, side=30, side_reasons={"summary": 30}, last_main_turn=None)
    assert codes(library) == [("OpenAI/JS 7", "nearly_all_side", "summary")]
    assert codes(traffic("OpenClaw (OpenAI/JS 7)"), library) == []
    assert codes(traffic("OpenClaw (OpenAI/JS 8)"), library) == [
        ("OpenAI/JS 7", "nearly_all_side", "summary")
    ]


def test_status_has_one_line_however_many_clients_are_wrong() -> None:
    wrong = clients.warnings_of([traffic("a", linked=0), traffic("b", linked=0), traffic("c", followed=0)])
    (line,) = clients.status_lines(wrong)
    assert line.startswith("traffic looks wrong: a: 25 of its 25 main turns begin a conversation")
    assert line.endswith(f" (and 2 more); see `{COMMAND} clients`")
    assert clients.status_lines([]) == []


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a client that is all side turns, and one whose conversation goes on."""
    folder = tmp_path / "home"
    url = read_settings({"home": folder}).database_url
    upgrade(url)

    async def fill() -> None:
        record = await Record.open(url)
        await record.write_turns(
            [
                make_turn(
                    f"side-{i:02d}",
                    client="agent [9]",
                    session_id=f"s{i}",
                    kind=TurnKind.SIDE,
                    kind_reason="memory",
                    created_at=2_000.0 + i,
                    drop_reason=DropReason.SIDE_TURN,
                )
                for i in range(20)
            ]
        )
        await record.write_turns(
            [
                make_turn("main-1", client="desk/1"),
                make_turn(
                    "main-2",
                    client="desk/1",
                    parent_turn_id="main-1",
                    turn_index=1,
                    relation=Relation.NEXT,
                    next_state=make_answer("main-1", "main-2", "shorter"),
                ),
                make_turn(
                    "main-3",
                    client="desk/1",
                    parent_turn_id="main-2",
                    turn_index=2,
                    relation=Relation.NEXT,
                    next_state=replace(make_answer("main-2", "main-3", "4 C"), role="tool"),  # no person's
                ),
            ]
        )
        await record.close()

    asyncio.run(fill())
    return folder


def test_clients_lists_each_client_with_its_counts_and_warns(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["clients", "--no-wait", "--home", str(home)]) == 0
    shown = capsys.readouterr().out
    rows = [line.replace("│", " ").replace("┃", " ").split() for line in shown.splitlines()]
    assert [row[2:7] for row in rows if row[:2] == ["agent", "[9]"]] == [["20", "0%", "0%", "0%", "0"]]
    assert [row[1:6] for row in rows if row[:1] == ["desk/1"]] == [["3", "100%", "67%", "33%", "0"]]
    assert "agent [9]: 20 of its 20 turns are side turns, 20 of them `memory`" in shown
    assert f"`{COMMAND} explain side-19`" in shown


def test_clients_as_json_has_codes_beside_the_sentences(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clients", "--json", "--no-wait", "--home", str(home)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["client"], one["turns"], one["linked"]) for one in found["clients"]] == [
        ("agent [9]", 20, 0),
        ("desk/1", 3, 2),
    ]
    assert found["clients"][0]["side_reasons"] == {"memory": 20}
    assert found["clients"][0]["drop_reasons"] == {}
    (warning,) = found["warnings"]
    assert (warning["client"], warning["code"], warning["reason"]) == (
        "agent [9]",
        "nearly_all_side",
        "memory",
    )


def test_status_points_at_clients(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--no-wait", "--home", str(home)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if f"{COMMAND} clients" in line]
    assert lines == [
        "traffic looks wrong: agent [9]: 20 of its 20 turns are side turns, 20 of them `memory`, and never train; "
        f"see `{COMMAND} clients`"
    ]
    assert main(["status", "--json", "--no-wait", "--home", str(home)]) == 0
    (warning,) = json.loads(capsys.readouterr().out)["client_warnings"]
    assert warning["code"] == "nearly_all_side"


def test_clients_of_an_empty_record_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    upgrade(read_settings({"home": tmp_path}).database_url)
    assert main(["clients", "--no-wait", "--home", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no client has sent a request yet\n"
