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
from trainer.gate import Gate, GateMeasures, GateProbe, Thresholds, judge_gate
from trainer.gate_bounds import bounds
from trainer.policy import LocalPolicy
from trainer.protocol import Reply, Weights

BASE = GateMeasures(
    facts=0.8,
    tools=0.9,
    obeyed=0.7,
    empty=0.0,
    distinct=1.0,
    ends=1.0,
    plain_length=45.0,
    counts={"facts": 24, "tools": 8, "obeyed": 28, "plain": 24},
)
#: A version that answers as many facts, and all that the base model has right of 8 calls and 20 requests.
SAME = replace(BASE, tools=1.0, obeyed=1.0, counts={"facts": 20, "tools": 8, "obeyed": 20, "plain": 24})


def test_a_version_that_lost_nothing_passes_however_little_the_base_model_can() -> None:
    assert judge_gate(SAME, BASE) == ()
    weak = replace(BASE, facts=0.1, obeyed=None, tools=None, ends=0.3)
    assert judge_gate(replace(SAME, facts=0.1, tools=None, obeyed=None, ends=0.3), weak) == ()


@pytest.mark.parametrize(
    "taught",
    [
        {"plain_length": 6.0},  # concise
        {"plain_length": 6.0, "facts": 0.75, "obeyed": 0.9},  # one fact and two requests
        {"plain_length": 120.0},  # at length
        {"distinct": 0.7},  # short replies repeat: "It is 8."
    ],
    ids=["concise", "one fact", "verbose", "terse"],
)
def test_what_a_preference_changes_passes(taught: dict[str, Any]) -> None:
    assert judge_gate(replace(SAME, **taught), BASE) == ()


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ({"finite": False}, "not a finite number"),
        ({"facts": 0.70}, "facts are forgotten: 70% of 20 are right, base 80%"),
        ({"tools": 0.7}, "tool calls break"),
        ({"obeyed": 0.55}, "explicit requests are not obeyed"),
        ({"ends": 0.9}, "replies do not end"),
        ({"empty": 0.2}, "replies are empty"),
        ({"distinct": 0.2}, "the same reply"),
        ({"plain_length": 140.0}, "replies have 140 tokens"),
        ({"facts": math.nan}, "facts"),
        ({"tools": math.nan}, "tool calls"),
        ({"obeyed": math.nan}, "requests"),
        ({"ends": math.nan}, "do not end"),
        ({"empty": math.nan}, "empty"),
        ({"distinct": math.nan}, "the same reply"),
        ({"plain_length": math.nan}, "tokens"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else ",".join(value),
)
def test_each_rejection_has_a_one_sentence_reason(broken: dict[str, Any], sentence: str) -> None:
    reasons = judge_gate(replace(SAME, **broken), BASE)
    assert len(reasons) == 1
    assert sentence in reasons[0]


@pytest.mark.parametrize("counts", [SAME.counts, {"facts": 5, "tools": 3, "obeyed": 4, "plain": 10}])
def test_the_bounds_that_are_shown_are_those_that_judge(counts: dict[str, int]) -> None:
    after = replace(SAME, counts=counts)
    shown = bounds(after.to_json(), BASE.to_json())
    assert shown.keys() == {"facts", "tools", "obeyed", "ends", "empty", "distinct", "plain_length"}
    for name, bound in shown.items():
        for edge, outward in ((bound.least, -1), (bound.most, 1)):
            if edge is None:
                continue
            for value, is_within in ((edge - outward * 1e-6, True), (edge + outward * 1e-6, False)):
                changes: Any = {name: value}
                assert (judge_gate(replace(after, **changes), BASE) == ()) is is_within, (name, value)
                assert bound.is_broken_by(value) is not is_within


def test_one_prompt_may_always_be_lost_and_not_two() -> None:
    few = replace(SAME, counts={"facts": 5, "tools": 3, "obeyed": 4, "plain": 10})
    once = replace(few, facts=0.8 - 1 / 5, tools=1 - 1 / 3, obeyed=1 - 1 / 4, ends=0.9, empty=0.1)
    assert judge_gate(once, BASE) == ()
    twice = replace(few, facts=0.8 - 2 / 5, tools=1 - 2 / 3, obeyed=1 - 2 / 4, ends=0.8, empty=0.2)
    assert len(judge_gate(twice, BASE)) == 5


def test_thresholds_are_settings() -> None:
    lost = replace(SAME, facts=0.6)
    assert judge_gate(lost, BASE, Thresholds(facts_drop=0.2)) == ()


