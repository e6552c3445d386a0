"""Verdicts and teachers become streams: by hand, by property, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import AlignmentError
from store.values import Method, OpdSupport
from trainer.advantages import (
    BASELINE_PRIOR,
    BASELINE_WINDOW,
    AtLeastOne,
    SessionTurn,
    Streams,
    at_least_one,
    build_streams,
    directive_refusal,
    directive_streams,
    is_expected,
    running_baseline,
    token_directive_advantages,
)

METHODS: list[Method] = ["rl", "opd", "combine", "sdpo"]
SUPPORTS: list[OpdSupport] = ["topk", "token"]
TEACHER = (-0.2, -3.0, -1.0)
TRAINER = (-0.5, -0.5, -1.0)


def streams(method: Method, **overrides: Any) -> Streams:
    arguments: dict[str, Any] = {
        "verdict": -1,
        "baseline": -0.25,
        "has_hint": True,
        "teacher_logprobs": TEACHER,
        "trainer_logprobs": TRAINER,
        "w_rl": 0.3,
        "w_opd": 0.8,
        "opd_support": "topk",
        "opd_clip": 1.0,
        "completion_length": 3,
        "alpha": 0.4,
    }
    return build_streams(method, **(arguments | overrides))


# -- the methods, by hand


def test_rl_gives_every_token_the_verdict_minus_the_baseline() -> None:
    result = streams("rl")
    assert result.advantages == (-0.75, -0.75, -0.75)
    assert result.advantage_mask == (True, True, True)
    assert result.directive_weight == 0.0


def test_opd_on_tokens_gives_each_token_the_clipped_change_the_hint_makes() -> None:
    result = streams("opd", opd_support="token")
    assert result.advantages == pytest.approx((0.3, -1.0, 0.0))
    assert result.advantage_mask == (True, True, True)
    assert result.directive_weight == 0.0


def test_centred_opd_forgets_what_all_tokens_of_a_reply_share() -> None:
    plain = streams("opd", opd_support="token").advantages
    centred = streams("opd", opd_support="token", opd_centred=True).advantages
    mean = sum(plain) / len(plain)
    assert centred == pytest.approx(tuple(value - mean for value in plain))
    shared = {"teacher_logprobs": (-1.0, -2.0, -3.0), "trainer_logprobs": (-0.5, -1.5, -2.5)}
    assert streams("opd", opd_support="token", **shared).advantages == pytest.approx((-0.5, -0.5, -0.5))
    gone = streams("opd", opd_support="token", opd_centred=True, **shared).advantages
    assert gone == pytest.approx((0.0, 0.0, 0.0))


def test_opd_on_a_token_support_is_the_reverse_kl_and_no_advantage() -> None:
    result = streams("opd")
    assert result.advantages == (0.0, 0.0, 0.0)
    assert result.advantage_mask == (False, False, False)
    assert (result.directive_weight, result.directive_alpha) == (1.0, 1.0)


def test_sdpo_is_the_divergence_of_the_setting_and_no_advantage() -> None:
    for support in SUPPORTS:
        result = streams("sdpo", opd_support=support)
        assert result.advantage_mask == (False, False, False)
        assert (result.directive_weight, result.directive_alpha) == (1.0, 0.4)


def test_combine_on_a_token_support_has_both_terms_side_by_side() -> None:
    result = streams("combine")
    assert result.advantages == pytest.approx((0.3 * -0.75,) * 3)
    assert result.advantage_mask == (True, True, True)
    assert (result.directive_weight, result.directive_alpha) == (0.8, 0.4)


def test_combine_on_tokens_adds_the_weighted_change_to_the_weighted_verdict() -> None:
    result = streams("combine", opd_support="token")
    base = 0.3 * -0.75
    assert result.advantages == pytest.approx((base + 0.8 * 0.3, base - 0.8, base))
    assert result.directive_weight == 0.0


@pytest.mark.parametrize("support", SUPPORTS)
def test_a_complaint_can_be_left_to_its_hint(support: OpdSupport) -> None:
    hinted = streams("combine", verdict=-1, opd_support=support, blames=False)
    assert hinted == streams("combine", verdict=None, opd_support=support)  # as if there were no verdict
    for blames in (True, False):
        thanks = streams("combine", verdict=1, opd_support=support, blames=blames)
        assert thanks == streams("combine", verdict=1, opd_support=support)
    bare = streams("combine", verdict=-1, has_hint=False, blames=True)
    assert bare.advantages == pytest.approx((0.3 * -0.75,) * 3)
    assert bare.advantage_mask == (True, True, True)
    assert not streams("combine", verdict=-1, has_hint=False, blames=False).is_live
    # where no directive term speaks the verdict does
    for other in (streams("rl", blames=False), streams("combine", w_opd=0.0, blames=False)):
        assert other.advantage_mask == (True, True, True)
        assert all(value < 0 for value in other.advantages)


# -- neutral verdicts, no hint


@pytest.mark.parametrize("verdict", [0, None])
def test_a_neutral_verdict_masks_the_verdict_term_instead_of_pushing_by_the_baseline(
    verdict: int | None,
) -> None:
    assert not streams("rl", verdict=verdict).is_live
    both = streams("combine", verdict=verdict)
    assert both.advantage_mask == (False, False, False)
    assert both.directive_weight == 0.8
    on_tokens = streams("combine", verdict=verdict, opd_support="token")
    assert on_tokens.advantages == pytest.approx((0.8 * 0.3, -0.8, 0.0))
    assert on_tokens.advantage_mask == (True, True, True)


@given(
    teacher=st.lists(st.floats(-20, 0), min_size=1, max_size=8),
    verdict=st.sampled_from([-1, 0, 1, None]),
    baseline=st.floats(-0.9, 0.9),
    support=st.sampled_from(SUPPORTS),
)
def test_without_a_hint_the_teacher_contributes_exactly_nothing_at_every_position(
    teacher: list[float], verdict: int | None, baseline: float, support: OpdSupport
) -> None:
    trainer = [value - 0.5 for value in teacher]
    for given_teacher in (teacher, None):
        common: dict[str, Any] = {
            "has_hint": False,
            "verdict": verdict,
            "baseline": baseline,
            "opd_support": support,
            "teacher_logprobs": given_teacher,
            "trainer_logprobs": trainer,
            "completion_length": len(teacher),
        }
        for method in ("opd", "sdpo"):
            silent = streams(method, **common)
            assert silent.advantages == (0.0,) * len(teacher)
            assert not silent.is_live
        combined = streams("combine", **common)
        expected = 0.3 * (verdict - baseline) if verdict else 0.0
        assert combined.advantages == (expected,) * len(teacher)
        assert combined.directive_weight == 0.0


def test_a_weight_of_zero_switches_a_term_of_combine_off() -> None:
    assert streams("combine", w_opd=0.0, teacher_logprobs=None) == streams(
        "combine", has_hint=False, teacher_logprobs=None
    )
    verdict_off = streams("combine", w_rl=0.0)
    assert verdict_off.advantage_mask == (False, False, False)
    assert verdict_off.directive_weight == 0.8


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
@pytest.mark.parametrize("support", SUPPORTS)
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
def test_a_hinted_sample_without_a_usable_teacher_is_refused(
    method: Method, support: OpdSupport, teacher: Sequence[float] | None, message: str
) -> None:
    with pytest.raises(AlignmentError, match=message):
        streams(method, teacher_logprobs=teacher, opd_support=support)
    with pytest.raises(AlignmentError, match=message.replace("teacher", "trainer")):
        streams(method, trainer_logprobs=teacher, opd_support=support)


def test_a_certain_teacher_is_allowed() -> None:
    """0.0 is a legal log-probability; only inventing it is not."""
    result = streams("opd", opd_support="token", teacher_logprobs=(0.0, -0.5, -1.0))
    assert result.advantages == pytest.approx((0.5, 0.0, 0.0))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"verdict": 2}, "a verdict is"),
        ({"completion_length": 0}, "an empty completion"),
        ({"opd_support": "vocabulary"}, "unknown opd support"),
        ({"baseline": math.nan}, "not finite"),
        ({"alpha": 1.5}, "directive_alpha"),
        ({"w_opd": -1.0}, "directive_weight"),
    ],
)
def test_impossible_arguments_are_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        streams("combine", **overrides)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown method 'grpo'"):
        streams("grpo")  # type: ignore[arg-type]  # the point of the test


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
    assert streams("rl", baseline=running_baseline([-1] * 20, kind="none")).advantages == (-1.0,) * 3


@given(recent=st.lists(st.sampled_from([-1, 0, 1, None]), max_size=200), verdict=st.sampled_from([-1, 1]))
def test_a_verdict_always_keeps_its_sign_and_some_of_its_weight(
    recent: list[int | None], verdict: int
) -> None:
    """However many complaints came before, the next one still lowers what it complains about."""
    advantage = streams("rl", verdict=verdict, baseline=running_baseline(recent)).advantages[0]
    assert advantage * verdict > 0


# -- the relevance gate


def test_a_hint_that_changes_nothing_or_everything_is_refused_with_its_reason() -> None:
    assert directive_refusal(mean_shift=0.2, overlap=0.8, min_shift=0.05) is None
    nothing = directive_refusal(mean_shift=0.01, overlap=0.9, min_shift=0.05)
    assert nothing is not None
    assert nothing.startswith("the reply is about as likely with these words in context: ")
    subject = directive_refusal(mean_shift=2.0, overlap=0.3, min_shift=0.05)
    assert subject is not None
    assert "changes the subject" in subject


def test_a_hint_whose_effect_is_unknown_is_refused() -> None:
    assert directive_refusal(mean_shift=math.nan, overlap=0.9, min_shift=0.05) is not None
    assert directive_refusal(mean_shift=1.0, overlap=math.nan, min_shift=0.05) is not None


# -- at least one


def candidate(
    turn: str, support: float, *, verdict: int = 0, hint: str | None = None, follow_up: str | None = "why?"
) -> SessionTurn:
    return SessionTurn(turn_id=turn, verdict=verdict, hint=hint, follow_up=follow_up, support=support)


def test_the_best_supported_turn_of_a_neutral_session_is_trained() -> None:
    turns = [candidate("a", 0.2), candidate("b", 0.9), candidate("c", 0.5)]
    assert at_least_one(turns) == AtLeastOne(turn_id="b", hint="why?", is_reaction=True)


def test_a_session_with_a_verdict_needs_no_stand_in() -> None:
    assert at_least_one([candidate("a", 0.9), candidate("b", 0.1, verdict=-1)]) is None


def test_a_scorers_hint_goes_before_the_raw_follow_up_of_the_same_turn() -> None:
    assert at_least_one([candidate("a", 0.5, hint="prefers short answers")]) == AtLeastOne(
        turn_id="a", hint="prefers short answers", is_reaction=False
    )


def test_at_equal_support_a_turn_with_a_scorers_hint_wins_and_then_the_earlier_one() -> None:
    chosen = at_least_one([candidate("a", 0.5), candidate("b", 0.5, hint="x"), candidate("c", 0.5, hint="y")])
    assert chosen is not None
    assert chosen.turn_id == "b"


@pytest.mark.parametrize(
    "turns",
    [
        [],
        [candidate("a", 0.0)],
        [candidate("a", -1.0)],
        [candidate("a", math.nan)],
        [candidate("a", 0.9, follow_up=None)],
        [candidate("a", 0.9, follow_up=" \n", hint="")],
    ],
    ids=["no turns", "no support", "negative", "unknown", "no text", "blank text"],
)
def test_nothing_is_trained_without_support_and_text(turns: list[SessionTurn]) -> None:
    assert at_least_one(turns) is None


TEXTS = st.one_of(st.none(), st.text(max_size=20))
CANDIDATES = st.lists(
    st.builds(
        SessionTurn,
        turn_id=st.uuids().map(str),
        verdict=st.sampled_from([0, None]),
        hint=TEXTS,
        follow_up=TEXTS,
        support=st.floats(-1, 1),
    ),
    max_size=6,
)


@given(turns=CANDIDATES)
def test_the_choice_is_the_best_supported_turn_that_has_text_and_its_row_is_effective(
    turns: list[SessionTurn],
) -> None:
    chosen = at_least_one(turns)
    usable = [
        turn
        for turn in turns
        if turn.support > 0 and any(text and text.strip() for text in (turn.hint, turn.follow_up))
    ]
    if not usable:
        assert chosen is None
        return
    assert chosen is not None
    assert chosen.hint.strip()
    (picked,) = [turn for turn in turns if turn.turn_id == chosen.turn_id]
    assert picked.support == max(turn.support for turn in usable)
    assert chosen.hint == (picked.follow_up if chosen.is_reaction else picked.hint)
    assert directive_streams(completion_length=4).is_effective


def test_a_teacher_asks_for_a_whole_step_and_a_verdict_for_as_much_as_it_is_news() -> None:
    def size(verdict: int | None, *, has_hint: bool, baseline: float, method: Method = "combine") -> float:
        return build_streams(
            method,
            verdict=verdict,
            baseline=baseline,
            has_hint=has_hint,
            teacher_logprobs=[-1.0, -1.0] if has_hint else None,
            trainer_logprobs=[-2.0, -1.0] if has_hint else None,
            w_rl=0.3,
            w_opd=1.0,
            opd_support="topk",
            opd_clip=1.0,
            completion_length=2,
            blames=False,
        ).size

    assert size(-1, has_hint=True, baseline=0.5) == 1.0
    assert size(1, has_hint=False, baseline=0.5) == pytest.approx(0.15)
    assert size(1, has_hint=False, baseline=-0.5) == pytest.approx(0.45)
    assert size(-1, has_hint=False, baseline=0.0, method="rl") == 1.0
    assert size(1, has_hint=False, baseline=-0.5, method="rl") == 1.0  # never more than a whole step
    assert size(0, has_hint=False, baseline=0.0) == 0.0
    some = Streams(advantages=(0.4, 9.0), advantage_mask=(True, False), directive_weight=0.0)
    assert some.size == pytest.approx(0.4)  # what is masked asks for nothing


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
