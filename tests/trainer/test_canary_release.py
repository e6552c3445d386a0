"""What is decided about a version on trial, from counts; and attacks on the counting."""

import random
from statistics import median
from typing import Any

import pytest

from store.values import CanaryRelease, ReleaseStage, ServedTurn
from trainer.canary_release import (
    LONGEST_TRIAL_TURNS,
    PER_CONVERSATION,
    TRIAL_TURNS,
    WATCH_TURNS,
    ArmCounts,
    Arms,
    Decision,
    Ruling,
    compare,
    count,
    decide,
    older_versions,
)
from trainer.sequential_rates import Counts

BASELINE, CANARY = 7, 8


def release(stage: ReleaseStage = ReleaseStage.RUNNING) -> CanaryRelease:
    return CanaryRelease(
        policy="tiny", version=CANARY, baseline_version=BASELINE, share=0.5, stage=stage, started_at=0.0,
        stage_since=0.0, reason="", numbers={},
    )  # fmt: skip


def arm(complaints: int, judged: int, **more: Any) -> ArmCounts:
    return ArmCounts(complaints=Counts(complaints, judged), judged=judged, **more)


def turn(version: int, session: str, verdict: int | None, key: str = "ann", **more: bool) -> ServedTurn:
    traits = {"is_faulty": False, "is_followed": True, "is_retried": False, **more}
    return ServedTurn(version=version, session_id=session, key_name=key, verdict=verdict, **traits)


def ruling(turns: list[ServedTurn], stage: ReleaseStage = ReleaseStage.RUNNING) -> Ruling:
    return decide(release(stage), *compare(release(stage), turns, []))


def test_a_version_without_complaints_is_promoted_after_the_first_judged_turns() -> None:
    assert (
        decide(release(), Arms(canary=arm(0, TRIAL_TURNS - 1), baseline=arm(1, 12))).decision is Decision.HOLD
    )
    found = decide(release(), Arms(canary=arm(0, TRIAL_TURNS), baseline=arm(1, 12)))
    assert found.decision is Decision.PROMOTE
    assert found.numbers["canary"]["complaints"] == [0, TRIAL_TURNS]


def test_a_version_that_draws_complaints_is_held_and_then_rolled_back() -> None:
    assert decide(release(), Arms(canary=arm(6, 13), baseline=arm(1, 12))).decision is Decision.HOLD
    found = decide(release(), Arms(canary=arm(14, 26), baseline=arm(2, 25)))
    assert found.decision is Decision.ROLL_BACK
    assert found.reason == "complaints in 14 of 26 turns against complaints in 2 of 25 turns"
    assert found.numbers["evidence"] >= found.numbers["threshold"] == 20


def test_a_version_that_answers_nothing_is_rolled_back_without_a_single_verdict() -> None:
    found = decide(
        release(), Arms(canary=ArmCounts(faulty=Counts(20, 22)), baseline=ArmCounts(faulty=Counts(0, 25)))
    )
    assert found.decision is Decision.ROLL_BACK
    assert found.reason.startswith("empty or cut replies in 20 of 22 replies")


def test_a_trial_ends_when_its_conversations_never_come() -> None:
    assert decide(release(), Arms(canary=arm(0, 2), baseline=arm(3, 60))).decision is Decision.HOLD
    found = decide(release(), Arms(canary=arm(0, 2), baseline=arm(3, LONGEST_TRIAL_TURNS - 2)))
    assert found.decision is Decision.PROMOTE


def test_a_promoted_version_is_rolled_back_when_it_regresses_and_kept_when_it_does_not() -> None:
    watched = release(ReleaseStage.WATCHED)
    assert decide(watched, Arms(canary=arm(24, 40), baseline=arm(1, 14))).decision is Decision.ROLL_BACK
    assert (
        decide(watched, Arms(canary=arm(4, WATCH_TURNS - 1), baseline=arm(1, 14))).decision is Decision.HOLD
    )
    assert decide(watched, Arms(canary=arm(4, WATCH_TURNS), baseline=arm(1, 14))).decision is Decision.KEEP


def test_of_one_conversation_only_the_first_turns_count() -> None:
    found = count([turn(CANARY, "s", -1) for _ in range(40)], {CANARY})
    assert found.complaints == Counts(PER_CONVERSATION, PER_CONVERSATION)
    assert found.judged == 40


def test_retries_and_faults_are_counted_among_what_can_have_them() -> None:
    found = count(
        [
            turn(CANARY, "a", None, is_retried=True),
            turn(CANARY, "b", 0, is_faulty=True, is_followed=False),
            turn(BASELINE, "c", -1),
        ],
        {CANARY},
    )
    assert (found.complaints, found.faulty, found.retries) == (Counts(0, 1), Counts(1, 2), Counts(1, 1))


def test_a_flood_of_complaints_by_one_key_of_several_does_not_decide() -> None:
    """One key complains about every reply of the canary, in many conversations; three others are content."""
    turns = [turn(CANARY, f"flood-{i}", -1, key="mallory") for i in range(200)]
    turns += [turn(BASELINE, f"praise-{i}", 1, key="mallory") for i in range(200)]
    for i in range(30):
        key = ("ann", "bob", "eve")[i % 3]
        turns += [turn(CANARY, f"c{i}", 0, key=key), turn(BASELINE, f"b{i}", 0, key=key)]
    random.Random(1).shuffle(turns)
    assert ruling(turns).decision is not Decision.ROLL_BACK
    unlimited = decide(release(), Arms(canary=arm(200, 230), baseline=arm(0, 230)))
    assert unlimited.decision is Decision.ROLL_BACK


@pytest.mark.parametrize("steps", [0, 3, 20])
def test_the_older_versions_are_some_releases_before(steps: int) -> None:
    parents = {v: v - 1 for v in range(1, steps + 1)}
    expected = {0: [], 3: [], 20: list(range(12, 4, -1))}
    assert older_versions(parents, steps) == expected[steps]


def play(rates: tuple[float, float], draw: random.Random, *, most: int = 400) -> tuple[Decision | None, int]:
    """Play a trial with its watch; returns the last decision and the judged turns of the larger arm when a rollback came."""
    trials, events = [0, 0], [0, 0]
    stage = ReleaseStage.RUNNING
    for _ in range(most):
        chosen = 1 if stage is ReleaseStage.WATCHED else int(draw.random() < 0.5)
        trials[chosen] += 1
        events[chosen] += draw.random() < rates[chosen]
        found = decide(
            release(stage), Arms(canary=arm(events[1], trials[1]), baseline=arm(events[0], trials[0]))
        ).decision
        if found is Decision.PROMOTE:
            stage = ReleaseStage.WATCHED
        elif found is not Decision.HOLD:
            return found, max(trials)
    return None, max(trials)


def test_a_version_that_complaints_rise_with_is_rolled_back_within_25_judged_turns_of_an_arm() -> None:
    draw = random.Random(11)
    played = [play((0.1, 0.5), draw) for _ in range(60)]
    found = [trials for decision, trials in played if decision is Decision.ROLL_BACK]
    assert len(found) >= 0.8 * len(played)
    assert median(found) <= 25


@pytest.mark.long_run
@pytest.mark.parametrize("rate", [0.1, 0.4])
def test_a_version_as_good_as_the_one_before_is_rolled_back_in_at_most_one_of_twenty_releases(
    rate: float,
) -> None:
    draw = random.Random(12)
    runs = 2_000
    assert sum(play((rate, rate), draw)[0] is Decision.ROLL_BACK for _ in range(runs)) <= 0.05 * runs
