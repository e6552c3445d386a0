"""The gate: changes that a preference explains pass, other changes do not."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from store.errors import ConfigError, GateRejected
from tests.fixtures import PATINA_TINY
from tests.trainer.conftest import step_once
from trainer.canaries import load_canaries
from trainer.gate import Gate, GateMeasures, GateProbe, Thresholds, has_lost_nothing, judge_gate
from trainer.gate_bounds import bounds
from trainer.policy import LocalPolicy
from trainer.protocol import Reply, Weights

BASE = GateMeasures(
    facts=0.95,
    tools=1.0,
    obeyed=0.9,
    empty=0.0,
    distinct=1.0,
    ends=1.0,
    plain_length=45.0,
    length=30.0,
    entropy=0.5,
    kl=0.0,
    kl_by_style={"verbose": 0.0, "english": 0.0},
    counts={"facts": 40, "tools": 14, "obeyed": 20, "replies": 80},
)


def test_the_base_model_passes_its_own_gate() -> None:
    assert judge_gate(None, BASE, BASE) == ()
    assert has_lost_nothing(BASE, BASE)


@pytest.mark.parametrize(
    ("change", "is_intact"),
    [
        ({"facts": 0.96, "obeyed": 1.0, "entropy": 0.9}, True),
        ({"tools": None}, True),
        ({"facts": 0.93}, False),
        ({"tools": 0.9}, False),
        ({"obeyed": 0.85}, False),
        ({"obeyed": None}, False),  # nothing checks what anchors hold
        ({"finite": False}, False),
    ],
    ids=str,
)
def test_one_fact_call_or_instruction_less_is_a_loss(change: dict[str, Any], is_intact: bool) -> None:
    assert has_lost_nothing(replace(BASE, **change), BASE) is is_intact


@pytest.mark.parametrize(
    "taught",
    [
        {"plain_length": 8.0, "length": 19.0, "entropy": 0.55, "kl": 0.1},  # concise: 45 -> 8 tokens
        {"plain_length": 6.0, "length": BASE.length * 0.31},  # the same, asked for four times over
        {"plain_length": 8.0, "length": 16.0, "facts": 0.92, "obeyed": 0.65, "kl": 0.15},  # JSON, half-way
        {"plain_length": 60.0, "facts": 0.9},  # Spanish has longer words
        {"plain_length": 120.0, "length": 50.0},  # at length
        {"distinct": 0.7},  # short replies repeat: "It is 8."
    ],
    ids=["concise", "terse wishes", "json", "spanish", "verbose", "terse"],
)
def test_what_a_preference_changes_passes(taught: dict[str, Any]) -> None:
    assert judge_gate(BASE, replace(BASE, **taught), BASE) == ()


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ({"finite": False}, "not a finite number"),
        ({"facts": 0.80}, "facts are forgotten: 80%, base 95%"),
        ({"tools": 0.7}, "tool calls break"),
        ({"obeyed": 0.55}, "explicit wishes are not followed"),
        ({"ends": 0.9}, "replies do not end"),
        ({"empty": 0.2}, "replies are empty"),
        ({"distinct": 0.2}, "the same reply"),
        ({"entropy": 0.1}, "entropy"),
        ({"entropy": 1.5}, "entropy"),
        ({"length": 5.0}, "explicit wishes have 5 tokens"),
        ({"length": 95.0}, "explicit wishes have 95 tokens"),
        ({"plain_length": 140.0}, "replies have 140 tokens"),
        ({"kl": 0.7}, "0.70 nat/token away"),
        ({"kl_by_style": {"verbose": 2.0, "english": 0.0}}, "'verbose'"),
        ({"kl": math.nan}, "nat/token away"),
        ({"entropy": math.nan}, "entropy"),
        ({"facts": math.nan}, "facts"),
        ({"kl_by_style": {"verbose": 0.1, "english": math.nan}}, "'english'"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else ",".join(value),
)
def test_each_rejection_has_a_one_sentence_reason(broken: dict[str, Any], sentence: str) -> None:
    reasons = judge_gate(None, replace(BASE, **broken), BASE)
    assert len(reasons) == 1
    assert sentence in reasons[0]


@pytest.mark.parametrize("counts", [BASE.counts, {"facts": 5, "tools": 3, "obeyed": 4, "replies": 10}])
def test_the_bounds_that_are_shown_are_those_that_judge(counts: dict[str, int]) -> None:
    base = replace(BASE, counts=counts)
    shown = bounds(base.to_json(), base.to_json())
    assert shown.keys() == {
        "facts", "tools", "obeyed", "ends", "empty", "distinct", "entropy", "length", "plain_length", "kl", "kl_worst",
    }  # fmt: skip
    for name, bound in shown.items():
        for edge, outward in ((bound.least, -1), (bound.most, 1)):
            if edge is None:
                continue
            for value, is_within in ((edge - outward * 1e-6, True), (edge + outward * 1e-6, False)):
                changes: Any = {"kl_by_style": {"verbose": value}} if name == "kl_worst" else {name: value}
                assert (judge_gate(None, replace(base, **changes), base) == ()) is is_within, (name, value)
                assert bound.is_broken_by(value) is not is_within


def test_one_prompt_may_always_flip() -> None:
    few = replace(BASE, counts={"facts": 5, "tools": 3, "obeyed": 4, "replies": 10})
    flipped = replace(few, facts=0.95 - 1 / 5, tools=1 - 1 / 3, obeyed=0.9 - 1 / 4, ends=0.9)
    assert judge_gate(None, flipped, few) == ()
    twice = replace(few, facts=0.95 - 2 / 5, tools=1 - 2 / 3, obeyed=0.9 - 2 / 4, ends=0.8)
    assert len(judge_gate(None, twice, few)) == 4


def test_a_model_that_could_not_do_it_before_is_not_asked_for_it() -> None:
    weak = replace(BASE, facts=0.1, tools=None, obeyed=None, ends=0.3)
    assert judge_gate(None, weak, weak) == ()


def test_a_nearly_certain_model_has_no_entropy_ratio_to_speak_of() -> None:
    certain = replace(BASE, entropy=0.01)
    assert judge_gate(None, replace(certain, entropy=0.03), certain) == ()
    assert judge_gate(None, replace(certain, entropy=0.2), certain) != ()


def test_who_begins_beyond_a_bound_may_come_back_but_go_no_further() -> None:
    outside = replace(BASE, facts=0.7)
    assert judge_gate(outside, replace(BASE, facts=0.75), BASE) == ()
    assert judge_gate(outside, outside, BASE) == ()
    assert judge_gate(outside, replace(BASE, facts=0.65), BASE) != ()
    assert judge_gate(None, replace(BASE, facts=0.75), BASE) != ()
    # and it is no excuse for anything else
    assert judge_gate(outside, replace(BASE, facts=0.75, kl=0.9), BASE) != ()
    # nor is a previous NaN one for another
    assert judge_gate(replace(BASE, kl=math.nan), replace(BASE, kl=math.nan), BASE) != ()


def test_thresholds_are_settings() -> None:
    assert judge_gate(None, replace(BASE, kl=0.7), BASE, Thresholds(kl=1.0)) == ()


# -- measuring, on the tiny random model


def test_the_probe_measures_the_base_as_itself(policy: LocalPolicy, tiny_model: Path) -> None:
    base = Gate(policy, str(tiny_model), max_tokens=12).base()
    assert base.kl == 0.0
    assert set(base.kl_by_style.values()) == {0.0}
    assert base.counts["facts"] == 16
    assert base.finite
    assert base.length <= 12
    assert base.entropy > 1.0  # it has learnt nothing


def test_a_fresh_adapter_passes_and_the_policy_is_left_as_it_was(
    policy: LocalPolicy, tiny_model: Path
) -> None:
    before = policy.snapshot()
    verdict = Gate(policy, str(tiny_model), max_tokens=12).examine(policy)
    assert verdict.rejected == ()
    assert verdict.is_intact
    json.dumps(verdict.measures)
    after = policy.snapshot()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_weights_that_are_not_finite_are_caught_without_asking_them(
    policy: LocalPolicy, tiny_model: Path
) -> None:
    gate = Gate(policy, str(tiny_model), max_tokens=12)
    step_once(policy)
    with torch.no_grad():
        next(iter(policy._trainable.values()))[0, 0] = torch.nan
    verdict = gate.examine(policy)
    assert verdict.rejected == ("a weight is not a finite number",)
    assert not verdict.is_intact


def test_a_rejected_candidate_is_compared_with_where_it_came_from_and_stays_in_place(
    policy: LocalPolicy, tiny_model: Path
) -> None:
    gate = Gate(
        policy,
        str(tiny_model),
        max_tokens=12,
        thresholds=Thresholds(kl=1e-6, kl_worst=1e9, entropy_low=0.0, entropy_high=1e9),
    )
    for seed in range(5):
        step_once(policy, seed)
    before = policy.snapshot()
    assert gate.examine(policy, before=before).rejected == ()  # beyond the bound, as it was
    assert gate.examine(policy).rejected != ()
    for seed in range(5, 12):
        step_once(policy, seed)
    candidate = policy.snapshot()
    verdict = gate.examine(policy, before=before)
    assert verdict.rejected != ()
    assert verdict.measures["before"]["kl"] < verdict.measures["after"]["kl"]
    after = policy.snapshot()
    assert all(torch.equal(candidate[name], after[name]) for name in candidate)


def test_ended_replies_are_counted_over_the_same_prompts_for_base_and_candidate(
    policy: LocalPolicy, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base model, too, has facts whose replies do not end; a candidate equal to it must not look worse."""
    probe = GateProbe(policy, load_canaries(str(tiny_model)), max_tokens=12)
    greedy, facts = probe._greedy, len(probe._fact_ids)

    def ending_only_for_anchors(prompts: Sequence[Sequence[int]], weights: Weights) -> list[Reply]:
        return [
            replace(reply, finished=list(ids) not in probe._fact_ids)
            for ids, reply in zip(prompts, greedy(prompts, weights), strict=True)
        ]

    monkeypatch.setattr(probe, "_greedy", ending_only_for_anchors)
    base = probe.measure(Weights.BASE)
    assert base.ends == pytest.approx(1 - facts / base.counts["replies"])
    assert base.counts["replies"] == facts + len(probe._tool_ids) + len(probe._anchor_ids)
    assert probe.measure(Weights.STUDENT).ends == base.ends


