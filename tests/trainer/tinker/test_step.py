"""Same samples, same steps: the local trainer and a Tinker server, from one LoRA initialisation, in float32."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from serving.tinker.version import FILE
from store.errors import AlignmentError, GateRejected
from store.manifest import ADAPTER_WEIGHTS
from store.values import EXPLICIT_SOURCE, ScoredTurn
from tests.tinker.running import TinkerServer
from tests.trainer.tinker.conftest import Make, settings_of
from tests.trainer.turns import anchor_of, sampled_turn, stated_in, wishing_turn
from trainer.batch import Sample, SampleKind
from trainer.plan import StepPlan
from trainer.policy import LocalPolicy
from trainer.protocol import Weights
from trainer.samples import ActiveWishes, prepare
from trainer.step import train as train_here
from trainer.tinker.policy import TinkerPolicy
from trainer.tinker.step import train as train_there

pytestmark = pytest.mark.slow

RATE = 1.0
WISHES = ActiveWishes(texts=("Please answer in capital letters.",))


@pytest.fixture
def here(tiny_model: Path) -> LocalPolicy:
    """Alpha 32 at rank 16, like Tinker's. Steps are nearly proportional to gradients."""
    policy = LocalPolicy(str(tiny_model), rank=16, learning_rate=RATE, seed=3, device="cpu")
    policy._optimizer.param_groups[0]["eps"] = 1.0
    return policy


def turns_of(policy: LocalPolicy) -> list[ScoredTurn]:
    """A wish, a complaint and thanks, the last two by thumbs."""
    explicit = {"source": EXPLICIT_SOURCE, "hint": None}
    return [
        wishing_turn(policy, "wish", "Hi there", WISHES.text),
        sampled_turn(policy, "complaint", "What is the capital of France?", verdict=explicit),
        sampled_turn(policy, "thanks", "Name a colour.", verdict={"value": 1, **explicit}),
    ]


def plan_of(server: TinkerServer, **given: Any) -> StepPlan:
    """Two passes of two steps each."""
    usual = {"step_samples": 2, "passes": 2, "top_k": 20}
    return StepPlan.of(settings_of(server, Path("/nowhere"), **{**usual, **given}))


def prepared(policy: Any, turns: Sequence[ScoredTurn], plan: StepPlan) -> list[Sample]:
    """The samples of the turns that the method reads, and an anchor where there is a wish."""
    read = [turn for turn in turns if plan.has_signal(turn)]
    ready = prepare(policy, plan, read, (), stated_in(WISHES, read) if plan.reads_wishes else ActiveWishes(),
                    recent_verdicts=[], version=0)  # fmt: skip
    assert not ready.refused
    return [*ready.samples, *(anchor_of(one) for one in ready.samples if one.kind is SampleKind.WISH)]


def weights_here(policy: LocalPolicy) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = safetensors.torch.load(policy.version_files()[ADAPTER_WEIGHTS])
    return found


def weights_there(policy: TinkerPolicy, server: TinkerServer) -> dict[str, torch.Tensor]:
    path = json.loads(policy.version_files("any@1")[FILE])["state_path"]
    folder = server._state.joinpath(*path.removeprefix("tinker://").replace(":", "-").split("/"))
    found: dict[str, torch.Tensor] = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    return found


