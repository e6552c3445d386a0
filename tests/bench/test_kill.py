"""A few of the kills and disconnects of `bench.kill`: the whole of it takes minutes."""

from pathlib import Path

import pytest

from bench import kill_all
from bench.kill import run


@pytest.mark.long_run
def test_after_kills_under_load_every_turn_whose_end_a_client_saw_is_recorded() -> None:
    found = run(kill_count=3, disconnect_count=40)
    assert found["verify"] == []
    assert (found["missing"], found["disconnects_unrecorded"], found["disconnects_not_unfinished"]) == (
        0,
        0,
        0,
    )
    assert (found["rejected"], found["segments_left"]) == (0, 0)
    assert found["upstream_connections_leaked"] == 0
    assert isinstance(found["ended"], int)
    assert found["ended"] > 10
    assert isinstance(found["disconnects"], int)
    assert found["disconnects"] >= 40


@pytest.mark.long_run
def test_after_kills_of_any_process_of_a_whole_patina_nothing_is_missing(tmp_path: Path) -> None:
    found = kill_all.run(("proxy", "proxy-2", "recorder", "scorer"), 4, 1.0, tmp_path)
    assert found["wrong"] == []
    assert sum(found["killed"].values()) == 4
    assert found["ended"] > 10
