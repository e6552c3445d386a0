"""The optimizer steps of a version, on a real (tiny, random) policy: every sample in its place, and weights that move as asked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from store.lifecycle import DropReason
from store.settings import read_settings
from store.values import ScoredTurn
from tests.trainer.conftest import step_once
from tests.trainer.plans import bare_plan
from tests.trainer.turns import anchor_of, sampled_turn, stated_in, wishing_turn
from trainer.advantages import directive_streams
from trainer.batch import Sample, SampleKind, spread
from trainer.losses import kl_k3
from trainer.objective import Batch, compute_loss
from trainer.out_of_memory import DoesNotFit
from trainer.plan import StepPlan
from trainer.policy import LocalPolicy, Weights
from trainer.protocol import TeacherScore, TurnRefusal
from trainer.samples import ActiveWishes, prepare
from trainer.step import _backward, train, with_teacher

COMBINE = bare_plan()
WORDS = "Shorter, please."
CLIPPED = StepPlan.of(read_settings({"loss_fn": "ppo"})).objective
UNCLIPPED = StepPlan.of(read_settings({"loss_fn": "importance_sampling"})).objective


def samples_of(policy: LocalPolicy, *turns: ScoredTurn, plan: StepPlan = COMBINE) -> list[Sample]:
    wishes = stated_in(ActiveWishes(texts=(WORDS,)), turns) if plan.reads_wishes else ActiveWishes()
    return list(prepare(policy, plan, turns, (), wishes, recent_verdicts=[], version=0).samples)


def wish(policy: LocalPolicy, name: str = "wish", question: str = "Hi there") -> Sample:
    plan = replace(COMBINE, reads_verdicts=False)
    (sample,) = samples_of(policy, wishing_turn(policy, name, question, WORDS), plan=plan)
    return sample


def rated(policy: LocalPolicy, name: str = "rated", value: int = 1, **changes: Any) -> Sample:
    turn = sampled_turn(policy, name, f"Hello {name}", verdict={"value": value, "hint": None}, **changes)
    (sample,) = samples_of(policy, turn)
    return sample


def weights(policy: LocalPolicy) -> dict[str, torch.Tensor]:
    return {name: value for name, value in policy.snapshot().items() if name.startswith("weight/")}


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([(after[name] - value).flatten() for name, value in before.items()])


def trained(policy: LocalPolicy, samples: Sequence[Sample], plan: StepPlan, **more: Any) -> torch.Tensor:
    """How far a version moves the weights from where the policy is; the policy stays there."""
    start = policy.snapshot()
    train(policy, samples, plan, **more)
    after = weights(policy)
    policy.restore(start)
    return moved({name: value for name, value in start.items() if name.startswith("weight/")}, after)


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Of two movements, by the size of one: AdamW makes a step of what is rounding in a gradient of nearly nothing."""
    return float((one - other).norm() / one.norm())


