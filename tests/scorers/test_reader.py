"""Turns read without a judge."""

from __future__ import annotations

from scorers.reader import opinions_of, read_turn, turn_of
from store.lifecycle import DropReason
from store.values import FollowUp
from tests.scorers.turns import REPLY, feedback, said, turn


def test_a_turn_is_read_as_the_scorer_process_reads_it() -> None:
    verdict, drop = read_turn(turn(said("Shorter please, and no emoji.")), now=5.0)
    assert (verdict.value, verdict.hint, drop) == (-1, "Shorter please, and no emoji.", None)
    assert verdict.follow_up == FollowUp(text="Shorter please, and no emoji.")
    assert verdict.created_at == 5.0


def test_explicit_feedback_outranks_the_words() -> None:
    verdict, _ = read_turn(turn(said("Perfect, thank you!"), feedback=(feedback(-1.0),)), now=0.0)
    assert (verdict.value, verdict.source) == (-1, "feedback")


def test_a_turn_without_a_next_state_is_abstained() -> None:
    verdict, drop = read_turn(turn(), now=0.0)
    assert (verdict.value, drop) == (None, DropReason.ABSTAINED)


def test_recorded_words_become_a_turn() -> None:
    recorded = turn_of("thanks!", reply=REPLY, prompt=[{"role": "user", "content": "Hi"}])
    assert recorded.messages == ({"role": "user", "content": "Hi"},)
    assert [opinion.value for opinion in opinions_of(recorded)] == [1]