def change(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([(after[name] - before[name]).flatten() for name in sorted(before)])


def alike(one: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """Cosine, and ratio of lengths."""
    return (
        float(torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=0)),
        float(other.norm() / one.norm()),
    )


METHODS: dict[str, dict[str, Any]] = {
    "rl": {"method": "rl"},
    "opd": {"method": "opd"},
    "opd, token": {"method": "opd", "opd_support": "token"},
    "combine": {"method": "combine", "w_rl": 0.5},
    "combine, token": {"method": "combine", "opd_support": "token"},
    "sdpo": {"method": "sdpo"},
}


@pytest.mark.parametrize(
    ("name", "carrier"),
    [
        *((name, "ppo") for name in METHODS),
        ("rl", "importance_sampling"),
        ("opd, token", "importance_sampling"),
    ],
)
def test_the_same_samples_make_the_same_steps(
    name: str, carrier: str, here: LocalPolicy, server: TinkerServer, make_policy: Make
) -> None:
    plan = plan_of(server, loss_fn=carrier, **METHODS[name])
    there = make_policy(server, learning_rate=RATE / 1.0000001)
    turns = turns_of(here)
    mine, theirs = prepared(here, turns, plan), prepared(there, turns, plan)
    assert mine == theirs
    kinds = {one.kind for one in mine}
    assert (SampleKind.VERDICT in kinds) is plan.reads_verdicts
    assert (SampleKind.WISH in kinds) is plan.reads_wishes
    prompts, replies = [s.prompt_ids for s in mine], [s.completion_ids for s in mine]
    own, mask = here.response_logprobs(prompts, replies)
    remote, _ = there.response_logprobs(prompts, replies)
    assert float((own - remote)[mask].abs().max()) < 1e-3

    begin, began = weights_here(here), weights_there(there, server)
    for key, value in begin.items():
        torch.testing.assert_close(began[key], value, msg=f"LoRA begins elsewhere at {key}")
    first = train_here(here, mine, plan, seed=5)
    there.begin("patina-tiny@1")
    second = train_there(there, theirs, plan, seed=5, carrier=carrier, eps=1.0)
    assert second.keys() == {*first, "pass_gap"}
    assert second["optimizer_steps"] == 2 * max(1, round(len(mine) / 2))
    for key in first:
        assert second[key] == pytest.approx(first[key], rel=2e-3, abs=1e-5), key
    assert second["pass_gap"] < 1e-3
    cosine, size = alike(change(begin, weights_here(here)), change(began, weights_there(there, server)))
    assert cosine > 0.9999
    assert size == pytest.approx(1.0, abs=2e-3)


def test_a_teacher_tells_its_likeliest_tokens_or_those_of_the_reply_alone(
    here: LocalPolicy, server: TinkerServer, poor_server: TinkerServer, make_policy: Make
) -> None:
    sample = prepared(here, turns_of(here)[:1], plan_of(server, method="opd"))[0]
    asked = [sample.teacher_prompt_ids or ()], [sample.completion_ids], Weights.BASE
    (mine,) = here.teacher_scores(*asked, temperature=[1.0], top_k=7)
    (theirs,) = make_policy(server).teacher_scores(*asked, temperature=[1.0], top_k=7)
    (poor,) = make_policy(poor_server).teacher_scores(*asked, temperature=[1.0], top_k=7)
    torch.testing.assert_close(theirs.logprobs, mine.logprobs, atol=1e-3, rtol=0.0)
    torch.testing.assert_close(poor.logprobs, mine.logprobs, atol=1e-3, rtol=0.0)
    assert theirs.support_ids is not None
    assert theirs.support_ids.shape == (len(sample.completion_ids), 7)
    torch.testing.assert_close(theirs.support_ids, mine.support_ids)
    torch.testing.assert_close(theirs.support_logprobs, mine.support_logprobs, atol=1e-3, rtol=0.0)
    assert (poor.support_ids, poor.support_logprobs) == (None, None)
    with pytest.raises(AlignmentError, match="temperature 1 only"):
        make_policy(server).teacher_scores(*asked, temperature=[0.7], top_k=7)


def test_without_the_likeliest_tokens_the_directive_term_is_on_the_sampled_ones(
    here: LocalPolicy, poor_server: TinkerServer, make_policy: Make
) -> None:
    there = make_policy(poor_server, learning_rate=RATE / 1.0000001)
    assert not there.abilities.support
    plan = plan_of(poor_server, method="opd", step_samples=4)
    samples = [one for one in prepared(here, turns_of(here), plan) if one.kind is SampleKind.WISH]
    assert [s.streams and s.streams.directive_weight for s in samples] == [1.0]
    begin, began = weights_here(here), weights_there(there, poor_server)
    train_here(here, samples, replace(plan, opd_support="token"))
    there.begin("patina-tiny@1")
    train_there(there, samples, plan, eps=1.0)
    cosine, size = alike(change(begin, weights_here(here)), change(began, weights_there(there, poor_server)))
    assert cosine > 0.9999
    assert size == pytest.approx(1.0, abs=2e-3)


def test_an_anchor_on_single_tokens_asks_for_nothing_where_the_policy_is_the_base_model(
    here: LocalPolicy, poor_server: TinkerServer, make_policy: Make
) -> None:
    there = make_policy(poor_server, learning_rate=1e-3)
    plan = plan_of(poor_server, method="opd", passes=1)
    anchors = [one for one in prepared(here, turns_of(here), plan) if one.kind is SampleKind.ANCHOR]
    there.begin("patina-tiny@1")
    metrics = train_there(there, anchors, plan)
    assert metrics["gradient_norm"] == pytest.approx(0.0, abs=1e-3)
    assert metrics["optimizer_steps"] == 1


def test_servers_that_divide_get_their_divisors_beforehand(
    here: LocalPolicy, poor_server: TinkerServer, make_policy: Make
) -> None:
    """A sequence's loss is divided by its positions, the step by its sequences: here both are multiplied in, and not divided."""
    there = make_policy(poor_server, learning_rate=1e-3, tinker_gradients="means")
    assert there.abilities.means
    once = plan_of(poor_server, method="rl", passes=1)
    samples = prepared(there, turns_of(here)[1:2], once)
    there.begin("patina-tiny@1")
    norm = train_there(there, samples, once)["gradient_norm"]
    (sample,) = samples
    positions = len(sample.prompt_ids) + len(sample.completion_ids) - 1
    there.give_up()
    there.abilities = replace(there.abilities, means=False)
    there.begin("patina-tiny@1")
    plain = train_there(there, samples, once)["gradient_norm"]
    assert norm == pytest.approx(plain * positions, rel=1e-3)


def test_numbers_that_are_none_end_the_step(
    here: LocalPolicy, server: TinkerServer, make_policy: Make
) -> None:
    there = make_policy(server, learning_rate=0.99)
    plan = plan_of(server, method="rl")
    samples = prepared(there, turns_of(here)[1:2], plan)
    there.begin("patina-tiny@1")
    with pytest.raises((GateRejected, ValueError), match=r"finite|missing"):
        train_there(there, [replace(samples[0], weight=math.inf)], plan)


def test_a_temperature_that_no_prompt_is_scored_at_is_refused(
    server: TinkerServer, make_policy: Make
) -> None:
    there = make_policy(server)
    with pytest.raises(AlignmentError, match="temperature 1 only"):
        there.response_logprobs([[5, 6]], [[7]], temperature=0.7)
