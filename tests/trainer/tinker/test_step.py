"""Same samples, same step: the local trainer and a Tinker server, from one LoRA initialisation, in float32."""

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
from trainer.anchors import Anchors

from serving.tinker.version import FILE
from store.errors import AlignmentError, GateRejected
from store.manifest import ADAPTER_WEIGHTS
from store.values import ScoredTurn
from tests.tinker.running import TinkerServer
from tests.trainer.plans import bare_plan
from tests.trainer.tinker.conftest import Make
from tests.trainer.turns import sampled_turn
from trainer.batch import Sample
from trainer.losses import NO_RESIDUAL, Residual
from trainer.objective import Objective
from trainer.policy import LocalPolicy
from trainer.step import StepPlan, prepare
from trainer.step import train as train_here
from trainer.tinker.policy import TinkerPolicy
from trainer.tinker.step import train as train_there

pytestmark = pytest.mark.slow

PLAN = bare_plan(objective=Objective(alpha=0.5, top_k=20))
QUESTIONS = ("Hi there", "What is the capital of France?", "Name a colour.")
RATE = 1.0


@pytest.fixture
def here(tiny_model: Path) -> LocalPolicy:
    """Alpha 32 at rank 16, like Tinker's. Steps are nearly proportional to gradients."""
    policy = LocalPolicy(
        str(tiny_model), rank=16, learning_rate=RATE, seed=3, beta1=0.9, update_clip=0.0, device="cpu"
    )
    policy._optimizer.param_groups[0]["eps"] = 1.0
    return policy


def turns_of(policy: LocalPolicy) -> list[ScoredTurn]:
    """Two complaints with a hint, and thanks."""
    first = [sampled_turn(policy, f"t{i}", question) for i, question in enumerate(QUESTIONS[:2])]
    return [*first, sampled_turn(policy, "thanks", QUESTIONS[2], verdict={"value": 1, "hint": None})]


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


def prepared(
    policy: Any, turns: Sequence[ScoredTurn], plan: StepPlan, anchors: Sequence[Sample] = ()
) -> list[Sample]:
    ready = prepare(policy, turns, plan, recent_verdicts=[], version=0)
    assert not ready.refused
    return [*ready.samples, *anchors]


