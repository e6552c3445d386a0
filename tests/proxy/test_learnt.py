"""What a backend has taught us is kept, belongs to it alone, and is forgotten in time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from proxy.learnt import Learnt
from proxy.wire import Habits

ALL = frozenset({"logprobs", "return_token_ids", "stream_options"})


def test_what_is_refused_is_left_out_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "home" / "upstreams.json"
    learnt = Learnt("http://one", path)
    assert learnt.takes(ALL, "m") == ALL
    learnt.refuse(["return_token_ids"], "m")
    learnt.note(Habits(logprobs=False))
    again = Learnt("http://one", path)
    assert again.takes(ALL, "other") == ALL - {"return_token_ids"}
    assert again.habits == Habits(logprobs=False)
    other = Learnt("http://two", path)
    assert other.takes(ALL, "m") == ALL
    other.prove(["logprobs"])
    assert Learnt("http://one", path).refused == ["return_token_ids"]


def test_a_field_that_was_taken_before_is_refused_for_one_model_alone() -> None:
    learnt = Learnt("http://one")
    learnt.prove(["logprobs"])
    assert learnt.is_proven(["logprobs"])
    assert not learnt.is_proven(ALL)
    learnt.refuse(["logprobs"], "thinker")
    assert learnt.takes(ALL, "thinker") == ALL - {"logprobs"}
    assert learnt.takes(ALL, "plain") == ALL


def test_a_refusal_is_forgotten_and_one_that_came_with_a_fault_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learnt = Learnt("http://one")
    learnt.refuse(["logprobs"], "m")
    learnt.refuse(["return_token_ids"], "m", is_sure=False)
    now = time.time()
    for later, left in ((0, ["logprobs", "return_token_ids"]), (3600, ["logprobs"]), (8 * 24 * 3600, [])):
        monkeypatch.setattr(time, "time", lambda later=later: now + later)
        assert learnt.refused == left


def test_a_file_that_cannot_be_read_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "upstreams.json"
    for torn in ("{", "[]", '{"http://one": 7}', '{"http://one": {"habits": {"x": 1}}}'):
        path.write_text(torn)
        learnt = Learnt("http://one", path)
        assert learnt.takes(ALL, None) == ALL
        learnt.refuse(["logprobs"], None)
        assert Learnt("http://one", path).refused == ["logprobs"]