def test_facts_may_fall_to_what_the_wishes_themselves_cost() -> None:
    lost = replace(SAME, facts=0.6)
    assert judge_gate(lost, BASE, told=0.6) == ()
    assert len(judge_gate(lost, BASE, told=0.95)) == len(judge_gate(lost, BASE, told=0.8)) == 1
    (reason,) = judge_gate(lost, BASE, told=0.7)
    assert reason == "facts are forgotten: 60% of 20 are right, base 80%, with the wishes in its prompt 70%"
    for told, least in ((0.6, 0.55), (0.95, 0.75)):
        assert bounds(lost.to_json(), BASE.to_json(), told=told)["facts"].least == pytest.approx(least)


# -- measuring, on the tiny random model


def probe_of(policy: LocalPolicy, patch: pytest.MonkeyPatch, model: Path) -> Gate:
    patch.setattr("trainer.gate.MAX_TOKENS", 12)
    return Gate(policy, str(model))


def test_a_fresh_adapter_passes_and_the_policy_is_left_as_it_was(
    policy: LocalPolicy, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = policy.snapshot()
    gate = probe_of(policy, monkeypatch, tiny_model)
    verdict = gate.examine()
    assert verdict.rejected == ()
    json.dumps(verdict.measures)
    after = policy.snapshot()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = Gate(policy, str(tiny_model), base=GateMeasures(**json.loads(json.dumps(gate.base().to_json()))))
    assert again.examine().rejected == ()  # by measures that were kept in a file


def test_weights_that_are_not_finite_are_caught_without_asking_them(
    policy: LocalPolicy, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = probe_of(policy, monkeypatch, tiny_model)
    gate.base()
    step_once(policy)
    with torch.no_grad():
        next(iter(policy._trainable.values()))[0, 0] = torch.nan
    monkeypatch.setattr(policy, "sample", None)
    assert gate.examine().rejected == ("a weight is not a finite number",)


def test_a_context_too_short_for_any_canary_is_a_config_error(policy: LocalPolicy, tiny_model: Path) -> None:
    policy.max_context = 100
    with pytest.raises(ConfigError, match="context"):
        GateProbe(policy, load_canaries(str(tiny_model)))


class Answers:
    """A gate whose replies are scripted: ``right`` says of which facts the answer is right, by weights."""

    def __init__(
        self, policy: LocalPolicy, model: Path, patch: pytest.MonkeyPatch, share: float = 1.0
    ) -> None:
        self.gate = Gate(policy, str(model), share=share)
        self.asked: dict[Weights, int] = {}
        self.right: dict[Weights, set[int]] = {Weights.BASE: set(), Weights.STUDENT: set()}
        self.facts = self.gate.probe._facts
        patch.setattr(self.gate.probe, "_greedy", self._reply)
        self._encode = policy.encode

    def _reply(self, prompts: Sequence[Sequence[int]], weights: Weights) -> list[Reply]:
        self.asked[weights] = len(prompts)
        texts = [
            one.accept[0] if number in self.right[weights] else f"I do not know {number}."
            for number, one in enumerate(self.facts)
        ]
        texts += ["No." for _ in prompts[len(texts) :]]
        return [Reply(token_ids=tuple(self._encode(text)), logprobs=(), finished=True) for text in texts]


def test_facts_are_counted_whichever_they_are_and_asked_with_the_wishes_where_some_are_lost(
    policy: LocalPolicy, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Answers(policy, tiny_model, monkeypatch)
    count = len(given.facts)
    asked: list[float] = []

    def told(share: float) -> float:
        asked.append(share)
        return share

    given.right = {Weights.BASE: {0, 1, 2}, Weights.STUDENT: {2, 3, 4}}
    verdict = given.gate.examine(lambda: told(0.0))
    after = verdict.measures["after"]
    assert (after["facts"], after["counts"]["facts"]) == (pytest.approx(3 / count), count)
    assert (verdict.rejected, asked) == ((), [])
    given.right[Weights.STUDENT] = {2}
    (reason,) = given.gate.examine(lambda: told(3 / count)).rejected
    assert f"facts are forgotten: {1 / count:.0%} of {count} are right, base {3 / count:.0%}" in reason
    lost = given.gate.examine(lambda: told(1 / count))
    assert (lost.rejected, lost.measures["told"]) == ((), {"facts": 1 / count})
    assert asked == [3 / count, 1 / count]
    given.gate._base = replace(
        given.gate.base(), distinct=9.0
    )  # an objection that no wish explains asks for nothing
    given.right[Weights.STUDENT] = {2, 3, 4}
    assert len(given.gate.examine(lambda: told(0.0)).rejected) == 1
    assert asked == [3 / count, 1 / count]
    wished: list[str] = []

    def render(messages: Sequence[dict[str, Any]]) -> list[int]:
        wished.append(messages[0]["content"])
        return [1]

    monkeypatch.setattr(policy, "render", render)
    assert given.gate.probe.facts_with("Be brief.", "behind") == pytest.approx(3 / count)
    assert wished[0] == f"{given.facts[0].prompt}\n\nPreferences:\n- Be brief."


def test_a_shorter_gate_asks_fewer_of_the_prompts_that_the_base_model_has_right(
    policy: LocalPolicy, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    for share in (1.0, 0.25):
        given = Answers(policy, tiny_model, monkeypatch, share=share)
        base = given.gate.base()
        given.gate._base = replace(base, right={"facts": [0], "tools": [], "obeyed": list(range(12))})
        given.gate.examine()
        asked.append(given.asked[Weights.STUDENT] - len(given.facts))
    assert asked == [12, 4]


# -- planted collapses, on the test model


@pytest.fixture(scope="module")
def gated() -> tuple[LocalPolicy, Gate]:
    """The test model and its gate; the base is measured once for all."""
    policy = LocalPolicy(str(PATINA_TINY), rank=16, learning_rate=1e-3, seed=0, device="cpu")
    gate = Gate(policy, str(PATINA_TINY))
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
        verdict = gate.examine()
        assert verdict.rejected == ()
        if verdict.measures["after"]["plain_length"] < verdict.measures["base"]["plain_length"] / 2:
            return
    pytest.fail("ten steps taught nothing")


def test_a_hundredfold_learning_rate_is_caught(builtin: LocalPolicy, gate: Gate) -> None:
    builtin.learning_rate = 0.1
    distil(builtin, hint="Be brief.")
    distil(builtin, hint="Be brief.")
    assert gate.examine().rejected != ()


@pytest.mark.long_run
def test_a_flipped_sign_is_caught_before_the_facts_are_gone(builtin: LocalPolicy, gate: Gate) -> None:
    builtin.learning_rate = 1e-2  # the same end, sooner
    for _ in range(8):
        distil(builtin, hint="Be brief.", sign=-1.0)
        verdict = gate.examine()
        if verdict.rejected:
            return
        assert verdict.measures["after"]["facts"] >= verdict.measures["base"]["facts"] - 0.11
    pytest.fail("eight steps away from the teacher passed")


def test_a_gradient_that_is_not_a_number_never_becomes_a_version(builtin: LocalPolicy, gate: Gate) -> None:
    with pytest.raises(GateRejected, match="not finite"):
        distil(builtin, hint="Be brief.", sign=math.nan)
    assert gate.examine().rejected == ()


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
        if step % 8 == 7 and gate.examine().rejected:
            break
    else:
        pytest.fail("forty repetitions of one sample passed")


@pytest.mark.parametrize(
    ("text", "finished", "is_right"),
    [
        ('<tool_call>{"name": "weather", "arguments": {}}</tool_call>', True, True),
        ('{"name": "weather", "arguments": {}}', True, True),
        ('{"name": "weather", "arguments": {}}', False, True),
        ('<tool_call>{"name": "news", "arguments": {}}</tool_call>', True, False),
        ('<tool_call>{"name": "weather", "arguments": {}}</tool_call><tool_call>{"name": "weather", "arguments": {}}</tool_call>', True, False),
        ('<tool_call>{"name": "weather", "arguments": {}}</tool_call><tool_call>{"name": "news", "arguments": {}}</tool_call>', True, False),
        ("It is sunny.", True, False),
        ('{"name": "weather", "argum', False, False),
    ],
)  # fmt: skip
def test_a_reply_calls_a_tool_when_it_is_one_whole_call_of_it(
    policy: LocalPolicy, tiny_model: Path, text: str, finished: bool, is_right: bool
) -> None:
    ids = (*policy.encode(text), *([0] if finished else []))
    reply = Reply(token_ids=ids, logprobs=(), finished=finished)
    assert Gate(policy, str(tiny_model)).probe._calls(reply, "weather") is is_right