METHODS = {
    "rl": {"method": "rl"},
    "opd": {"method": "opd"},
    "opd, token": {"method": "opd", "opd_support": "token"},
    "combine": {"method": "combine"},
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
def test_the_same_samples_make_the_same_step(
    name: str, carrier: str, here: LocalPolicy, server: TinkerServer, make_policy: Make
) -> None:
    plan = replace(PLAN, **METHODS[name], steps_per_batch=1)  # type: ignore[arg-type]  # parametrized
    there = make_policy(server, learning_rate=RATE / 1.0000001)
    turns = turns_of(here) if plan.method in ("rl", "combine") else turns_of(here)[:2]
    anchors = Anchors(here, here.name, seed=1).draw(2, 0)
    mine, theirs = prepared(here, turns, plan, anchors), prepared(there, turns, plan, anchors)

    for a, b in zip(mine, theirs, strict=True):
        assert a.streams is not None
        assert b.streams is not None
        assert (a.prompt_ids, a.completion_ids) == (b.prompt_ids, b.completion_ids)
        assert a.teacher_prompt_ids == b.teacher_prompt_ids
        assert a.streams.advantages == pytest.approx(b.streams.advantages, abs=1e-3)
        assert [x > 0 for x in a.streams.advantages] == [x > 0 for x in b.streams.advantages]
        assert a.streams.directive_weight == b.streams.directive_weight
    prompts, replies = [s.prompt_ids for s in mine], [s.completion_ids for s in mine]
    own, mask = here.response_logprobs(prompts, replies)
    remote, _ = there.response_logprobs(prompts, replies)
    assert float((own - remote)[mask].abs().max()) < 1e-3

    begin, began = weights_here(here), weights_there(there, server)
    for key, value in begin.items():
        torch.testing.assert_close(began[key], value, msg=f"LoRA begins elsewhere at {key}")
    first = train_here(here, mine, plan)
    there.begin("patina-tiny@1")
    second = train_there(there, theirs, plan, carrier=carrier, eps=1.0)
    for key in ("loss", "policy_loss", "directive_loss", "ratio_mean", "kl_step", "kl_to_base"):
        assert (key in first) == (key in second)
        assert second.get(key, 0.0) == pytest.approx(first.get(key, 0.0), rel=2e-3, abs=1e-5), key
    # The local trainer looks again at what is likely now; here the support is that of the step's beginning.
    assert second["loss_after"] == pytest.approx(first["loss_after"], rel=2e-2)
    assert second["gradient_norm"] == pytest.approx(first["gradient_norm"], rel=1e-3)
    assert second["pass_gap"] < 1e-3
    cosine, size = alike(change(begin, weights_here(here)), change(began, weights_there(there, server)))
    assert cosine > 0.9999
    assert size == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("residual", [Residual.even(0.5), Residual(on_hint=0.5, off_hint=1.0)])
def test_a_teacher_that_remembers_is_nearly_the_same_on_bins(
    here: LocalPolicy, server: TinkerServer, make_policy: Make, residual: Residual
) -> None:
    """What is not among the likeliest tokens is one bin: the carried teacher is the local one up to what differs within it."""
    plan = replace(PLAN, residual=residual, objective=Objective(alpha=1.0, top_k=300), steps_per_batch=1)
    here.learning_rate = 0.2
    there = make_policy(server, learning_rate=0.2, top_k=300)
    turns = turns_of(here)[:2]
    learnt = replace(plan, residual=NO_RESIDUAL)
    train_here(here, prepared(here, turns, learnt), learnt)
    there.begin("patina-tiny@1")
    train_there(there, prepared(there, turns, learnt), learnt, eps=1.0)
    begin, began = weights_here(here), weights_there(there, server)
    mine, theirs = prepared(here, turns, plan), prepared(there, turns, plan)
    first = train_here(here, mine, plan)
    there.begin("patina-tiny@2")
    second = train_there(there, theirs, plan, eps=1.0)
    assert second["directive_loss"] == pytest.approx(first["directive_loss"], rel=0.05)
    cosine, size = alike(change(begin, weights_here(here)), change(began, weights_there(there, server)))
    assert cosine > 0.995
    assert size == pytest.approx(1.0, abs=0.05)


def test_without_the_likeliest_tokens_the_directive_term_is_on_the_sampled_ones(
    here: LocalPolicy, poor_server: TinkerServer, make_policy: Make
) -> None:
    there = make_policy(poor_server, learning_rate=RATE / 1.0000001)
    assert there.support == "token"
    turns = turns_of(here)[:2]
    on_tokens = replace(PLAN, opd_support="token", steps_per_batch=1)
    mine = prepared(here, turns, on_tokens)
    theirs = prepared(there, turns, replace(PLAN, steps_per_batch=1))
    assert [s.streams and s.streams.directive_weight for s in theirs] == [1.0, 1.0]
    begin, began = weights_here(here), weights_there(there, poor_server)
    train_here(here, mine, on_tokens)
    there.begin("patina-tiny@1")
    train_there(there, theirs, replace(PLAN, steps_per_batch=1), eps=1.0)
    cosine, size = alike(change(begin, weights_here(here)), change(began, weights_there(there, poor_server)))
    assert cosine > 0.9999
    assert size == pytest.approx(1.0, abs=2e-3)


def test_the_trust_region_stops_the_inner_steps(
    here: LocalPolicy, server: TinkerServer, make_policy: Make
) -> None:
    there = make_policy(server, learning_rate=1e-3)
    plan = replace(PLAN, steps_per_batch=50, max_kl_step=1e-9)
    there.begin("patina-tiny@1")
    metrics = train_there(there, prepared(there, turns_of(here), plan), plan)
    assert metrics["optimizer_steps"] == 1
    assert metrics["kl_step"] > 1e-9


def test_servers_that_divide_get_their_divisors_beforehand(
    here: LocalPolicy, poor_server: TinkerServer, make_policy: Make
) -> None:
    """A sequence's loss is divided by its positions, the step by its sequences: here both are multiplied in, and not divided."""
    there = make_policy(poor_server, learning_rate=1e-3, tinker_gradients="means")
    assert there.abilities.means
    samples = prepared(there, turns_of(here)[:1], PLAN)
    there.begin("patina-tiny@1")
    once = replace(PLAN, steps_per_batch=1)
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
    samples = prepared(there, turns_of(here)[:1], PLAN)
    teacher = replace(samples[0], weight=math.inf)
    there.begin("patina-tiny@1")
    with pytest.raises((GateRejected, ValueError), match=r"finite|missing"):
        train_there(there, [teacher], PLAN)


def test_a_temperature_that_no_prompt_is_scored_at_is_refused(
    server: TinkerServer, make_policy: Make
) -> None:
    there = make_policy(server)
    with pytest.raises(AlignmentError, match="temperature 1 only"):
        there.response_logprobs([[5, 6]], [[7]], temperature=0.7)
