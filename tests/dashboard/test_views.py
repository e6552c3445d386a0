"""What the pages compute."""

from pathlib import Path
from typing import Any

import pytest

from dashboard import views
from store.settings import read_settings
from store.values import AliasMove, JudgedTurn, Wish, WishState


def judged(*values: int) -> list[JudgedTurn]:
    return [
        JudgedTurn(turn_id=f"t{i}", value=value, created_at=float(i), adapter_version=i // 2)
        for i, value in enumerate(values)
    ]


def test_complaints_are_counted_by_version_and_since_the_last_one() -> None:
    turns = judged(-1, 1, -1, -1, 0, 1)
    assert [(one.label, one.hits, one.count) for one in views.shares_by_version(turns)] == [
        ("v0", 1, 2), ("v1", 2, 2), ("v2", 0, 2),
    ]  # fmt: skip
    assert views.since_last_complaint(turns) == 2
    assert views.since_last_complaint(judged(1, 0)) is None
    assert [(one.hits, one.count) for one in views.shares_over_time(judged(*[-1] * 30))] == [(4, 4)] * 7 + [
        (2, 2)
    ]
    assert [views.group_size(count) for count in (1, 32, 80, 2_000)] == [4, 4, 10, 25]


def test_replies_of_the_gate_stand_beside_those_of_the_base_model() -> None:
    gate = {
        "after": {"examples": {"Q?": "short", "S?": "s"}},
        "base": {"examples": {"Q?": "at length", "R?": "r"}},
    }
    assert views.examples(gate) == [("Q?", "at length", "short")]
    assert views.examples({}) == []


def test_measures_of_the_gate_stand_beside_their_bounds() -> None:
    gate = {
        "after": {"facts": 0.5, "plain_length": 9.0, "ends": 1.0, "counts": {"facts": 4, "plain": 10}, "finite": True},
        "base": {"facts": 1.0, "plain_length": 40.0, "ends": 1.0},
    }  # fmt: skip
    found = [(one.name, one.base, one.after, one.is_beyond) for one in views.gate_measures(gate)]
    assert found == [
        ("facts", 1.0, 0.5, True), ("ends", 1.0, 1.0, False), ("plain_length", 40.0, 9.0, False),
    ]  # fmt: skip
    assert [(one.label, one.bound_text) for one in views.gate_measures(gate)] == [
        ("facts answered right", "at least 75 %"), ("replies that end", "at least 90 %"),
        ("length of a reply to a plain question, tokens", "at most 120"),
    ]  # fmt: skip
    assert [views.measure_text(value, "facts") for value in (1.0, None)] == ["100 %", ""]
    assert views.gate_measures({}) == []
    told = views.gate_measures({**gate, "told": {"facts": 0.5}})
    assert [one.is_beyond for one in told] == [False, False, False]
    later = views.gate_measures({"after": {"of_a_later_program": 1.0, "ends": 1.0}})
    assert [one.label for one in later] == ["replies that end", "of_a_later_program"]


def test_what_a_version_learnt_is_told_in_the_words_of_its_wishes() -> None:
    row = {"wish_id": 1, "base": 0.1, "told": 0.9, "weights": 0.85, "replies": 20, "retired": True}
    wish = Wish(
        wish_id=1, policy="p", state=WishState.RETIRED, text="Shorter.", edited=False, measures={}, statements=(), created_at=1.0, changed_at=1.0,
    )  # fmt: skip
    removed = {**row, "wish_id": 2}
    assert views.wish_measures({"wishes": [row, removed]}, [wish]) == [("Shorter.", row)]
    assert views.wish_measures({}, [wish]) == []
    metrics = {"turns": 3, "loss": None, "samples": {"wish": 8, "anchor": 4}, "teach_s": 1.0, "train_s": 2.0}
    assert views.step_metrics(metrics) == [
        ("turns in it", 3.0), (views.SAMPLES["wish"], 8.0), (views.SAMPLES["anchor"], 4.0),
    ]  # fmt: skip
    assert views.phases(metrics) == [("teacher", 1.0), ("training", 2.0)]


def test_a_rollback_goes_to_what_was_live_before() -> None:
    moves = [AliasMove(policy="p", version=version, moved_at=1.0, actor="trainer") for version in (1, 2, 3)]
    assert views.version_before(moves) == 2
    assert views.version_before(moves[:1]) == 0
    assert views.version_before([]) == 0


def test_the_settings_that_were_given_come_first_with_where(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LORA_RANK", "8")
    monkeypatch.setenv("PATINA_UPSTREAM_API_KEY", "sk-secret")
    monkeypatch.setenv("BATCH_SIZE", "6")
    settings = read_settings({"home": tmp_path, "batch_size": 2})
    rows = [(name, value, origin) for name, value, _, origin in views.settings_rows(settings)]
    given = [row for row in rows if row[2] != "default"]
    assert rows[: len(given)] == given
    assert set(given) >= {
        ("lora_rank", "8", "environment: LORA_RANK"), ("upstream_api_key", "***", "environment: PATINA_UPSTREAM_API_KEY"),
        ("batch_size", "2", "command line"), ("home", str(tmp_path), "command line"),
    }  # fmt: skip
    # A wrong value there that the command line replaced breaks nothing.
    monkeypatch.setenv("BATCH_SIZE", "many")
    assert [origin for name, _, _, origin in views.settings_rows(settings) if name == "batch_size"] == [
        "command line"
    ]


def test_a_step_is_as_far_as_its_phases_usually_take() -> None:
    def share(phase: str, phase_s: float, typical: list[tuple[str, float]]) -> float | None:
        return views.Progress("p", "s", 0.0, 30.0, phase, phase_s, typical).share

    typical = [("teacher", 10.0), ("training", 20.0), ("gate", 10.0)]
    assert share("teacher", 5.0, typical) == 0.125
    assert share("training", 99.0, typical) == 0.75  # longer than usual: it stays within its phase
    assert share("training worker", 1.0, typical) == 0.75  # elsewhere: by the whole step's time
    assert share("teacher", 5.0, []) is None


def turn(name: str, parent: str | None, kind: str = "main", drop_reason: str = "") -> dict[str, Any]:
    return {"turn_id": name, "parent_turn_id": parent, "kind": kind, "drop_reason": drop_reason}


def test_a_session_is_a_tree_with_its_main_line_last() -> None:

    turns = [
        turn("a", None),
        turn("b", "a"),
        turn("c", "a"),
        turn("e", "b"),
        turn("d", "c"),
        turn("f", "lost"),
    ]
    assert [(one["turn_id"], one["depth"]) for one in views.indent(turns)] == [
        ("a", 0), ("b", 1), ("e", 1), ("c", 0), ("d", 0), ("f", 0),
    ]  # fmt: skip
    assert [(one["lane"], one["begins_branch"]) for one in views.indent(turns)] == [
        (0, False), (1, True), (1, False), (0, False), (0, False), (2, False),
    ]  # fmt: skip
    told = [
        {**one, "verdict": -1, "last_message": {"role": "user", "content": one["turn_id"]}}
        for one in views.indent(turns)
    ]
    assert [(node.name, node.parent, node.column, node.lane, node.mark, node.is_main) for node in views.branches(told)] == [
        ("a", "", 0, 0, "bad", True), ("b", "a", 1, 1, "bad", False), ("e", "b", 2, 1, "bad", False), ("c", "a", 1, 0, "bad", True),
        ("d", "c", 2, 0, "bad", True), ("f", "", 0, 2, "bad", True),
    ]  # fmt: skip
    assert told[0]["last_message"]["content"] == views.branches(told)[0].label
    assert views.branches(told[:1]) == []


def test_the_branch_with_the_newest_turn_of_a_person_went_on() -> None:
    def order(*turns: dict[str, Any]) -> list[tuple[str, int, str | None]]:
        return [(one["turn_id"], one["depth"], one["went_on_from"]) for one in views.indent(turns)]

    fork = [turn("a", None), turn("b", "a"), turn("c", "a")]
    assert order(*fork) == [("a", 0, None), ("b", 1, None), ("c", 0, "a")]
    # The person came back to the first branch.
    assert order(*fork, turn("d", "b")) == [("a", 0, None), ("c", 1, None), ("b", 0, "a"), ("d", 0, None)]
    # A title that a program asked for is not where the conversation went on.
    assert order(*fork[:2], turn("c", "a", "side")) == [("a", 0, None), ("c", 1, None), ("b", 0, "a")]
    # Nor is the answer that the chat panel shows beside the live version's.
    beside = turn("c", "a", drop_reason="opted_out")
    assert order(*fork[:2], beside) == [("a", 0, None), ("c", 1, None), ("b", 0, "a")]
    # Rows whose parents form a circle have no beginning.
    assert order(turn("x", "y"), turn("y", "x")) == []


def test_tokens_have_their_text_where_the_scored_ones_are_those_that_were_sampled() -> None:
    scored = {"tokens": ["Pa", "ris"], "token_ids": [5, 6], "logprobs": [-0.1, -0.2]}

    def rows(ids: list[int], logprobs: list[float], scored: dict[str, Any]) -> list[tuple[Any, ...]]:
        return [
            (one.text, one.sampled, one.live, one.level) for one in views.token_rows(ids, logprobs, scored)
        ]

    assert rows([5, 6, 2], [-0.01, -1.0, -4.0], scored) == [
        ("Pa", -0.01, -0.1, 0), ("ris", -1.0, -0.2, 2), ("#2", -4.0, None, 4),
    ]  # fmt: skip
    assert rows([7, 8], [-0.01, -0.3], scored) == [("#7", -0.01, None, 0), ("#8", -0.3, None, 1)]
    assert rows([], [], scored) == [("Pa", None, -0.1, 0), ("ris", None, -0.2, 1)]
    assert rows([], [], {}) == []