@contextmanager
def batches_seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Batch]]:
    """The batches whose loss is computed."""
    seen: list[Batch] = []

    def noted(objective: Any, batch: Batch, *rest: Any, **more: Any) -> Any:
        seen.append(batch)
        return compute_loss(objective, batch, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr("trainer.step.compute_loss", noted)
        yield seen


# -- the plan


def test_the_plan_follows_the_settings() -> None:
    plan = StepPlan.of(
        read_settings(
            {"method": "opd", "opd_support": "token", "loss_fn": "importance_sampling", "passes": 3}
        )
    )
    assert (plan.method, plan.opd_support, plan.passes) == ("opd", "token", 3)
    objective = plan.objective
    assert (objective.clip_low, objective.clip_high, objective.dual_clip) == (0.0, math.inf, None)


@pytest.mark.parametrize(
    ("method", "begins_at_base", "wishes", "verdicts", "only_explicit"),
    [
        ("rl", False, False, True, False),
        ("opd", True, True, False, False),
        ("combine", True, True, True, True),
        ("sdpo", True, True, False, False),
    ],
)
def test_a_method_is_a_preset(
    method: str, begins_at_base: bool, wishes: bool, verdicts: bool, only_explicit: bool
) -> None:
    plan = StepPlan.of(read_settings({"method": method}))
    assert (plan.begins_at_base, plan.reads_wishes) == (begins_at_base, wishes)
    assert (plan.reads_verdicts, plan.only_explicit) == (verdicts, only_explicit)
    assert not StepPlan.of(read_settings({"method": method, "wishes": "prompt"})).reads_wishes


def test_a02_the_kl_coefficient_is_of_rl_and_scales_no_teacher() -> None:
    for method, coefficient in (("rl", 0.5), ("opd", 0.0), ("combine", 0.0), ("sdpo", 0.0)):
        plan = StepPlan.of(read_settings({"method": method, "kl_loss_coef": 0.5, "w_opd": 0.7}))
        assert plan.objective.kl_coef == coefficient
        assert plan.w_opd == (0.7 if method == "combine" else 1.0)


def test_a08_the_teacher_is_who_the_settings_say() -> None:
    assert StepPlan.of(read_settings({})).teacher is Weights.BASE
    assert StepPlan.of(read_settings({"teacher_model_name": "/some/model"})).teacher is Weights.TEACHER


def test_the_rate_falls_to_a_tenth_over_the_steps_of_a_version() -> None:
    assert COMBINE.rates(4) == pytest.approx([1.0, 0.7, 0.4, 0.1])
    assert COMBINE.rates(1) == [1.0]


# -- steps


def make(turn_id: str, kind: SampleKind = SampleKind.WISH) -> Sample:
    return Sample(
        turn_id=turn_id,
        kind=kind,
        prompt_ids=(5,),
        completion_ids=(6, 7),
        sampling_logprobs=None,
        streams=directive_streams(completion_length=2),
    )


def test_a_pass_has_every_sample_once_and_every_kind_evenly_in_an_order_that_the_seed_gives() -> None:
    kinds = {SampleKind.WISH: 9, SampleKind.ANCHOR: 6, SampleKind.VERDICT: 3}
    samples = [make(f"{kind}-{i}", kind) for kind, count in kinds.items() for i in range(count)]
    steps = spread(samples, 6, seed=4)
    names = [[sample.turn_id for sample in step] for step in steps]
    assert sorted(name for step in names for name in step) == sorted(sample.turn_id for sample in samples)
    assert [len(step) for step in steps] == [6, 6, 6]
    for step in steps:
        assert Counter(sample.kind for sample in step) == {kind: count // 3 for kind, count in kinds.items()}
    again = spread(samples[::-1], 6, seed=4)  # whatever order the record gives
    assert [[sample.turn_id for sample in step] for step in again] == names
    assert [[sample.turn_id for sample in step] for step in spread(samples, 6, seed=5)] != names


@pytest.mark.parametrize(
    ("count", "size", "steps"), [(1, 8, 1), (3, 8, 1), (11, 8, 1), (13, 8, 2), (64, 8, 8)]
)
def test_a_pass_has_about_as_many_samples_a_step_as_asked(count: int, size: int, steps: int) -> None:
    found = spread([make(str(i)) for i in range(count)], size, seed=0)
    assert len(found) == steps
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_every_sample_is_used_as_often_as_there_are_passes(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [wish(policy, f"wish-{i}") for i in range(3)] + [rated(policy), anchor_of(wish(policy))]
    seen: list[list[str]] = []

    def whole(part: Sequence[Sample], _: int) -> list[list[Sample]]:
        seen.append([sample.turn_id for sample in part])
        return [list(part)] if part else []

    monkeypatch.setattr("trainer.step.micro_batches", whole)
    metrics = train(policy, samples, replace(COMBINE, passes=3, step_samples=2), seed=1)
    teachers, steps = seen[:2], seen[2:]
    assert [len(part) for part in teachers] == [3, 1]
    assert Counter(name for step in steps for name in step) == dict.fromkeys(
        ["wish-0", "wish-1", "wish-2", "rated", "anchor"], 3
    )
    assert metrics["optimizer_steps"] == len(steps) == 6


def test_the_rate_falls_over_the_steps_of_a_version_and_is_whole_again_after_it(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    apply = policy.apply_gradients

    def noted() -> float:
        rates.append(policy.learning_rate)
        return apply()

    monkeypatch.setattr(policy, "apply_gradients", noted)
    policy.learning_rate = 1e-3
    train(policy, [wish(policy)], replace(COMBINE, passes=4))
    assert rates == pytest.approx([1e-3, 7e-4, 4e-4, 1e-4])
    assert policy.learning_rate == 1e-3


def test_the_same_samples_and_seed_give_the_same_weights(policy: LocalPolicy) -> None:
    samples = [wish(policy, f"wish-{i}") for i in range(4)] + [anchor_of(wish(policy))]
    plan = replace(COMBINE, step_samples=2)
    first = trained(policy, samples, plan, seed=3)
    assert torch.equal(trained(policy, samples[::-1], plan, seed=3), first)
    assert not torch.equal(trained(policy, samples, plan, seed=4), first)


@pytest.mark.parametrize("method", ["rl", "opd", "combine", "sdpo"])
def test_every_method_moves_the_weights(policy: LocalPolicy, method: str) -> None:
    plan = replace(COMBINE, method=method, reads_wishes=method != "rl", reads_verdicts=method == "rl")  # type: ignore[arg-type]  # parametrized literal
    samples = samples_of(policy, wishing_turn(policy, "t", "Hi there", WORDS), plan=plan)
    before = weights(policy)
    metrics = train(policy, samples, plan)
    assert metrics["optimizer_steps"] == 2
    assert metrics["effective_samples"] == 1
    assert float(moved(before, weights(policy)).abs().max()) > 0


def test_a_wish_is_learnt_the_student_comes_nearer_to_the_teacher_who_reads_it(policy: LocalPolicy) -> None:
    sample = wish(policy)
    metrics = train(policy, [sample], replace(COMBINE, passes=8))
    assert metrics["loss_after"] < 0.9 * metrics["loss"]


def test_thanks_make_a_reply_likelier_and_complaints_less_likely(policy: LocalPolicy) -> None:
    for value in (1, -1):
        policy.reset()
        sample = rated(policy, value=value)
        asked = [sample.prompt_ids], [sample.completion_ids]
        before, _ = policy.response_logprobs(*asked)
        train(policy, [sample], COMBINE)
        after, _ = policy.response_logprobs(*asked)
        assert value * float((after - before).sum()) > 0


# -- parts


def test_a_step_in_parts_has_the_gradient_of_the_whole(policy: LocalPolicy) -> None:
    samples = [wish(policy, f"w{i}", "Hi " * (i + 1)) for i in range(2)] + [
        rated(policy),
        rated(policy, "b", -1),
    ]
    start = policy.snapshot()
    found = []
    for tokens in (1_000_000, 1):
        policy.restore(start)
        plan = replace(COMBINE, micro_tokens=tokens)
        metrics = train(policy, samples, plan)
        found.append(
            (metrics, moved({k: v for k, v in start.items() if k.startswith("weight/")}, weights(policy)))
        )
    (first, together), (second, apart) = found
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-4)
    assert first["live_samples"] == second["live_samples"] == 4
    assert distance(together, apart) < 0.05


def test_a_wide_vocabulary_is_trained_some_positions_at_a_time_to_the_same_weights(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [wish(policy, f"t{i}", f"Hi there {i}") for i in range(2)] + [rated(policy)]
    start = policy.snapshot()
    found = []
    for width in (policy.vocabulary_size, 1):
        monkeypatch.setattr("trainer.policy.WHOLE_VOCABULARY", width)
        monkeypatch.setattr("trainer.policy.POSITIONS", 5)
        policy.restore(start)
        found.append((train(policy, samples, COMBINE), weights(policy)))
    (whole, there), (pieces, here) = found
    assert pieces == pytest.approx(whole, rel=1e-4, abs=1e-5)
    # AdamW divides by the gradient's own size: what is rounding in a gradient of nearly nothing is a step
    assert max(float((here[name] - there[name]).abs().max()) for name in there) < 2e-4


def test_metrics_of_a_step_in_parts_are_those_of_the_whole(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thanks have no teacher, wishes no advantage: each metric is a mean over its own tokens."""
    policy.learning_rate = 0.05
    samples = [
        wish(policy, "a"),
        rated(policy),
        wish(policy, "bb"),
        rated(policy, "more"),
        rated(policy, "many!"),
    ]
    plan = replace(COMBINE, objective=replace(CLIPPED, kl_coef=0.02))
    start, found = policy.snapshot(), []
    for cut in (len(samples), 2):
        monkeypatch.setattr(
            "trainer.step.micro_batches",
            lambda part, _, cut=cut: [list(p) for p in (part[:cut], part[cut:]) if p],
        )
        policy.restore(start)
        given = with_teacher(policy, samples, plan, _fail)
        old: dict[int, Any] = {}
        _backward(policy, given, plan, old)
        policy.drop_gradients()
        step_once(policy)  # away from the old log-probabilities, so that something is clipped
        found.append(_backward(policy, given, plan, old))
        policy.drop_gradients()
    whole, parts = found
    assert whole["clip_fraction"] > 0.0
    assert whole["live_tokens"] > whole["policy_tokens"] > whole["directive_tokens"] > 0.0
    assert parts == pytest.approx(whole, rel=1e-4, abs=1e-5)


def limit(policy: LocalPolicy, patch: pytest.MonkeyPatch, longest: int) -> None:
    """From now on a pass with a gradient over a longer sample is too much."""
    accumulate, hidden, size = policy.accumulate, policy.response_hidden, [0]

    def noted(prompts: Any, replies: Any, *rest: Any) -> Any:
        if torch.is_grad_enabled():
            size[0] = max(len(p) + len(r) for p, r in zip(prompts, replies, strict=True))
        return hidden(prompts, replies, *rest)

    def failing(loss: torch.Tensor) -> None:
        if size[0] > longest:
            raise MemoryError
        accumulate(loss)

    patch.setattr(policy, "response_hidden", noted)
    patch.setattr(policy, "accumulate", failing)


def test_a_sample_that_does_not_fit_is_left_out_of_every_step_and_named(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [wish(policy, "a", "Hi"), rated(policy, "b")]
    large = wish(policy, "large", "Hi there " * 40)
    expected = trained(policy, others, COMBINE)
    gone: list[tuple[str, TurnRefusal]] = []
    with monkeypatch.context() as patch:
        limit(policy, patch, 100)
        found = trained(policy, [large, *others], COMBINE, leave_out=lambda *given: gone.append(given))
    assert [(name, refusal.reason) for name, refusal in gone] == [("large", DropReason.OUT_OF_MEMORY)]
    assert distance(expected, found) < 0.05
    before = weights(policy)
    limit(policy, monkeypatch, 1)
    with pytest.raises(DoesNotFit):
        train(policy, [large, *others], COMBINE)
    assert float(moved(before, weights(policy)).abs().max()) == 0.0


# -- teachers


def test_a08_each_reply_is_judged_by_the_teacher_of_the_plan_and_each_anchor_by_the_base_model(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the loss reads, by an independent way: the logits of that model for that prompt."""
    for seed in range(3):
        step_once(policy, seed)
    taught = wish(policy)
    anchor = anchor_of(taught)
    plan = replace(COMBINE, passes=1, teacher=Weights.STUDENT, objective=replace(COMBINE.objective, top_k=7))

    def top(prompt: tuple[int, ...] | None, weights: Weights) -> torch.Tensor:
        with torch.no_grad():
            logits, _ = policy.response_logits([prompt or ()], [taught.completion_ids], weights)
        return torch.log_softmax(logits[0], dim=-1).topk(7).values

    wished, plain = top(taught.teacher_prompt_ids, Weights.STUDENT), top(taught.prompt_ids, Weights.BASE)
    assert float((wished - top(taught.teacher_prompt_ids, Weights.BASE)).abs().max()) > 1e-2
    assert float((plain - top(taught.prompt_ids, Weights.STUDENT)).abs().max()) > 1e-2
    monkeypatch.setattr("trainer.step.micro_batches", lambda samples, _: [list(samples)] if samples else [])
    with batches_seen(monkeypatch) as seen:
        train(policy, [taught, anchor], plan)
    (batch,) = seen
    assert batch.support_logprobs is not None
    order = [one.turn_id for one in spread([taught, anchor], 1_000, 0)[0]]
    for turn_id, expected in ((taught.turn_id, wished), (anchor.turn_id, plain)):
        found = batch.support_logprobs[order.index(turn_id)]
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("support", ["topk", "token"])
@pytest.mark.parametrize("fault", [math.nan, -math.inf])
def test_a06_a_teacher_without_numbers_drops_the_sample_and_never_becomes_zeros(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch, support: str, fault: float
) -> None:
    plan = replace(COMBINE, method="opd", opd_support=support)  # type: ignore[arg-type]  # parametrized literal
    healthy, sick = wish(policy, "healthy"), wish(policy, "sick", "Hello you")
    expected = trained(policy, [healthy], plan)
    scores = policy.teacher_scores

    def failing(prompts: Any, responses: Any, *rest: Any, **more: Any) -> list[TeacherScore]:
        found = scores(prompts, responses, *rest, **more)
        for prompt, score in zip(prompts, found, strict=True):
            if prompt == sick.teacher_prompt_ids:
                score.logprobs[1] = fault
        return found

    monkeypatch.setattr(policy, "teacher_scores", failing)
    gone: dict[str, TurnRefusal] = {}
    found = trained(policy, [healthy, sick], plan, leave_out=gone.__setitem__)
    assert {name: refusal.reason for name, refusal in gone.items()} == {"sick": DropReason.TEACHER_FAILED}
    assert distance(expected, found) < 0.05


def test_a_score_is_complete_with_a_number_for_each_token() -> None:
    whole = TeacherScore(
        logprobs=torch.tensor([-1.0, -2.0]),
        support_ids=torch.zeros(2, 2, dtype=torch.long),
        support_logprobs=torch.tensor([[-1.0, -math.inf], [-1.0, -2.0]]),
    )
    assert whole.is_complete(2)
    assert not whole.is_complete(3)
    assert replace(whole, support_ids=None, support_logprobs=None).is_complete(2)
    assert not replace(whole, support_logprobs=torch.tensor([[-1.0, math.nan], [-1.0, -2.0]])).is_complete(2)
    assert not replace(whole, support_logprobs=torch.tensor([[-1.0, -2.0]])).is_complete(2)


def test_on_tokens_each_gets_what_the_teacher_changes_about_it_and_no_anchor_does(
    policy: LocalPolicy,
) -> None:
    step_once(policy)
    sample = wish(policy)
    plan = replace(COMBINE, method="opd", opd_support="token", opd_clip=100.0)
    found = {one.turn_id: one for one in with_teacher(policy, [sample, anchor_of(sample)], plan, _fail)}
    completion = [sample.completion_ids]
    q, _ = policy.response_logprobs([sample.teacher_prompt_ids or ()], completion, Weights.BASE)
    o, _ = policy.response_logprobs([sample.prompt_ids], completion)
    taught, anchor = found[sample.turn_id], found["anchor"]
    assert taught.streams is not None
    assert taught.teacher is None
    assert list(taught.streams.advantages) == pytest.approx((q - o)[0].tolist(), abs=1e-4)
    assert anchor.streams is not None
    assert anchor.streams.directive_weight > 0
    assert anchor.teacher is not None


def _fail(turn_id: str, refusal: TurnRefusal) -> None:
    raise AssertionError(f"{turn_id} was left out: {refusal}")


# -- old log-probabilities


def test_old_log_probabilities_stay_those_of_the_first_pass(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_once(policy)
    sample = rated(policy, temperature=0.7)
    asked = [sample.prompt_ids], [sample.completion_ids]
    first, _ = policy.response_logprobs(*asked, temperature=0.7)
    with batches_seen(monkeypatch) as seen:
        train(policy, [sample], replace(COMBINE, passes=3))
    last, _ = policy.response_logprobs(*asked, temperature=0.7)
    assert len(seen) == 3
    assert float((last - first).abs().max()) > 1e-2
    for batch in seen:
        torch.testing.assert_close(batch.trainer_logprobs, first, atol=1e-5, rtol=0)
        # The weight for staleness is about who sampled the reply, not about how far this version has come.
        assert torch.equal(batch.sampling_logprobs, seen[0].sampling_logprobs)


def test_clipping_changes_the_weights_once_the_ratio_leaves_the_range(policy: LocalPolicy) -> None:
    policy.learning_rate = 0.05
    samples = [rated(policy), rated(policy, "blamed", -1)]
    plain, clipped = (replace(COMBINE, passes=4, objective=one) for one in (UNCLIPPED, CLIPPED))
    assert not torch.equal(trained(policy, samples, plain), trained(policy, samples, clipped))
    first, second = (replace(plan, passes=1) for plan in (plain, clipped))
    assert torch.equal(trained(policy, samples, first), trained(policy, samples, second))


def test_an_identical_model_has_a_ratio_of_one_and_no_staleness(policy: LocalPolicy) -> None:
    samples = [rated(policy, "raw", temperature=0.7), rated(policy, "plain"), wish(policy)]
    metrics = train(policy, samples, replace(COMBINE, passes=1))
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["staleness_mean"] == pytest.approx(1.0, abs=1e-5)


def test_the_distance_to_the_base_model_is_measured_against_the_base_model(policy: LocalPolicy) -> None:
    for seed in range(3):
        step_once(policy, seed)
    sample = rated(policy)
    asked = [sample.prompt_ids], [sample.completion_ids]
    own, mask = policy.response_logprobs(*asked)
    base, _ = policy.response_logprobs(*asked, Weights.BASE)
    expected = float(kl_k3(own[mask], base[mask]).mean())
    assert expected > 1e-3
    metrics = train(policy, [sample], replace(COMBINE, passes=1))
    assert metrics["kl_base"] == pytest.approx(expected, rel=1e-3)
    free = replace(COMBINE, objective=replace(COMBINE.objective, kl_coef=0.0))
    assert "kl_base" not in train(policy, [sample], free)  # no pass of the base model is paid for nothing