def test_a_context_too_short_for_any_canary_is_a_config_error(policy: LocalPolicy, tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="context"):
        GateProbe(policy, load_canaries(str(tiny_model)), max_tokens=2040)


# -- planted collapses, on the test model


@pytest.fixture(scope="module")
def gated() -> tuple[LocalPolicy, Gate]:
    """The test model and its gate; the base is measured once for all."""
    policy = LocalPolicy(
        str(PATINA_TINY), rank=16, learning_rate=1e-3, seed=0, device="cpu"
    )
    gate = Gate(policy, str(PATINA_TINY), max_tokens=48)
    gate.base()
    return policy, gate


@pytest.fixture
def builtin(gated: tuple[LocalPolicy, Gate]) -> LocalPolicy:
    policy, _ = gated
    policy.reset()
    policy.learning_rate = 1e-3
    return policy


@pytest.fixture
def gate(gated: tuple[LocalPolicy, Gate]) -> Gate:
    return gated[1]


QUESTIONS = (
    "What is the capital of Peru?",
    "What is 3 plus 4?",
    "What is the opposite of hot?",
    "Tell me a joke.",
)


def distil(
    policy: LocalPolicy, *, hint: str, sign: float = 1.0, questions: tuple[str, ...] = QUESTIONS
) -> None:
    """One step towards (or, with sign -1, away from) the base model with a wish in its prompt."""
    plain = [policy.render([{"role": "user", "content": question}]) for question in questions]
    hinted = [policy.render([{"role": "user", "content": f"{q} {hint}"}]) for q in questions]
    replies = [r.token_ids for r in policy.sample(plain, max_tokens=48, seed=1)]
    with torch.no_grad():
        teacher, mask = policy.response_logits(hinted, replies, Weights.BASE)
    student, _ = policy.response_logits(plain, replies)
    target = torch.log_softmax(teacher[mask], dim=-1)
    loss = torch.nn.functional.kl_div(
        torch.log_softmax(student[mask], -1), target, log_target=True, reduction="batchmean"
    )
    torch.autograd.backward(sign * loss)
    policy.apply_gradients()


