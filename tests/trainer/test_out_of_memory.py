"""Out of memory: work goes on in halves, and what does not fit alone is named."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from store.lifecycle import DropReason
from tests.trainer.plans import bare_plan
from tests.trainer.test_step import COMBINE, samples_of, weights
from tests.trainer.turns import sampled_turn, wishing_turn
from trainer.batch import Sample
from trainer.out_of_memory import DoesNotFit, attempt, in_halves, is_out_of_memory
from trainer.policy import LocalPolicy
from trainer.protocol import TurnRefusal
from trainer.step import train

pytestmark = pytest.mark.slow

PLANTED = "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"


def test_out_of_memory_errors_of_torch_are_recognised() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    assert not is_out_of_memory(ValueError("not enough memory"))
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        torch.empty(1 << 60)
    assert attempt(lambda: torch.empty(1 << 60)) == (None, False)
    with pytest.raises(RuntimeError, match="shapes differ"):
        attempt(lambda: raising("shapes differ"))


def raising(message: str) -> None:
    raise RuntimeError(message)


def test_items_come_back_in_their_order_whatever_they_were_split_into() -> None:
    def at_most_three(items: Sequence[int]) -> list[int]:
        if len(items) > 3:
            raising(PLANTED)
        return [2 * item for item in items]

    assert in_halves(range(10), at_most_three) == [2 * item for item in range(10)]


def test_the_item_that_does_not_fit_is_named() -> None:
    def refusing(items: Sequence[str]) -> list[str]:
        if "large" in items:
            raising(PLANTED)
        return list(items)

    with pytest.raises(DoesNotFit) as caught:
        in_halves(["a", "b", "c", "large", "d"], refusing)
    assert caught.value.index == 3


def limit_tokens(policy: LocalPolicy, patch: pytest.MonkeyPatch, most: int) -> list[int]:
    """From now on a pass with a gradient of more padded tokens fails, after its graph is there; returns the sizes that fail."""
    accumulate, pack = policy.accumulate, policy._pack
    size = [0]
    failed: list[int] = []

    def packed(*given: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        found = pack(*given)
        if torch.is_grad_enabled():
            size[0] = found[0].numel()
        return found

    def failing(loss: torch.Tensor) -> None:
        if size[0] > most:
            failed.append(size[0])
            raising(PLANTED)
        accumulate(loss)

    patch.setattr(policy, "_pack", packed)
    patch.setattr(policy, "accumulate", failing)
    return failed


def by_length(policy: LocalPolicy, *texts: str) -> list[Sample]:
    turns = [sampled_turn(policy, f"t{i}", text) for i, text in enumerate(texts)]
    return sorted(samples_of(policy, *turns), key=lambda sample: sample.tokens)


def moved(policy: LocalPolicy, start: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([(value - start[name]).flatten() for name, value in weights(policy).items()])


def test_a_split_part_moves_the_weights_as_the_whole_does(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = by_length(policy, "Hi", "Hi there", "Hi there you", "Hi")
    longest = max(len(sample.prompt_ids) + len(sample.completion_ids) for sample in samples)
    begin, start = policy.snapshot(), weights(policy)
    first = train(policy, samples, COMBINE)
    whole = moved(policy, start)
    policy.restore(begin)
    dropped: dict[str, TurnRefusal] = {}
    with monkeypatch.context() as patch:
        failed = limit_tokens(policy, patch, 2 * longest)
        second = train(policy, samples, COMBINE, leave_out=dropped.__setitem__)
    assert failed  # it was split
    assert dropped == {}
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-4)
    assert float((moved(policy, start) - whole).norm() / whole.norm()) < 0.05


def test_a_sample_that_does_not_fit_alone_is_left_out_and_the_others_train_as_without_it(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    *others, large = by_length(policy, "Hi", "Hello", "Hi there " * 60)
    begin, start = policy.snapshot(), weights(policy)
    train(policy, others, COMBINE, seed=7)
    without = moved(policy, start)
    policy.restore(begin)
    dropped: dict[str, TurnRefusal] = {}
    with monkeypatch.context() as patch:
        limit_tokens(policy, patch, 2 * others[-1].tokens)
        train(policy, [large, *others], COMBINE, seed=7, leave_out=dropped.__setitem__)
    assert {name: refusal.reason for name, refusal in dropped.items()} == {
        large.turn_id: DropReason.OUT_OF_MEMORY
    }
    assert float((moved(policy, start) - without).norm() / without.norm()) < 0.05


def test_a_batch_of_which_nothing_fits_raises_and_moves_nothing(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = by_length(policy, "Hi", "Hello")
    start = weights(policy)
    limit_tokens(policy, monkeypatch, 1)
    with pytest.raises(DoesNotFit, match="no sample fits"):
        train(policy, samples, COMBINE)
    assert float(moved(policy, start).abs().max()) == 0.0


def test_reads_and_samples_go_on_in_halves(policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, responses = [[5, 9, 30], [44, 3, 8, 90], [17]], [[70, 2], [55, 56, 2], [100]]
    logprobs, mask = policy.response_logprobs(prompts, responses)
    replies = policy.sample(prompts, max_tokens=6, seed=1)
    pack, generate = policy._pack, policy._generate

    def one_at_a_time(some: Sequence[Sequence[int]], *rest: Sequence[Sequence[int]]) -> object:
        if len(some) > 1:
            raising(PLANTED)
        return pack(some, *rest)

    def one_reply(network: object, decoder: object, some: Sequence[object], *rest: object) -> object:
        if len(some) > 1:
            raising(PLANTED)
        return generate(network, decoder, some, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(policy, "_pack", one_at_a_time)
    monkeypatch.setattr(policy, "_generate", one_reply)
    apart, same = policy.response_logprobs(prompts, responses)
    assert torch.equal(mask, same)
    torch.testing.assert_close(apart, logprobs, atol=1e-5, rtol=0, equal_nan=True)
    assert [r.token_ids for r in policy.sample(prompts, max_tokens=6, seed=1)] == [
        r.token_ids for r in replies
    ]


def test_a_turn_whose_teacher_cannot_be_read_is_left_out_and_the_others_train(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [wishing_turn(policy, name, text, "Shorter.") for name, text in (("a", "Hi"), ("b", "Hi " * 40))]
    plan = bare_plan(reads_verdicts=False)
    samples = samples_of(policy, *turns, plan=plan)
    most = len(turns[1].prompt_token_ids)
    pack = policy._pack

    def limited(prompts: Sequence[Sequence[int]], *more: object) -> object:
        if max(map(len, prompts)) >= most:
            raising(PLANTED)
        return pack(prompts, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(policy, "_pack", limited)
    dropped: dict[str, TurnRefusal] = {}
    assert train(policy, samples, plan, leave_out=dropped.__setitem__)["live_samples"] == 1
    assert {name: refusal.reason for name, refusal in dropped.items()} == {"b": DropReason.OUT_OF_MEMORY}
