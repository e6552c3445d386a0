"""What a backend has taught us is kept, belongs to it alone, and is forgotten in time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from proxy.backend_quirks import BackendQuirks
from wire.reply_strip import NullFieldStyle

ALL = frozenset({"logprobs", "return_token_ids", "stream_options"})


def test_what_is_refused_is_left_out_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "home" / "upstreams.json"
    quirks = BackendQuirks("http://one", path)
    assert quirks.accepted_fields(ALL, "m") == ALL
    quirks.record_refused(["return_token_ids"], "m")
    quirks.record_null_style(NullFieldStyle(logprobs=False))
    again = BackendQuirks("http://one", path)
    assert again.accepted_fields(ALL, "other") == ALL - {"return_token_ids"}
    assert again.null_style == NullFieldStyle(logprobs=False)
    other = BackendQuirks("http://two", path)
    assert other.accepted_fields(ALL, "m") == ALL
    other.record_accepted(["logprobs"])
    assert BackendQuirks("http://one", path).refused == ["return_token_ids"]


def test_a_field_that_was_taken_before_is_refused_for_one_model_alone() -> None:
    quirks = BackendQuirks("http://one")
    quirks.record_accepted(["logprobs"])
    assert quirks.has_accepted(["logprobs"])
    assert not quirks.has_accepted(ALL)
    quirks.record_refused(["logprobs"], "thinker")
    assert quirks.accepted_fields(ALL, "thinker") == ALL - {"logprobs"}
    assert quirks.accepted_fields(ALL, "plain") == ALL


def test_a_refusal_is_forgotten_and_one_that_came_with_a_fault_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quirks = BackendQuirks("http://one")
    quirks.record_refused(["logprobs"], "m")
    quirks.record_refused(["return_token_ids"], "m", is_certain=False)
    now = time.time()
    for later, left in ((0, ["logprobs", "return_token_ids"]), (3600, ["logprobs"]), (8 * 24 * 3600, [])):
        monkeypatch.setattr(time, "time", lambda later=later: now + later)
        assert quirks.refused == left


def test_a_file_that_cannot_be_read_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "upstreams.json"
    for torn in ("{", "[]", '{"http://one": 7}', '{"http://one": {"habits": {"x": 1}}}'):
        path.write_text(torn)
        quirks = BackendQuirks("http://one", path)
        assert quirks.accepted_fields(ALL, None) == ALL
        quirks.record_refused(["logprobs"], None)
        assert BackendQuirks("http://one", path).refused == ["logprobs"]
