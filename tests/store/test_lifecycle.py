import pytest

from store.errors import IllegalTransition
from store.lifecycle import RESCORED, REVIVABLE, TRANSITIONS, DropReason, Event, Stage, advance, sources


def test_the_happy_life() -> None:
    stage = Stage.RECORDED
    for event in (Event.NEXT_STATE, Event.VERDICT, Event.CLAIM, Event.STEPPED):
        stage = advance(stage, event)
    assert stage is Stage.TRAINED


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("event", Event)
def test_what_the_table_does_not_list_is_illegal(stage: Stage, event: Event) -> None:
    if event in TRANSITIONS[stage]:
        assert advance(stage, event) in Stage
    else:
        with pytest.raises(IllegalTransition, match=f"{event.value} cannot follow {stage.value}"):
            advance(stage, event)


def test_a_dead_worker_gives_its_turns_back() -> None:
    assert advance(Stage.CLAIMED, Event.RELEASE) is Stage.SCORED


def test_training_is_undone_for_what_a_person_forgets_and_goes_on_with_late_words_only() -> None:
    assert set(TRANSITIONS[Stage.TRAINED]) == {Event.FORGET, Event.UNTRAIN, Event.TEACH_AGAIN}
    assert sources(Event.TEACH_AGAIN) == (Stage.TRAINED, Stage.DROPPED)


@pytest.mark.parametrize("stage", Stage)
def test_every_turn_can_be_forgotten(stage: Stage) -> None:
    assert advance(stage, Event.FORGET) is Stage.DROPPED


def test_a_claim_is_possible_from_one_stage_only_so_nothing_trains_twice() -> None:
    assert sources(Event.CLAIM) == (Stage.SCORED,)
    assert sources(Event.STEPPED) == (Stage.CLAIMED,)


def test_broken_turns_are_never_revived() -> None:
    broken = {DropReason.TOKEN_MISMATCH, DropReason.UNFINISHED, DropReason.SIDE_TURN}
    assert RESCORED.isdisjoint(broken | {DropReason.OPTED_OUT, DropReason.FORGOTTEN})
    assert {DropReason.NO_TOKENS} == RESCORED - REVIVABLE  # scored, and never trained on
