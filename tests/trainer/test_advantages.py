"""Verdicts and teachers become streams: by hand, by property, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import AlignmentError
from store.values import Method
from trainer.advantages import (
    BASELINE_PRIOR,
    BASELINE_WINDOW,
    Streams,
    build_streams,
    directive_streams,
    is_expected,
    running_baseline,
    token_directive_advantages,
    token_streams,
    wish_streams,
)

TEACHER = (-0.2, -3.0, -1.0)
TRAINER = (-0.5, -0.5, -1.0)


def rated(verdict: int | None = -1, *, baseline: float = -0.25, weight: float = 1.0) -> Streams:
    return build_streams(verdict, baseline=baseline, weight=weight, completion_length=3)


def on_tokens(
    method: Method = "opd",
    teacher: Sequence[Any] = TEACHER,
    trainer: Sequence[Any] = TRAINER,
    *,
    weight: float = 1.0,
) -> Streams:
    return token_streams(wish_streams(method, 3, weight=weight), teacher, trainer, clip=1.0)


# -- the methods, by hand


def test_rl_gives_every_token_the_verdict_minus_the_baseline() -> None:
    result = rated()
    assert result.advantages == (-0.75, -0.75, -0.75)
    assert result.advantage_mask == (True, True, True)
    assert result.directive_weight == 0.0


def test_combine_weighs_the_verdict_and_the_teacher_each_for_itself() -> None:
    assert rated(weight=0.3).advantages == pytest.approx((0.3 * -0.75,) * 3)
    result = wish_streams("combine", 3, weight=0.8, alpha=0.4)
    assert (result.directive_weight, result.directive_alpha) == (0.8, 0.4)
    assert result.advantages == (0.0, 0.0, 0.0)
    assert result.advantage_mask == (False, False, False)


def test_opd_on_tokens_gives_each_token_the_clipped_change_the_wishes_make() -> None:
    result = on_tokens()
    assert result.advantages == pytest.approx((0.3, -1.0, 0.0))
    assert result.advantage_mask == (True, True, True)
    assert result.directive_weight == 0.0


def test_on_tokens_the_weight_scales_what_is_already_clipped_and_adds_to_what_is_there() -> None:
    assert on_tokens("combine", weight=0.8).advantages == pytest.approx((0.8 * 0.3, -0.8, 0.0))
    both = Streams(advantages=(-0.1,) * 3, advantage_mask=(True, False, True), directive_weight=0.5)
    result = token_streams(both, TEACHER, TRAINER, clip=1.0)
    assert result.advantages == pytest.approx((-0.1 + 0.5 * 0.3, -0.1 - 0.5, -0.1))
    assert result.advantage_mask == (True, True, True)


def test_a_change_that_all_tokens_share_is_kept() -> None:
    shared = on_tokens(teacher=(-1.0, -2.0, -3.0), trainer=(-0.5, -1.5, -2.5))
    assert shared.advantages == pytest.approx((-0.5, -0.5, -0.5))


def test_opd_on_a_token_support_is_the_reverse_kl_and_no_advantage() -> None:
    result = wish_streams("opd", 3, alpha=0.4)
    assert result.advantages == (0.0, 0.0, 0.0)
    assert result.advantage_mask == (False, False, False)
    assert (result.directive_weight, result.directive_alpha) == (1.0, 1.0)


def test_sdpo_is_the_divergence_of_the_setting_and_no_advantage() -> None:
    result = wish_streams("sdpo", 3, alpha=0.4)
    assert result.advantage_mask == (False, False, False)
    assert (result.directive_weight, result.directive_alpha) == (1.0, 0.4)


# -- neutral verdicts, no wish


@pytest.mark.parametrize("verdict", [0, None])
def test_a_neutral_verdict_masks_the_verdict_term_instead_of_pushing_by_the_baseline(
    verdict: int | None,
) -> None:
    assert rated(verdict).advantages == (0.0, 0.0, 0.0)
    assert not rated(verdict).is_live


@given(teacher=st.lists(st.floats(-20, 0), min_size=1, max_size=8), weight=st.floats(0.1, 2))
def test_wishes_that_change_nothing_contribute_exactly_nothing_at_every_position(
    teacher: list[float], weight: float
) -> None:
    same = token_streams(wish_streams("opd", len(teacher), weight=weight), teacher, list(teacher), clip=1.0)
    assert same.advantages == (0.0,) * len(teacher)
    assert not same.is_effective


def test_a_weight_of_zero_switches_a_term_off() -> None:
    assert not wish_streams("combine", 3, weight=0.0).is_live
    assert not rated(weight=0.0).is_live


@given(
    pairs=st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=1, max_size=8),
    clip=st.floats(0.01, 5),
)
def test_a_directive_advantage_has_the_sign_of_the_change_and_never_exceeds_the_clip(
    pairs: list[tuple[float, float]], clip: float
) -> None:
    teacher, trainer = [q for q, _ in pairs], [o for _, o in pairs]
    for value, q, o in zip(
        token_directive_advantages(teacher, trainer, clip=clip), teacher, trainer, strict=True
    ):
        assert abs(value) <= clip
        assert (value > 0) == (q > o)
        assert (value < 0) == (q < o)


# -- what is refused


@pytest.mark.parametrize("method", ["opd", "combine", "sdpo"])
@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        (None, "no teacher log-probabilities"),
        ((), "0 teacher log-probabilities for 3"),
        (TEACHER[:2], "2 teacher log-probabilities for 3"),
        ((*TEACHER, -1.0), "4 teacher log-probabilities for 3"),
        ((None, -1.0, -1.0), "None at completion token 0 of 3"),
        ((-1.0, math.nan, -1.0), "nan at completion token 1 of 3"),
        ((-1.0, -1.0, -math.inf), "-inf at completion token 2 of 3"),
        ((-1.0, -1.0, 0.7), "0.7 at completion token 2 of 3"),
    ],
)
def test_a_sample_without_a_usable_teacher_is_refused(
    method: Method, teacher: Sequence[Any], message: str
) -> None:
    with pytest.raises(AlignmentError, match=message):
        on_tokens(method, teacher=teacher)
    with pytest.raises(AlignmentError, match=message.replace("teacher", "trainer")):
        on_tokens(method, trainer=teacher)


def test_a_certain_teacher_is_allowed() -> None:
    """0.0 is a legal log-probability; only inventing it is not."""
    assert on_tokens(teacher=(0.0, -0.5, -1.0)).advantages == pytest.approx((0.5, 0.0, 0.0))


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"verdict": 2}, "a verdict is"),
        ({"completion_length": 0}, "an empty completion"),
        ({"baseline": math.nan}, "not finite"),
    ],
)
def test_impossible_verdicts_are_refused(given_: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"verdict": -1, "baseline": 0.0, "completion_length": 3, **given_}
    with pytest.raises(ValueError, match=message):
        build_streams(arguments.pop("verdict"), **arguments)


@pytest.mark.parametrize(
    ("given_", "message"), [({"alpha": 1.5}, "directive_alpha"), ({"weight": -1.0}, "directive_weight")]
)
def test_impossible_teachers_are_refused(given_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wish_streams("combine", 3, **given_)


def test_streams_of_different_length_are_refused() -> None:
    with pytest.raises(AlignmentError, match="2 advantages and 1 mask"):
        Streams(advantages=(0.0, 0.0), advantage_mask=(True,), directive_weight=0.0)


# -- live and effective


def test_a_masked_or_zero_advantage_is_not_effective() -> None:
    masked = Streams(advantages=(1.0,), advantage_mask=(False,), directive_weight=0.0)
    assert (masked.is_live, masked.is_effective) == (False, False)
    zero = Streams(advantages=(0.0,), advantage_mask=(True,), directive_weight=0.0)
    assert (zero.is_live, zero.is_effective) == (True, False)
    assert directive_streams(completion_length=1).is_effective


def test_an_anchor_only_follows_its_teacher() -> None:
    anchor = directive_streams(completion_length=2, weight=0.7, alpha=0.5)
    assert anchor == Streams(
        advantages=(0.0, 0.0),
        advantage_mask=(False, False),
        directive_weight=0.7,
        directive_alpha=0.5,
    )


# -- the baseline


def test_the_baseline_is_the_mean_of_recent_verdicts_drawn_towards_neutral() -> None:
    assert running_baseline([]) == 0.0
    assert running_baseline([-1]) == -1 / (1 + BASELINE_PRIOR)
    assert running_baseline([1, -1, -1, 0, None, 0]) == -1 / (3 + BASELINE_PRIOR)
    assert running_baseline([-1] * 100) == -BASELINE_WINDOW / (BASELINE_WINDOW + BASELINE_PRIOR)


def test_the_baseline_forgets_what_is_beyond_its_window() -> None:
    assert running_baseline([-1] * 50 + [1, 1], window=2) == 2 / (2 + BASELINE_PRIOR)


def test_no_baseline_gives_the_plain_verdict() -> None:
    assert running_baseline([-1] * 20, kind="none") == 0.0
    assert rated(baseline=running_baseline([-1] * 20, kind="none")).advantages == (-1.0,) * 3


@given(recent=st.lists(st.sampled_from([-1, 0, 1, None]), max_size=200), verdict=st.sampled_from([-1, 1]))
def test_a_verdict_always_keeps_its_sign_and_some_of_its_weight(
    recent: list[int | None], verdict: int
) -> None:
    """However many complaints came before, the next one still lowers what it complains about."""
    assert rated(verdict, baseline=running_baseline(recent)).advantages[0] * verdict > 0


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [([1] * 4, False), ([1] * 5, True), ([1] * 26 + [-1] * 6, True), ([1] * 25 + [-1] * 7, False)],
)
def test_thanks_are_expected_where_most_were_thanks(verdicts: list[int], expected: bool) -> None:
    baseline = running_baseline(verdicts)
    assert is_expected(1, baseline) is expected
    assert not is_expected(-1, baseline)
    assert not is_expected(-1, running_baseline([-1] * 32))  # complaints always count
    assert not is_expected(None, baseline)