@pytest.mark.long_run
def test_a_preference_passes_on_the_whole_way_to_replies_of_half_the_length(
    builtin: LocalPolicy, gate: Gate
) -> None:
    """Also while the entropy along its own replies doubles: what falls away are the tokens that were certain."""
    for _ in range(10):
        distil(builtin, hint="Be brief.")
        verdict = gate.examine(builtin)
        assert verdict.rejected == ()
        if verdict.measures["after"]["plain_length"] < verdict.measures["base"]["plain_length"] / 2:
            return
    pytest.fail("ten steps taught nothing")


def test_a_hundredfold_learning_rate_is_caught(builtin: LocalPolicy, gate: Gate) -> None:
    builtin.learning_rate = 0.1
    distil(builtin, hint="Be brief.")
    distil(builtin, hint="Be brief.")
    assert gate.examine(builtin).rejected != ()


@pytest.mark.long_run
def test_a_flipped_sign_is_caught_before_the_facts_are_gone(builtin: LocalPolicy, gate: Gate) -> None:
    builtin.learning_rate = 1e-2  # the same end, sooner
    for _ in range(8):
        distil(builtin, hint="Be brief.", sign=-1.0)
        verdict = gate.examine(builtin)
        if verdict.rejected:
            return
        assert verdict.measures["after"]["facts"] >= verdict.measures["base"]["facts"] - 0.11
    pytest.fail("eight steps away from the teacher passed")


def test_a_gradient_that_is_not_a_number_never_becomes_a_version(builtin: LocalPolicy, gate: Gate) -> None:
    with pytest.raises(GateRejected, match="not finite"):
        distil(builtin, hint="Be brief.", sign=math.nan)
    assert gate.examine(builtin).rejected == ()


@pytest.mark.long_run
def test_one_sample_repeated_until_it_is_all_the_policy_says_is_caught(
    builtin: LocalPolicy, gate: Gate
) -> None:
    prompt = builtin.render([{"role": "user", "content": QUESTIONS[0]}])
    reply = [*builtin.encode("The capital of Peru is Lima."), builtin.tokenizer.eos_token_id]
    for step in range(40):
        logits, _ = builtin.response_logits([prompt], [reply])
        torch.autograd.backward(torch.nn.functional.cross_entropy(logits[0], torch.tensor(reply)))
        builtin.apply_gradients()
        if step % 8 == 7 and gate.examine(builtin).rejected:
            break
    else:
        pytest.fail("forty repetitions of one sample passed")
