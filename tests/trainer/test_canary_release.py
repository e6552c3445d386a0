"""What is decided about a version on trial, from its conversations; and attacks on the counting. `lab.bench.canary` plays many trials."""

import pytest

from store.values import CanaryRelease, DrawnConversation, ReleaseStage
from trainer.canary_release import (
    FOUND,
    LONGEST,
    LONGEST_S,
    PER_CONVERSATION,
    Decision,
    Ruling,
    Trial,
    compare,
)
from trainer.sequential_rates import LIMIT

RELEASE = CanaryRelease(
    policy="tiny", version=8, baseline_version=7, share=0.5, stage=ReleaseStage.RUNNING, started_at=0.0,
    stage_since=0.0, reason="", numbers={},
)  # fmt: skip


def talk(is_on_trial: bool, *complaints: bool, key: str = "ann") -> DrawnConversation:
    return DrawnConversation(key_name=key, is_on_trial=is_on_trial, complaints=complaints)


def pairs(
    count: int, tried: tuple[bool, ...], live: tuple[bool, ...], key: str = "ann"
) -> list[DrawnConversation]:
    return [one for _ in range(count) for one in (talk(True, *tried, key=key), talk(False, *live, key=key))]


def ruling(conversations: list[DrawnConversation], now: float = 0.0) -> Ruling:
    return compare(RELEASE, conversations, now)


def test_a_version_that_draws_complaints_is_held_and_then_rolled_back() -> None:
    assert ruling(pairs(3, (True, True), (False, False))).decision is Decision.HOLD
    found = ruling(pairs(12, (True, True), (False, False)))
    assert found.decision is Decision.ROLL_BACK
    assert (
        found.reason
        == "complaints in 24 of 24 turns in 12 conversations against 0 of 24 turns in 12 conversations"
    )
    assert found.numbers["evidence"] == pytest.approx(LIMIT)


def test_a_version_that_draws_fewer_is_promoted() -> None:
    assert ruling(pairs(3, (False, False), (False, True))).decision is Decision.HOLD
    assert ruling(pairs(20, (False, False), (False, True))).decision is Decision.PROMOTE


def test_a_trial_ends_when_its_conversations_never_come_or_are_enough() -> None:
    undecided = pairs(2, (True,), (False,))
    assert ruling(undecided, LONGEST_S - 1).decision is Decision.HOLD
    ended = ruling(undecided, LONGEST_S)
    assert ended.decision is Decision.PROMOTE
    assert ended.reason.startswith("the trial ended without a finding: 2 of 2 turns in 2 conversations")
    # An occasional complaint about the version keeps the evidence between the bounds.
    mixed = [
        one
        for _ in range(LONGEST // 6)
        for one in (*pairs(1, (True,), (False,)), *pairs(5, (False,), (False,)))
    ]
    while ruling(mixed).decision is Decision.HOLD and len(mixed) < 2 * LONGEST:
        mixed += pairs(1, (True,), (True,))
    assert ruling(mixed).decision is not Decision.HOLD


def test_of_one_conversation_only_the_first_judged_turns_count_and_silence_says_nothing() -> None:
    found = ruling([talk(True, *[True] * 40), talk(False), talk(True)])
    assert found.numbers["canary"] == {
        "conversations": 1, "complaints": PER_CONVERSATION, "judged": PER_CONVERSATION,
    }  # fmt: skip
    assert found.numbers["baseline"]["conversations"] == 0


def test_a_key_that_complains_about_the_new_version_alone_does_not_decide_where_three_use_it() -> None:
    liar = pairs(40, (True, True), (False, False), key="mallory")
    honest = [one for key in ("ann", "bob") for one in pairs(6, (False, True), (False, True), key=key)]
    assert ruling(liar).decision is Decision.ROLL_BACK  # alone, it decides: it can only keep what is live
    found = ruling([*honest, *liar])
    assert found.decision is Decision.HOLD
    assert found.numbers["evidence"] == pytest.approx(LIMIT)
    assert found.numbers["evidence_without_one_key"] < 2


def test_complaints_of_several_keys_decide() -> None:
    conversations = [
        one
        for _ in range(8)
        for key in ("ann", "bob", "eve")
        for one in pairs(1, (True, True), (False, False), key=key)
    ]
    assert ruling(conversations).decision is Decision.ROLL_BACK


def test_a_key_that_comes_late_is_left_out_of_what_came_before_it_too() -> None:
    """The evidence without a key is the same whenever its first conversation came."""
    early, late = pairs(4, (True,), (False,), key="ann"), pairs(4, (True,), (False,), key="bob")
    last = pairs(1, (False,), (False,), key="eve")
    trial, only = Trial(0.5), Trial(0.5)
    for one in (*early, *late, *last):
        trial.add(one.key_name, is_on_trial=one.is_on_trial, complaints=sum(one.complaints), judged=1)
    for one in (*early, *last):
        only.add(one.key_name, is_on_trial=one.is_on_trial, complaints=sum(one.complaints), judged=1)
    assert trial._without["bob"].money == pytest.approx(only._evidence.money)
    assert trial.least_without == min(one.money for one in trial._without.values())


def test_what_a_trial_could_not_have_found_grows_less_with_its_conversations() -> None:
    for table in FOUND.values():
        for column in (0, 1):
            shares = [pair[column] for pair in table.values()]
            assert shares == sorted(shares)
    few, many = ruling(pairs(5, (False,), (False,))), ruling(pairs(20, (True,), (True,)))
    assert few.numbers["found"]["from_10_to_50"] < many.numbers["found"]["from_10_to_50"]
    assert ruling([]).numbers["found"] == {"from_10_to_50": 0.0, "from_10_to_25": 0.0}
