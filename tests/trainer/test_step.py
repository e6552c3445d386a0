"""A step on a real (tiny, random) policy: what each turn teaches, what is refused and why, and that weights move as asked."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from trainer.hint_effect import HintMeter
from trainer.hint_selection import HintSelection
from trainer.playbook import Playbook, Wish, Wording

from store.errors import ConfigError
from store.lifecycle import DropReason
from store.settings import read_settings
from store.values import Completion, FollowUp, LogprobMode, ScoredTurn
from tests.trainer.conftest import step_once
from tests.trainer.plans import bare_plan
from tests.trainer.turns import anchor_of, sampled_turn
from trainer.batch import Sample, SampleKind
from trainer.losses import NO_RESIDUAL, Residual, kl_k3
from trainer.policy import LocalPolicy, Weights
from trainer.step import (
    MAX_RESAMPLE_TOKENS,
    PreparedBatch,
    StepPlan,
    _Batch,
    by_teacher,
    prepare,
    resampled,
    train,
)

COMBINE = bare_plan()


def ready(
    policy: LocalPolicy, *turns: ScoredTurn, plan: StepPlan = COMBINE, version: int = 0
) -> PreparedBatch:
    return prepare(policy, turns, plan, recent_verdicts=[], version=version)


def weights(policy: LocalPolicy) -> dict[str, torch.Tensor]:
    return {name: value for name, value in policy.snapshot().items() if name.startswith("weight/")}


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ({"kl_target": 0.1}, 0.1),
        ({"kl_target": 0.2, "max_kl_step": 0.05}, 0.05),
        ({"max_kl_step": 0.0}, math.inf),
    ],
)
def test_a_version_moves_no_further_than_the_target(given: dict[str, Any], target: float) -> None:
    assert StepPlan.of(read_settings(given)).kl_target == target


def test_a_complaint_becomes_a_sample_with_a_teacher_who_read_it(policy: LocalPolicy) -> None:
    turn = sampled_turn(policy, "t", "What is the capital of France?")
    (sample,) = ready(policy, turn).samples
    assert sample.completion_ids == turn.completion.token_ids
    assert sample.prompt_ids == turn.prompt_token_ids
    assert sample.teacher_prompt_ids is not None
    assert "shorter please" in policy.tokenizer.decode(sample.teacher_prompt_ids)
    assert sample.streams is not None
    assert sample.streams.directive_weight == 1.0
    assert set(sample.streams.advantages) == {0.0}


def test_only_a_reward_function_and_a_failed_tool_call_put_a_complaint_on_every_token(
    policy: LocalPolicy,
) -> None:
    def advantages(source: str) -> set[float]:
        turn = sampled_turn(policy, "t", "Hi", verdict={"value": -1, "hint": None, "source": source})
        samples = ready(policy, turn).samples
        return {value for sample in samples if sample.streams for value in sample.streams.advantages}

    assert advantages("rule:complaint") == advantages("feedback") == advantages("rule:retry") == set()
    assert advantages("custom:rewards.py:reward") == advantages("rule:tool_error") == {-0.3}


def test_the_students_own_answer_is_never_in_the_teachers_context(policy: LocalPolicy) -> None:
    turn = sampled_turn(policy, "t", "Hello?")
    (sample,) = ready(policy, turn).samples
    assert sample.teacher_prompt_ids is not None
    reply = list(turn.completion.token_ids[:4])
    ids = list(sample.teacher_prompt_ids)
    assert all(ids[i : i + 4] != reply for i in range(len(ids)))


@pytest.mark.parametrize("method", ["rl", "opd", "combine", "sdpo"])
def test_every_method_moves_the_weights_on_a_complaint(policy: LocalPolicy, method: str) -> None:
    plan = replace(COMBINE, method=method)  # type: ignore[arg-type]  # parametrized literal
    prepared = ready(policy, sampled_turn(policy, "t", "Hi there"), plan=plan)
    before = weights(policy)
    metrics = train(policy, prepared.samples, plan)
    assert metrics["optimizer_steps"] == 2
    assert metrics["effective_samples"] == 1
    assert moved(before, weights(policy))


def test_a_wide_vocabulary_is_trained_some_positions_at_a_time_to_the_same_weights(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [sampled_turn(policy, f"t{i}", f"Hi there {i}") for i in range(3)]
    start = policy.snapshot()
    found = []
    for width in (policy.vocabulary_size, 1):
        monkeypatch.setattr("trainer.policy.WHOLE_VOCABULARY", width)
        monkeypatch.setattr("trainer.policy.POSITIONS", 5)
        policy.restore(start)
        prepared = ready(policy, *turns)
        found.append((train(policy, prepared.samples, COMBINE), weights(policy)))
    (whole, there), (pieces, here) = found
    assert pieces == pytest.approx(whole, rel=1e-4, abs=1e-5)
    # AdamW divides by the gradient's own size: what is rounding in a gradient of nearly nothing is a step
    assert max(float((here[name] - there[name]).abs().max()) for name in there) < 2e-4


@pytest.mark.parametrize("body", [{"response_format": {"type": "json_schema"}}, {"tool_choice": "required"}])
def test_a_turn_under_a_schema_teaches_by_its_hint_alone(policy: LocalPolicy, body: dict[str, Any]) -> None:
    told = sampled_turn(policy, "t", "What is the capital of France?", request=body)
    (sample,) = ready(policy, told, plan=replace(COMBINE, blames=True)).samples
    assert sample.streams is not None
    assert (sample.streams.directive_weight, any(sample.streams.advantage_mask)) == (1.0, False)
    praised = sampled_turn(policy, "t", "Hi", request=body, verdict={"value": 1, "hint": None})
    prepared = ready(policy, praised)
    assert (prepared.samples, prepared.refused["t"].reason) == ((), DropReason.CONSTRAINED)


def test_a_verdict_with_a_share_moves_the_tokens_by_that_share(policy: LocalPolicy) -> None:
    turn = sampled_turn(policy, "t", "Hi", verdict={"value": 1, "hint": None, "share": 0.5})
    (sample,) = ready(policy, turn).samples
    assert sample.streams is not None
    assert set(sample.streams.advantages) == {0.15}


def test_opd_without_hints_trains_nothing_and_says_so(policy: LocalPolicy) -> None:
    turn = sampled_turn(policy, "t", "Hi", verdict={"value": 1, "hint": None})
    prepared = ready(policy, turn, plan=replace(COMBINE, method="opd"))
    assert prepared.samples == ()
    assert prepared.refused["t"].reason is DropReason.NO_SIGNAL


def test_praise_needs_no_teacher(policy: LocalPolicy) -> None:
    turn = sampled_turn(policy, "t", "Hi", verdict={"value": 1, "hint": None})
    (sample,) = ready(policy, turn).samples
    assert sample.streams is not None
    assert sample.streams.directive_weight == 0.0
    assert set(sample.streams.advantages) == {0.3}


def test_a_hint_that_changes_nothing_for_the_teacher_does_not_teach(policy: LocalPolicy) -> None:
    plan = replace(COMBINE, method="sdpo", min_shift=1e6)
    prepared = ready(policy, sampled_turn(policy, "t", "Hi"), plan=plan)
    assert prepared.refused["t"].reason is DropReason.HINT_IRRELEVANT
    assert "mean shift" in prepared.refused["t"].detail


def test_a_hint_that_changes_the_subject_does_not_teach(policy: LocalPolicy) -> None:
    plan = replace(COMBINE, method="sdpo", min_overlap=1.1)
    prepared = ready(policy, sampled_turn(policy, "t", "Hi"), plan=plan)
    assert prepared.refused["t"].reason is DropReason.HINT_IRRELEVANT
    assert "changes the subject" in prepared.refused["t"].detail


def test_an_irrelevant_hint_leaves_the_verdict_of_combine_in_place(policy: LocalPolicy) -> None:
    plan = replace(COMBINE, min_shift=1e6, blames=True)
    (sample,) = ready(policy, sampled_turn(policy, "t", "Hi"), plan=plan).samples
    assert sample.streams is not None
    assert sample.streams.directive_weight == 0.0
    assert set(sample.streams.advantages) == {-0.3}


def test_a09_a_session_of_neutral_verdicts_still_teaches_through_one_follow_up(policy: LocalPolicy) -> None:
    turns = [
        sampled_turn(
            policy,
            f"t{i}",
            "Hi",
            session_id="one",
            verdict={
                "value": 0,
                "hint": None,
                "confidence": 0.2 + i / 10,
                "follow_up": FollowUp(text=f"in French {i}"),
            },
        )
        for i in range(3)
    ]
    prepared = ready(policy, *turns)
    (sample,) = prepared.samples
    assert sample.turn_id == "t2"
    assert {r.reason for r in prepared.refused.values()} == {DropReason.NO_SIGNAL}
    before = weights(policy)
    train(policy, prepared.samples, COMBINE)
    assert moved(before, weights(policy))


def test_a_new_question_is_no_hint_even_in_a_session_without_feedback(policy: LocalPolicy) -> None:
    question = FollowUp(text="What is the capital of Peru?", is_question=True)
    turn = sampled_turn(policy, "t", "Hi", verdict={"value": 0, "hint": None, "follow_up": question})
    assert ready(policy, turn).refused["t"].reason is DropReason.NO_SIGNAL


def test_a06_a_teacher_that_cannot_be_asked_drops_the_turn(policy: LocalPolicy) -> None:
    turn = sampled_turn(policy, "t", "Hi")
    other = replace(turn, prompt_token_ids=(*turn.prompt_token_ids[:-1], 7))
    refusal = ready(policy, other).refused["t"]
    assert refusal.reason is DropReason.TEACHER_FAILED
    assert "template mismatch" in refusal.detail


def test_a06_a_teacher_that_answers_no_numbers_drops_the_turn(policy: LocalPolicy) -> None:
    turn = sampled_turn(policy, "t", "Hi")
    healthy = policy.logits

    def sick(hidden: torch.Tensor, weights: Weights = Weights.STUDENT) -> torch.Tensor:
        logits = healthy(hidden, weights)
        return logits * float("nan") if weights is Weights.BASE else logits

    policy.logits = sick  # type: ignore[method-assign]  # the real one with a sick teacher
    refusal = ready(policy, turn).refused["t"]
    assert refusal.reason is DropReason.TEACHER_FAILED
    assert "not finite" in refusal.detail


def test_version_skew_beyond_the_limit_is_dropped(policy: LocalPolicy) -> None:
    turn = sampled_turn(policy, "t", "Hi")
    assert ready(policy, turn, version=8).samples
    assert ready(policy, turn, version=9).refused["t"].reason is DropReason.STALE


def test_replies_of_another_policy_are_dropped_as_stale(policy: LocalPolicy) -> None:
    turn = sampled_turn(policy, "t", "Hi")
    foreign = replace(
        turn,
        completion=replace(
            turn.completion, sampling_logprobs=tuple(x - 2.0 for x in turn.completion.sampling_logprobs)
        ),
    )
    refusal = ready(policy, foreign).refused["t"]
    assert refusal.reason is DropReason.STALE
    assert "probability ratio" in refusal.detail


def test_a07_sampling_temperature_alone_makes_no_turn_stale(policy: LocalPolicy) -> None:
    prepared = ready(policy, sampled_turn(policy, "t", "Hi", temperature=0.3))
    assert len(prepared.samples) == 1


@pytest.mark.parametrize(
    "completion",
    [
        Completion(token_ids=(5, 6), sampling_logprobs=(-0.5,)),
        Completion(token_ids=(), sampling_logprobs=()),
        Completion(token_ids=(5, 10_000_000), sampling_logprobs=(-0.5, -0.5)),
    ],
)
def test_a03_streams_that_do_not_fit_are_dropped_not_padded(
    policy: LocalPolicy, completion: Completion
) -> None:
    turn = replace(sampled_turn(policy, "t", "Hi"), completion=completion)
    assert ready(policy, turn).refused["t"].reason is DropReason.TOKEN_MISMATCH


def test_a_turn_longer_than_the_context_is_dropped(policy: LocalPolicy) -> None:
    turn = sampled_turn(policy, "t", "Hi")
    long = replace(turn, prompt_token_ids=turn.prompt_token_ids * (policy.max_context // 4))
    assert ready(policy, long).refused["t"].reason is DropReason.TOO_LONG


def test_each_turn_is_either_trained_or_refused(policy: LocalPolicy) -> None:
    turns = [
        sampled_turn(policy, "good", "Hi"),
        sampled_turn(policy, "thanks", "Hello", verdict={"value": 1, "hint": None}),
        replace(sampled_turn(policy, "old", "Hey"), adapter_version=-20),
        sampled_turn(policy, "silent", "Yes?", verdict={"value": 0, "hint": None}),
    ]
    prepared = ready(policy, *turns)
    assert {s.turn_id for s in prepared.samples} == {"good", "thanks"}
    assert set(prepared.refused) == {"old", "silent"}


def test_the_trust_region_stops_the_inner_steps(policy: LocalPolicy) -> None:
    plan = replace(COMBINE, steps_per_batch=50, max_kl_step=1e-9)
    metrics = train(policy, ready(policy, sampled_turn(policy, "t", "Hi"), plan=plan).samples, plan)
    assert metrics["optimizer_steps"] == 1
    assert metrics["kl_step"] > 1e-9


@pytest.mark.parametrize("resample", [False, True])
def test_a_reply_that_the_weights_before_the_step_would_not_give_does_not_end_the_inner_steps(
    policy: LocalPolicy, resample: bool
) -> None:
    """The reply is of an older version, to which its tokens were e^12 times as likely."""
    plan = replace(COMBINE, steps_per_batch=4, max_kl_step=1e-4, resample=resample, kl_target=math.inf)
    (sample,) = ready(policy, sampled_turn(policy, "t", "Hi"), plan=plan).samples
    start = policy.position()
    assert train(policy, [sample], plan)["optimizer_steps"] == 1
    policy.move_between(start, start, 0.0)
    assert sample.sampling_logprobs is not None
    older = replace(sample, sampling_logprobs=tuple(one + 12.0 for one in sample.sampling_logprobs))
    metrics = train(policy, [older], plan)
    assert metrics["optimizer_steps"] == 4
    assert metrics["kl_step"] < 1e-4


def test_the_rate_falls_over_the_steps_of_a_batch_and_is_whole_again_after_it(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    apply = policy.apply_gradients

    def noted() -> float:
        rates.append(policy.learning_rate)
        return apply()

    monkeypatch.setattr(policy, "apply_gradients", noted)
    samples = ready(policy, sampled_turn(policy, "t", "Hi")).samples
    policy.learning_rate = 1e-3
    for lr_decay in (True, False):
        train(policy, samples, replace(COMBINE, steps_per_batch=4, lr_decay=lr_decay))
        assert policy.learning_rate == 1e-3
    assert rates[4:] == [1e-3] * 4
    assert rates[:4] == pytest.approx([1e-3, 0.75**1.5 * 1e-3, 0.5**1.5 * 1e-3, 0.25**1.5 * 1e-3])


def test_a_batch_that_lost_a_sample_still_knows_how_far_the_weights_moved(policy: LocalPolicy) -> None:
    turns = [sampled_turn(policy, name, f"Hi {name}") for name in ("a", "b")]
    samples = ready(policy, *turns).samples
    batch = _Batch(samples, COMBINE)
    assert batch.kl_step(policy) == 0.0  # nothing was read yet
    batch.backward(policy)
    policy.apply_gradients()
    moved = batch.kl_step(policy)
    assert moved > 1e-6
    batch.remove("b")
    left = batch.kl_step(policy)
    assert left > 1e-6
    counts = [len(sample.completion_ids) for sample in samples]
    other = (moved * sum(counts) - left * counts[0]) / counts[1]  # a mean over tokens
    assert other > 0


def test_after_the_steps_of_a_batch_half_as_many_smaller_ones_are_taken_on_the_anchors_alone(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    answered: list[set[SampleKind]] = []
    apply = policy.apply_gradients

    def noted() -> float:
        rates.append(policy.learning_rate)
        return apply()

    def renewed(policy: LocalPolicy, samples: Sequence[Sample], **given: Any) -> list[Sample]:
        answered.append({sample.kind for sample in samples})
        return resampled(policy, samples, **given)

    monkeypatch.setattr(policy, "apply_gradients", noted)
    monkeypatch.setattr("trainer.step.resampled", renewed)
    plan = replace(COMBINE, blames=False, steps_per_batch=4, resample=True)
    (complaint,) = ready(policy, sampled_turn(policy, "t", "Hi"), plan=plan).samples
    anchor = anchor_of(complaint)
    policy.learning_rate = 1e-3
    assert train(policy, [complaint, anchor], plan)["optimizer_steps"] == 6
    assert rates == [1e-3] * 4 + [pytest.approx(1.5e-4)] * 2
    both = {SampleKind.FEEDBACK, SampleKind.ANCHOR}
    assert answered == [both] * 3 + [{SampleKind.ANCHOR}] * 2
    assert policy.learning_rate == 1e-3
    assert train(policy, [complaint], plan)["optimizer_steps"] == 4
    assert train(policy, [anchor], plan)["optimizer_steps"] == 4
    assert train(policy, [complaint, anchor], replace(plan, resample=False))["optimizer_steps"] == 4


def test_what_only_a_teacher_judges_is_answered_anew_by_the_weights_as_they_are(policy: LocalPolicy) -> None:
    complaint = sampled_turn(policy, "complaint", "Hi there", temperature=0.7)
    thanks = sampled_turn(policy, "thanks", "Hello", verdict={"value": 1, "hint": None})
    plan = replace(COMBINE, blames=False)
    before = {sample.turn_id: sample for sample in ready(policy, complaint, thanks, plan=plan).samples}
    anchor = anchor_of(before["complaint"])
    step_once(policy)
    samples = [before["complaint"], before["thanks"], anchor]
    after = resampled(policy, samples, seed=3)
    assert [sample.turn_id for sample in after] == ["complaint", "thanks", "anchor"]
    assert after[1] is samples[1]  # a verdict is about the reply that it followed
    for new, old in ((after[0], samples[0]), (after[2], samples[2])):
        assert new.prompt_ids == old.prompt_ids
        assert new.teacher_prompt_ids == old.teacher_prompt_ids
        assert new.completion_ids != old.completion_ids
        assert (new.temperature, new.logprob_mode) == (1.0, LogprobMode.RAW)
        assert new.streams is not None
        assert old.streams is not None
        assert new.streams.directive_weight == old.streams.directive_weight
        assert new.streams.directive_alpha == old.streams.directive_alpha
    assert after[2].sampling_logprobs is None
    own, mask = policy.response_logprobs([after[0].prompt_ids], [after[0].completion_ids])
    assert after[0].sampling_logprobs == pytest.approx(own[0][mask[0]].tolist(), abs=1e-4)
    blamed = ready(policy, complaint, plan=replace(COMBINE, blames=True)).samples
    assert blamed[0].teacher_prompt_ids is not None
    assert resampled(policy, blamed, seed=3)[0] is blamed[0]  # a teacher and a verdict
    again = resampled(policy, samples, seed=3)
    assert [sample.completion_ids for sample in again] == [sample.completion_ids for sample in after]


def test_a_reply_for_whose_like_the_context_has_no_room_stays(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = ready(policy, sampled_turn(policy, "t", "Hi"), plan=replace(COMBINE, blames=False)).samples
    (sample,) = samples
    assert sample.teacher_prompt_ids is not None
    longest = max(len(sample.prompt_ids), len(sample.teacher_prompt_ids))
    monkeypatch.setattr(policy, "max_context", longest + MAX_RESAMPLE_TOKENS - 1)
    assert resampled(policy, samples, seed=3) == [sample]
    monkeypatch.setattr(policy, "max_context", longest + MAX_RESAMPLE_TOKENS)
    assert resampled(policy, samples, seed=3) != [sample]


def test_answers_are_asked_for_before_each_further_step_and_not_before_the_first(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    sample = policy.sample

    def noted(*args: Any, **given: Any) -> Any:
        asked.append(given["seed"])
        return sample(*args, **given)

    plan = replace(COMBINE, blames=False, steps_per_batch=3, resample=True)
    samples = ready(policy, sampled_turn(policy, "t", "Hi"), plan=plan).samples
    monkeypatch.setattr(policy, "sample", noted)
    metrics = train(policy, samples, plan, seed=40)
    assert asked == [41, 42]
    assert metrics["optimizer_steps"] == 3
    tight = replace(plan, max_kl_step=1e-9)  # how far it went is measured on what the batch began with
    assert train(policy, samples, tight, seed=40)["optimizer_steps"] == 1
    assert asked == [41, 42]


def test_the_distance_of_a_batch_to_the_base_model_is_measured_on_the_base_model(policy: LocalPolicy) -> None:
    for seed in range(3):
        step_once(policy, seed)
    (sample,) = ready(policy, sampled_turn(policy, "t", "Hi there")).samples
    asked = [sample.prompt_ids], [sample.completion_ids]
    own, mask = policy.response_logprobs(*asked)
    base, _ = policy.response_logprobs(*asked, Weights.BASE)
    expected = float(kl_k3(own[mask], base[mask]).mean())
    assert expected > 1e-3
    assert train(policy, [sample], COMBINE)["kl_base"] == pytest.approx(expected, rel=1e-3)


def test_a_batch_in_parts_moves_the_weights_as_the_whole_does(policy: LocalPolicy) -> None:
    turns = [sampled_turn(policy, f"t{i}", "Hi " * (i + 1)) for i in range(4)]
    whole = replace(COMBINE, micro_tokens=1_000_000)
    parts = replace(COMBINE, micro_tokens=1)
    samples = ready(policy, *turns).samples
    start = policy.snapshot()
    first = train(policy, samples, whole)
    together = weights(policy)
    policy.restore(start)
    second = train(policy, samples, parts)
    apart = weights(policy)
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-4)
    # Of all that moved: AdamW makes a step of what is rounding in a gradient of nearly nothing, so one entry says little.
    step = torch.cat([(together[name] - start[name]).flatten() for name in together])
    gap = torch.cat([(together[name] - apart[name]).flatten() for name in together])
    assert float(gap.norm() / step.norm()) < 0.05


def test_an_identical_model_has_a_ratio_of_one_and_no_staleness(policy: LocalPolicy) -> None:
    turns = [
        sampled_turn(policy, "raw", "Hi", temperature=0.7),
        sampled_turn(policy, "plain", "Hi there"),
    ]
    metrics = train(policy, ready(policy, *turns).samples, replace(COMBINE, steps_per_batch=1))
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["staleness_mean"] == pytest.approx(1.0, abs=1e-5)


def test_replayed_turns_are_not_stale_however_old(policy: LocalPolicy) -> None:
    turn = sampled_turn(policy, "t", "Hi")
    step_once(policy)
    prepared = prepare(policy, [turn], COMBINE, recent_verdicts=[], version=99, kind=SampleKind.REPLAY)
    (sample,) = prepared.samples
    assert sample.kind is SampleKind.REPLAY


def test_the_baseline_comes_from_earlier_verdicts_and_none_is_the_seeds_form(policy: LocalPolicy) -> None:
    turn = sampled_turn(policy, "t", "Hi", verdict={"value": 1, "hint": None})
    blame = sampled_turn(
        policy, "b", "Hello", verdict={"value": -1, "hint": None}
    )  # thanks alone would be no news
    plan = replace(COMBINE, method="rl")
    for baseline, expected in (("running", 1 - 12 / 16), ("none", 1.0)):
        (sample, _) = prepare(
            policy,
            [turn, blame],
            replace(plan, baseline=baseline),  # type: ignore[arg-type]  # loop over literals
            recent_verdicts=[1] * 12,
            version=0,
        ).samples
        assert sample.streams is not None
        assert sample.streams.advantages[0] == pytest.approx(expected)


def test_a_batch_of_thanks_as_always_teaches_nothing_and_says_so(policy: LocalPolicy) -> None:
    thanks = [sampled_turn(policy, name, f"Hi {name}", verdict={"value": 1, "hint": None}) for name in "ab"]
    complaint = sampled_turn(policy, "c", "Hello?")
    verdict = {"value": -1, "hint": None, "source": "custom:rewards.py:reward"}
    blame = sampled_turn(policy, "d", "Hello there?", verdict=verdict)

    def made(*turns: ScoredTurn, recent: list[int], baseline: str = "running") -> PreparedBatch:
        plan = replace(COMBINE, baseline=baseline)  # type: ignore[arg-type]  # one of its literals
        return prepare(policy, turns, plan, recent_verdicts=recent, version=0)

    content = made(*thanks, recent=[1] * 32)
    assert not content.samples
    assert {refusal.reason for refusal in content.refused.values()} == {DropReason.NO_SIGNAL}
    assert all("thanks" in refusal.detail for refusal in content.refused.values())
    assert set(content.refused) == {"a", "b"}
    # Beside news they hold what is right; some complaints of late make thanks news, and so they are without a baseline.
    assert len(made(*thanks, complaint, recent=[1] * 32).samples) == 3
    assert len(made(*thanks, blame, recent=[1] * 32).samples) == 3
    assert len(made(*thanks, recent=[1] * 24 + [-1] * 8).samples) == 2
    assert len(made(*thanks, recent=[1] * 32, baseline="none").samples) == 2


def test_the_plan_follows_the_settings() -> None:
    plan = StepPlan.of(
        read_settings(
            {"method": "opd", "opd_support": "token", "loss_fn": "importance_sampling", "teacher": "ema"}
        )
    )
    assert (plan.method, plan.opd_support, plan.teacher) == ("opd", "token", Weights.EMA)
    assert (plan.objective.clip_low, plan.objective.clip_high, plan.objective.dual_clip) == (
        0.0,
        float("inf"),
        None,
    )


def test_other_implementations_objectives_are_settings() -> None:
    plan = StepPlan.of(
        read_settings(
            {
                "method": "sdpo",
                "teacher": "live",
                "support_of": "teacher",
                "support_mass": "renormalised",
                "opd_centred": True,
                "hint_gate": False,
            }
        )
    )
    assert (plan.objective.support_of, plan.objective.support_mass) == ("teacher", "renormalised")
    assert (plan.teacher, plan.opd_centred) == (Weights.STUDENT, True)
    assert (plan.min_shift, plan.min_overlap) == (0.0, 0.0)


def test_the_plan_has_the_shares_that_the_teacher_carries() -> None:
    plan = StepPlan.of(read_settings({}))
    assert (plan.residual, plan.blames) == (Residual(on_hint=0.3, off_hint=0.3, min_p=0.1), False)
    assert (plan.most_hints, plan.steps_per_batch, plan.lr_decay, plan.resample) == (4, 6, True, True)
    given = StepPlan.of(
        read_settings({"teacher_residual": 0.25, "teacher_residual_offhint": 0.75, "teacher_min_p": 0.2})
    )
    assert given.residual == Residual(on_hint=0.25, off_hint=0.75, min_p=0.2)
    assert StepPlan.of(read_settings({"blame_complaints": True})).blames
    with pytest.raises(ConfigError, match="less than or equal to 1"):
        read_settings({"teacher_residual_offhint": 1.5})
    with pytest.raises(ConfigError, match="less than 1"):
        read_settings({"teacher_min_p": 1.0})


def test_the_teacher_also_gets_the_wishes_of_the_playbook(policy: LocalPolicy) -> None:
    words = ["in Spanish", "no emoji", "no lists"]
    playbook = Playbook(
        wishes=tuple(Wish(wordings=(Wording(turn_id=text, text=text),), version=1) for text in words)
    )
    turn = sampled_turn(policy, "t", "Hi")

    def teacher_prompt(turn: ScoredTurn, most: int) -> str:
        plan = replace(COMBINE, most_hints=most)
        meter = HintMeter(policy, policy.name)
        selection = HintSelection(meter, playbook, version=1, decode=policy.decode)
        prepared = prepare(
            policy,
            [turn],
            plan,
            recent_verdicts=[],
            version=0,
            kind=SampleKind.REPLAY,
            selection=selection,
        )
        (sample,) = prepared.samples
        return str(policy.tokenizer.decode(sample.teacher_prompt_ids or ()))

    text = teacher_prompt(turn, 3)
    assert "in Spanish" not in text  # the newest two others
    assert text.index("no emoji") < text.index("no lists") < text.index("shorter please")
    assert text.count("shorter please") == 1
    assert not any(hint in teacher_prompt(turn, 1) for hint in words)
    spoken = sampled_turn(policy, "u", "Hi, no lists today")  # it is in the conversation already
    assert "in Spanish" in teacher_prompt(spoken, 3)


def test_without_the_gate_every_hint_teaches(policy: LocalPolicy) -> None:
    turn = sampled_turn(policy, "t", "Hi")
    plan = replace(COMBINE, method="sdpo", teacher=Weights.STUDENT, min_shift=0.0, min_overlap=0.0)
    (sample,) = ready(policy, turn, plan=plan).samples
    assert sample.streams is not None
    assert sample.streams.directive_weight == 1.0


def test_a08_the_teacher_is_who_the_settings_say() -> None:
    assert StepPlan.of(read_settings({})).teacher is Weights.BASE
    assert StepPlan.of(read_settings({"teacher_model_name": "/some/model"})).teacher is Weights.TEACHER
    assert StepPlan.of(read_settings({"learning": "teacher=ema"})).teacher is Weights.EMA
    assert StepPlan.of(read_settings({"learning": "teacher=live"})).teacher is Weights.STUDENT


def test_the_teacher_of_an_anchor_is_the_base_model_and_carries_nothing(policy: LocalPolicy) -> None:
    (complaint,) = ready(policy, sampled_turn(policy, "t", "Hi there")).samples
    anchor = replace(complaint, kind=SampleKind.ANCHOR)
    untaught = replace(complaint, teacher_prompt_ids=None)
    plan = replace(COMBINE, teacher=Weights.EMA, residual=Residual.even(0.3))
    assert list(by_teacher([anchor, complaint, untaught, anchor], plan)) == [
        ([1], Weights.EMA, Residual.even(0.3)),
        ([0, 3], Weights.BASE, NO_RESIDUAL),
    ]


def test_an_engine_that_hides_its_logprob_mode_is_refused_where_it_matters(policy: LocalPolicy) -> None:
    turn = replace(sampled_turn(policy, "t", "Hi", temperature=0.5), logprob_mode=LogprobMode.UNKNOWN)
    assert ready(policy, turn).refused["t"].reason is DropReason.TOKEN_MISMATCH


def test_the_base_teacher_carries_along_what_was_learnt_and_an_ema_teacher_does_not(
    policy: LocalPolicy,
) -> None:
    step_once(policy)
    turn = sampled_turn(policy, "t", "What is the capital of France?")
    (sample,) = ready(policy, turn).samples
    assert sample.teacher_prompt_ids is not None
    hinted, _ = policy.response_logprobs([sample.teacher_prompt_ids], [sample.completion_ids], Weights.BASE)
    plain, _ = policy.response_logprobs([sample.prompt_ids], [sample.completion_ids], Weights.BASE)
    own, _ = policy.response_logprobs([sample.prompt_ids], [sample.completion_ids])
    seen: dict[tuple[str, float], float] = {}
    for teacher in (Weights.BASE, Weights.EMA):
        for residual in (0.0, 0.9):
            plan = replace(COMBINE, method="opd", opd_support="token", opd_clip=100.0, w_opd=1.0)
            (found,) = ready(
                policy, turn, plan=replace(plan, teacher=teacher, residual=Residual.even(residual))
            ).samples
            assert found.streams is not None
            seen[teacher.value, residual] = found.streams.advantages[0]
    assert seen["base", 0.0] == pytest.approx(float(hinted[0, 0] - own[0, 0]), abs=1e-4)
    assert seen["base", 0.9] - seen["base", 0.0] == pytest.approx(
        0.9 * float(own[0, 0] - plain[0, 0]), abs=0.05
    )
    assert seen["base", 0.9] != pytest.approx(seen["base", 0.0], abs=1e-4)
    assert seen["ema", 0.9] == seen["ema", 0.0]
