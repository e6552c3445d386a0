"""When the live version is to be replaced although no batch waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from store.values import AdapterState, AdapterVersion, WishState
from tests.making import make_wish
from trainer.due import MAX_REBUILD_FAILURES, MOST_PASSES, Rebuild, needs_rebuild, next_passes

SHORT = make_wish(1, "Shorter, please.")
LISTS = make_wish(2, "No lists.")


def version(
    number: int, *wish_ids: int, served: int | None = None, created_at: float = 2_000.0
) -> AdapterVersion:
    metrics: dict[str, Any] = {"wishes": [{"wish_id": wish_id} for wish_id in wish_ids]}
    return AdapterVersion(
        policy="patina-tiny",
        version=number,
        path="/nowhere",
        content_hash="",
        manifest_hash="",
        parent_version=0,
        state=AdapterState.PUBLISHED,
        reason="",
        method="combine",
        metrics=metrics if served is None else {**metrics, "served": served},
        created_at=created_at,
    )


def test_a_version_that_learnt_what_is_wished_stays() -> None:
    assert not needs_rebuild([SHORT, LISTS], 1, [version(1, 1, 2)], 0, many=20)
    assert not needs_rebuild([], 0, [], 0, many=20)
    assert not needs_rebuild([SHORT], 0, [], 19, many=20)


def test_one_that_learnt_a_withdrawn_wish_is_built_again() -> None:
    assert needs_rebuild([LISTS], 1, [version(1, 1, 2)], 0, many=20)
    assert needs_rebuild([], 1, [version(1, 1)], 0, many=20)
    # what is live counts, not what was made last
    assert not needs_rebuild([LISTS], 2, [version(1, 1, 2), version(2, 2)], 0, many=20)
    assert needs_rebuild([LISTS], 1, [version(1, 1, 2), version(2, 2)], 0, many=20)
    assert not needs_rebuild([LISTS], 0, [version(1, 1, 2)], 0, many=20)


@pytest.mark.parametrize(
    ("edited", "changed_at", "is_due"),
    [(True, 3_000.0, True), (True, 1_000.0, False), (False, 3_000.0, False)],
)
def test_words_of_the_owner_are_learnt_anew_and_another_statement_is_not(
    edited: bool, changed_at: float, is_due: bool
) -> None:
    wish = make_wish(1, "Very short.", edited=edited, changed_at=changed_at)
    assert needs_rebuild([wish], 1, [version(1, 1)], 0, many=20) is is_due


def test_many_more_accepted_replies_are_a_reason_while_a_wish_is_in_the_prompt() -> None:
    made = [version(1, 1, served=10)]
    assert not needs_rebuild([SHORT], 1, made, 29, many=20)
    assert needs_rebuild([SHORT], 1, made, 30, many=20)
    assert needs_rebuild([SHORT], 0, [], 20, many=20)
    retired = make_wish(1, "Shorter, please.", WishState.RETIRED)
    assert not needs_rebuild([retired], 1, made, 1_000, many=20)
    assert needs_rebuild([retired, LISTS], 1, made, 30, many=20)
    # of the newest attempt, also where it was rejected
    assert not needs_rebuild([SHORT], 1, [*made, version(2, 1, served=29)], 30, many=20)


def test_a_wish_that_the_weights_do_not_follow_enough_is_trained_longer_each_time_until_the_gate_objects() -> (
    None
):
    def made(
        passes: int, *, retired: bool, state: AdapterState = AdapterState.PUBLISHED, number: int = 1
    ) -> AdapterVersion:
        metrics = {"wishes": [{"wish_id": 1, "retired": retired}], "passes": passes}
        return replace(version(number), state=state, metrics=metrics)

    assert next_passes([SHORT], []) == next_passes([SHORT], [version(1, 1)]) == 1
    for passes in (1, 2):
        assert next_passes([SHORT], [made(passes, retired=False)]) == 2 * passes
        assert needs_rebuild([SHORT], 1, [made(passes, retired=False)], 0, many=20)
    most = [made(MOST_PASSES, retired=False)]
    assert next_passes([SHORT], most) == MOST_PASSES
    assert not needs_rebuild([SHORT], 1, most, 0, many=20)
    assert (
        next_passes([SHORT], [made(2, retired=True)]) == 2
    )  # what it took to learn it is what it takes to keep it
    withdrawn = [LISTS]
    assert next_passes(withdrawn, [made(2, retired=False)]) == 2
    rejected = [made(1, retired=False), made(2, retired=False, state=AdapterState.REJECTED, number=2)]
    assert next_passes([SHORT], rejected) == 1
    assert not needs_rebuild([SHORT], 1, rejected, 0, many=20)
    again = [*rejected, made(1, retired=False, number=3)]
    assert next_passes([SHORT], again) == 1
    assert not needs_rebuild([SHORT], 3, again, 0, many=20)
    rolled_back = [made(1, retired=True), made(2, retired=False, number=2)]
    assert not needs_rebuild([SHORT], 1, rolled_back, 0, many=20)


def test_attempts_that_come_to_nothing_are_bounded_and_wait_longer_each_time() -> None:
    rebuild = Rebuild(basis=(1, ((1, "Shorter, please."),)))
    pauses = []
    for _ in range(MAX_REBUILD_FAILURES):
        rebuild.after = 0.0
        assert rebuild.may_begin()
        rebuild.begin()
        assert not rebuild.may_begin()
        pauses.append(rebuild.after)
    rebuild.after = 0.0
    assert not rebuild.may_begin()
    assert pauses == sorted(pauses)
