"""`why` names corrections that contradict each other; the newest counts."""

from __future__ import annotations

from cli.conflicts import conflict_lines, find_conflicts
from store.values import Completion, LogprobMode, ScoredTurn
from tests.making import make_verdict


def turn(turn_id: str, at: float, hint: str, *wishes: str) -> ScoredTurn:
    return ScoredTurn(
        turn_id=turn_id, session_id="s", turn_index=0, policy="mine", key_name="", adapter_version=0, messages=(),
        request={}, completion=Completion(), prompt_token_ids=(), temperature=1.0, logprob_mode=LogprobMode.RAW,
        verdict=make_verdict(turn_id, hint=hint, wishes=wishes, created_at=at), next_text=hint, created_at=at,
    )  # fmt: skip


SHORT = turn("short", 100.0, "Shorter, please.", "shorter")
PLAIN = turn("plain", 150.0, "No emoji.", "no_emoji")
LONG = turn("long", 200.0, "Longer, in Spanish.", "longer", "spanish")
SHORT_AGAIN = turn("short-2", 300.0, "Short again.", "shorter", "english")


def test_a_correction_and_its_opposite_are_named_with_the_newest_that_it_takes_back() -> None:
    every = [SHORT_AGAIN, PLAIN, LONG, SHORT]
    assert find_conflicts([LONG], every) == [(LONG, SHORT, ("shorter",))]
    assert find_conflicts([SHORT_AGAIN, LONG], every) == [
        (LONG, SHORT, ("shorter",)),
        (SHORT_AGAIN, LONG, ("longer", "spanish")),
    ]
    (line,) = conflict_lines(find_conflicts([LONG], every))
    assert line.startswith("“Longer, in Spanish.” (turn long, ")
    assert "takes back shorter, asked for with “Shorter, please.” (turn short, " in line
    assert line.endswith("the newest counts")


def test_wishes_that_go_together_and_later_ones_are_no_conflict() -> None:
    assert find_conflicts([SHORT, PLAIN], [SHORT, PLAIN, LONG]) == []
