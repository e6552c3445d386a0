"""Recorded traffic: how a file is read, what is predicted, how it is scored; and that the running proxy says the same."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.recorded_traffic import KindPrediction, Recorded, parse_line, read_traffic, replay, turn_of
from lab.evals.client_models import HISTORIES, REQUESTS, lines_of
from lab.evals.traffic_score import Pairs, pairs, score, true_predecessors
from migrations import upgrade
from store.errors import ConfigError
from tests.proxy.conftest import KEY, run_gateway
from tests.proxy.upstream import Upstream

LINE = {"seq": 1, "path": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "hi"}]}}


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


def rows_of(name: str) -> list[Recorded]:
    return [parse_line(json.dumps(line).encode(), name, line["seq"]) for line in lines_of(name)]


# ---------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("line", "predictions"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        (json.dumps({**LINE, "seq": "one"}), "seq is a whole number, not 'one'"),
        (json.dumps({**LINE, "time": "noon"}), "time is seconds"),
        (json.dumps({**LINE, "headers": ["x"]}), "headers an object"),
        (json.dumps({**LINE, "response": "hello"}), "response and label are objects"),
        (json.dumps({**LINE, "body": None}), "the request is not a JSON object"),
        (json.dumps({**LINE, "body": {}}), "the request has no list of messages"),
    ],
)
def test_a_line_that_cannot_be_read_ends_the_run_and_is_named(
    tmp_path: Path, line: str, predictions: str
) -> None:
    file = tmp_path / "traffic.jsonl"
    file.write_text(json.dumps(LINE) + "\n\n" + line + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 3") as caught:
        read_traffic(file)
    assert predictions in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_seq_that_was_there_before_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 2: seq 1 was there before"):
        read_traffic(write(tmp_path / "traffic.jsonl", [LINE, LINE]))


def test_an_empty_file_and_a_missing_one_are_reported_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no requests"):
        read_traffic(write(tmp_path / "traffic.jsonl", []))
    with pytest.raises(ConfigError, match="cannot read"):
        read_traffic(tmp_path / "absent.jsonl")


def test_lines_need_neither_seq_nor_time_nor_label(tmp_path: Path) -> None:
    bare = {"body": LINE["body"]}
    (row,) = read_traffic(write(tmp_path / "traffic.jsonl", [bare]))
    assert (row.seq, row.label) == (1, None)
    assert row.chat is not None
    (predictions,) = asyncio.run(replay([row]))
    assert (predictions.kind, predictions.relation) == ("main", "first")


# -------------------------------------------------------------------- replaying


def test_what_is_no_chat_is_none_and_of_no_session(tmp_path: Path) -> None:
    models = {"seq": 2, "method": "GET", "path": "/v1/models", "body": None}
    rows = read_traffic(write(tmp_path / "traffic.jsonl", [LINE, models]))
    predictions = asyncio.run(replay(rows))
    assert predictions[1].to_json() == {
        "seq": 2, "session": None, "kind": "none", "parent_seq": None, "relation": None, "link_reason": "", "kind_reason": "not_a_chat",
    }  # fmt: skip


def test_the_label_is_not_read() -> None:
    rows = rows_of("side-requests-at-the-end")
    blank = [
        parse_line(json.dumps({**line, "label": None}).encode(), "", 1)
        for line in lines_of("side-requests-at-the-end")
    ]
    assert asyncio.run(replay(rows)) == asyncio.run(replay(blank))


def test_explicit_headers_win() -> None:
    def line(seq: int, **headers: str) -> Recorded:
        return parse_line(json.dumps({**LINE, "seq": seq, "headers": headers}).encode(), "", seq)

    predictions = asyncio.run(
        replay([line(1, **{"X-Turn-Type": "side"}), line(2, **{"X-Session-Id": "mine"})])
    )
    assert [(p.kind, p.session == "mine") for p in predictions] == [("side", False), ("main", True)]


@pytest.mark.parametrize("name", ["titled-beside", "written-out", "scripts", "reviewing-agent"])
def test_the_running_proxy_agrees_with_the_replay(tmp_path: Path, name: str) -> None:
    """The recorded replies are played by the scripted backend; only ids differ."""
    rows = rows_of(name)
    predictions = asyncio.run(replay(rows))
    seqs: dict[str, int] = {}
    file = tmp_path / "patina.db"
    upgrade(f"sqlite+aiosqlite:///{file}")
    with (
        run_gateway(Upstream(), file) as gateway,
        httpx.Client(
            base_url=gateway.url, headers={"authorization": f"Bearer {KEY}"}, timeout=30, verify=False
        ) as client,
    ):
        for line in lines_of(name):
            scripted = {"status": 200, "body": json.dumps(line["response"])}
            body = {**line["body"], "model": "tiny", "stream": False, "scripted": scripted}
            reply = client.post("/v1/chat/completions", json=body)
            assert reply.status_code == 200
            seqs[reply.headers["x-patina-turn"]] = line["seq"]

        rows_written = gateway.rows(at_least=sum(len(line["response"]["choices"]) for line in lines_of(name)))
    found = {seqs[row["turn_id"]]: row for row in rows_written if row["turn_id"] in seqs}
    sessions: dict[str, str | None] = {}
    for p in predictions:
        row = found[p.seq]
        parent = row["parent_turn_id"]
        assert row["kind"] == p.kind, p
        # The replay keeps the pace of the file; here the requests follow each other faster than a person asks again.
        assert row["relation"] == ("branch" if p.relation == "retry" else p.relation), p
        assert (None if parent is None else seqs[parent.split(".")[0]]) == p.parent_seq, p
        assert sessions.setdefault(row["session_id"], p.session) == p.session, p


#: Clients whose conversations go on by what the record alone has to tell after a restart: rewritten and cut histories, summaries,
#: side requests that quote, histories written out in one prompt, words wrapped and unwrapped.
REWRITING = [
    "scripts",
    "pair-programmer",
    "titled-beside",
    "written-out",
    "retriever",
    "small-agent",
    "workflow",
    "role-play",
]
THREE_DAYS = 3 * 86_400.0


@pytest.mark.parametrize("name", REWRITING)
def test_a_restart_and_three_days_change_nothing(name: str) -> None:
    """The proxy is started anew before every other request, and three days pass in the middle."""
    rows = rows_of(name)
    middle = len(rows) // 2
    later = [*rows[:middle], *(replace(row, time=row.time + THREE_DAYS) for row in rows[middle:])]
    restarted = asyncio.run(replay(later, restarts={row.seq for row in later[1::2]}))
    main = [p for p in asyncio.run(replay(rows)) if p.kind == "main"]
    after = {p.seq: p for p in restarted}
    for p in main:
        # Three days later the same request is no person's who asks again.
        relations = {p.relation, "branch"} if p.relation == "retry" else {p.relation}
        assert after[p.seq].kind == "main"
        assert after[p.seq].relation in relations, p
        assert (after[p.seq].parent_seq, after[p.seq].answered_seq) == (p.parent_seq, p.answered_seq), p
    found = score(rows, restarted)
    assert found is not None
    assert (found.main.f1, found.wrong, found.misread) == (1.0, (), ())


# -------------------------------------------------------------------- measuring


def test_pairs_are_counted_over_sessions() -> None:
    # labels {1,2,3} {4}; predicted {1,2} {3,4}: pairs predicted 2, true 3, both 1
    found = pairs([("a", "x"), ("a", "x"), ("a", "y"), ("b", "y")])
    assert found == Pairs(predicted=2, true=3, both=1)
    assert found.f1 == pytest.approx(2 * 1 / 5)


def test_predecessors_come_from_the_labels_and_the_replies_alone() -> None:
    rows = rows_of("scripts")
    expected = true_predecessors(rows)
    assert expected[1] == {None}
    assert expected[2] == {1}  # the second of two choices was continued
    assert expected[4] == {1}  # an edit goes back to the first
    assert expected[5] == {4, None}  # the same prompt again


def test_a_score_counts_what_is_wrong_and_leaves_out_what_is_ambiguous() -> None:
    rows = rows_of("side-requests-at-the-end")
    wrong = [
        KindPrediction(
            seq=r.seq,
            session="one",
            kind="main",
            parent_seq=None,
            relation="first",
            link_reason="",
            kind_reason="",
        )
        for r in rows
    ]
    found = score(rows, wrong)
    assert found is not None
    side = sum(1 for r in rows if r.label and r.label["kind"] == "side")
    assert found.confusion == {("main", "main"): len(rows) - side, ("side", "main"): side}
    assert len(found.misread) == side
    assert found.paired == 3  # the three first turns, which answer nothing
    assert score([parse_line(json.dumps(LINE).encode(), "", 1)], wrong[:1]) is None


@pytest.mark.parametrize("name", REQUESTS)
def test_modelled_clients_are_understood(name: str) -> None:
    rows = rows_of(name)
    found = score(rows, asyncio.run(replay(rows)))
    assert found is not None
    assert found.misread == ()
    assert found.wrong == ()
    assert found.main.f1 == 1.0


@pytest.mark.parametrize("name", HISTORIES)
def test_histories_that_clients_alter_are_understood(name: str) -> None:
    rows = rows_of(name)
    predictions = asyncio.run(replay(rows))
    found = score(rows, predictions)
    assert found is not None
    assert found.misread == ()
    assert (found.main.f1, found.all.f1) == (1.0, 1.0)
    # A request to go on with an answer that was cut follows it, but says nothing about it.
    silent = {
        p.seq for p in predictions if p.kind == "main" and p.parent_seq is not None and p.answered_seq is None
    }
    assert silent == ({2} if name == "continued-answer" else set())
    assert set(found.wrong) <= silent


def test_turn_ids_of_a_replay_sort_like_their_seqs() -> None:
    assert turn_of(2) < turn_of(10)
