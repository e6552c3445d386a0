"""What the pages compute."""

from typing import Any

from dashboard import views
from store.values import JudgedTurn


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
    assert [(one.hits, one.count) for one in views.shares_over_time(judged(*[-1] * 30))] == [(25, 25), (5, 5)]


def test_replies_of_the_gate_stand_beside_those_of_the_base_model() -> None:
    gate = {
        "after": {"examples": {"Q?": "short", "S?": "s"}},
        "base": {"examples": {"Q?": "at length", "R?": "r"}},
    }
    assert views.examples(gate) == [("Q?", "at length", "short")]
    assert views.examples({}) == []


def test_a_session_is_a_tree_with_its_main_line_last() -> None:
    def turn(name: str, parent: str | None) -> dict[str, Any]:
        return {"turn_id": name, "parent_turn_id": parent}

    turns = [
        turn("a", None),
        turn("b", "a"),
        turn("c", "a"),
        turn("d", "c"),
        turn("e", "b"),
        turn("f", "lost"),
    ]
    assert [(one["turn_id"], one["depth"]) for one in views.indent(turns)] == [
        ("a", 0), ("b", 1), ("e", 1), ("c", 0), ("d", 0), ("f", 0),
    ]  # fmt: skip
