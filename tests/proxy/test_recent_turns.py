"""Turns that the record may not have yet are found by their own key alone."""

import pytest

from proxy.recent_turns import RecentTurns
from tests.recorder.exchanges import make_captured, user


def added(recent: RecentTurns, name: str, key_name: str, conversation: str = "c", size: int = 100) -> None:
    recent.add(
        make_captured(
            name, [user("hi")], "there", key_name=key_name, api={"conversation": conversation}, size=size
        )
    )


def test_a_turn_and_a_conversation_are_found_by_their_own_key_alone() -> None:
    recent = RecentTurns()
    for name, key_name, conversation in (
        ("a", "ann", "c"),
        ("b", "bob", "c"),
        ("d", "ann", "other"),
        ("e", "ann", "c"),
    ):
        added(recent, name, key_name, conversation)
    assert [turn.turn_id for turn in recent.of_conversation("ann", "c")] == ["turn_a", "turn_e"]
    assert [turn.turn_id for turn in recent.of_conversation("bob", "c")] == ["turn_b"]
    assert recent.of_conversation("eve", "c") == recent.of_conversation("bob", "other") == []
    for key_name, is_found in {"ann": True, "bob": False, "": False}.items():
        assert (recent.find(key_name, "turn_a") is not None) is is_found


@pytest.mark.parametrize(("size", "kept"), [(1, 3), (40, 2), (1_000, 0)])
def test_few_turns_and_few_bytes_are_kept_the_newest(size: int, kept: int) -> None:
    recent = RecentTurns(max_turns=3, max_bytes=100)
    for number in range(6):
        added(recent, str(number), "ann", size=size)
    found = [recent.find("ann", f"turn_{number}") is not None for number in range(6)]
    assert found == [False] * (6 - kept) + [True] * kept
