"""Samples to tensors: every number in its place, none made up, one temperature for what is compared."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from store.errors import AlignmentError
from store.values import Completion, LogprobMode, ScoredTurn, Verdict
from tests.trainer.conftest import step_once
from trainer.advantages import Streams, directive_streams
from trainer.batch import (
    Sample,
    SampleKind,
    behaviour_logprobs,
    build_batch,
    forced_tokens,
    micro_batches,
    pad,
    sample_of,
)
from trainer.objective import Objective, compute_loss
from trainer.policy import LocalPolicy, Weights
from trainer.protocol import TeacherScore


def streams(values: tuple[float, ...], *, directive: float = 0.0) -> Streams:
    return Streams(
        advantages=values,
        advantage_mask=tuple(value != 0 for value in values),
        directive_weight=directive,
        directive_alpha=0.25,
    )


SHORT = Sample(
    turn_id="short",
    prompt_ids=(5, 6),
    completion_ids=(7, 2),
    sampling_logprobs=(-0.5, -0.25),
    streams=streams((1.0, 1.0)),
    weight=2.0,
)
LONG = Sample(
    turn_id="long",
    kind=SampleKind.WISH,
    prompt_ids=(5,),
    completion_ids=(8, 9, 10, 2),
    sampling_logprobs=(-1.0, -2.0, -3.0, -4.0),
    temperature=0.5,
    logprob_mode=LogprobMode.PROCESSED,
    teacher_prompt_ids=(5, 6, 7),
    streams=streams((0.0, -1.0, 0.0, 0.5), directive=1.0),
)


def turn(**changes: Any) -> ScoredTurn:
    given: dict[str, Any] = {
        "turn_id": "t1",
        "session_id": "s1",
        "turn_index": 0,
        "policy": "mine",
        "key_name": "key",
        "adapter_version": 3,
        "messages": ({"role": "user", "content": "hi"},),
        "request": {},
        "completion": Completion(text="x", token_ids=(7, 8, 2), sampling_logprobs=(-0.1, 0.0, -0.3)),
        "prompt_token_ids": (4, 5),
        "temperature": 0.7,
        "logprob_mode": LogprobMode.RAW,
        "verdict": Verdict(turn_id="t1", value=-1, source="rule", created_at=0.0),
        "next_text": "",
        "created_at": 0.0,
    }
    return ScoredTurn(**{**given, **changes})


def test_a_turn_becomes_a_sample_with_its_very_tokens() -> None:
    sample = sample_of(turn())
    assert sample.prompt_ids == (4, 5)
    assert sample.completion_ids == (7, 8, 2)
    assert sample.sampling_logprobs == (-0.1, 0.0, -0.3)
    assert (sample.adapter_version, sample.temperature, sample.tokens) == (3, 0.7, 5)
    assert (sample.kind, sample.teacher_prompt_ids) == (SampleKind.VERDICT, None)
    assert replace(sample, teacher_prompt_ids=(4, 5, 6)).tokens == 6


@pytest.mark.parametrize(
    "changes",
    [
        {"completion": Completion(token_ids=(7, 8), sampling_logprobs=(-0.1,))},
        {"completion": Completion(token_ids=(7, 8), sampling_logprobs=(-0.1, math.nan))},
        {"completion": Completion(token_ids=(7,), sampling_logprobs=(0.5,))},
        {"completion": Completion()},
        {"prompt_token_ids": ()},
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"logprob_mode": LogprobMode.UNKNOWN},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_a_turn_that_is_not_aligned_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(AlignmentError):
        sample_of(turn(**changes))


def test_unknown_logprobs_are_good_enough_at_temperature_one_where_it_makes_no_difference() -> None:
    for temperature in (1.0, 0.0):
        sample = sample_of(turn(logprob_mode=LogprobMode.UNKNOWN, temperature=temperature))
        assert sample.reported_temperature == sample.loss_temperature == 1.0


@pytest.mark.parametrize(
    ("temperature", "mode", "loss", "reported"),
    [
        (0.5, LogprobMode.RAW, 0.5, 1.0),
        (0.5, LogprobMode.PROCESSED, 0.5, 0.5),
        (1.0, LogprobMode.RAW, 1.0, 1.0),
        (0.0, LogprobMode.RAW, 1.0, 1.0),
        (0.0, LogprobMode.PROCESSED, 1.0, 1.0),
        (0.1, LogprobMode.PROCESSED, 0.1, 0.1),
        (0.05, LogprobMode.RAW, 1.0, 1.0),
        (0.01, LogprobMode.PROCESSED, 1.0, 1.0),
        (0.001, LogprobMode.UNKNOWN, 1.0, 1.0),
    ],
)
def test_temperatures_of_the_loss_and_of_the_report(
    temperature: float, mode: LogprobMode, loss: float, reported: float
) -> None:
    sample = replace(SHORT, temperature=temperature, logprob_mode=mode)
    assert (sample.loss_temperature, sample.reported_temperature) == (loss, reported)


@pytest.mark.parametrize("temperature", [1e-4, 0.001, 0.01, 0.05, 0.09])
def test_a_nearly_greedy_reply_is_trained_as_a_greedy_one(temperature: float) -> None:
    """Processed log-probabilities at 0.01 are of another distribution, and the engine may have raised the temperature."""
    for mode in (LogprobMode.PROCESSED, LogprobMode.UNKNOWN):
        sample = sample_of(turn(logprob_mode=mode, temperature=temperature))
        assert (sample.sampling_logprobs, sample.loss_temperature) == (None, 1.0)
        assert forced_tokens(sample) is None
    assert sample_of(turn(temperature=temperature)).sampling_logprobs == (-0.1, 0.0, -0.3)


def test_streams_of_another_length_are_refused() -> None:
    with pytest.raises(AlignmentError, match="3 advantages for 2 tokens"):
        SHORT.with_streams(streams((1.0, 1.0, 1.0)))
    with pytest.raises(AlignmentError, match="1 sampling logprobs for 2 tokens"):
        replace(SHORT, sampling_logprobs=(-0.5,))
    with pytest.raises(AlignmentError, match="no prompt or no completion"):
        replace(SHORT, prompt_ids=())


def grids() -> dict[str, torch.Tensor]:
    own = pad([(-0.5, -0.25), (-1.0, -2.0, -3.0, -4.0)], 4)
    return {"trainer_logprobs": own, "reported_logprobs": own, "base_logprobs": own - 0.5}


def test_a_batch_holds_each_stream_at_its_place_and_nan_elsewhere() -> None:
    top = torch.arange(8).reshape(4, 2)
    score = TeacherScore(
        logprobs=torch.zeros(4), support_ids=top, support_logprobs=-1.0 - torch.arange(8.0).reshape(4, 2)
    )
    batch = build_batch([SHORT, replace(LONG, teacher=score)], **grids())
    assert batch.support_ids is not None
    assert batch.support_logprobs is not None
    assert torch.equal(batch.support_ids[1], top)
    assert torch.equal(batch.support_logprobs[1], -1.0 - torch.arange(8.0).reshape(4, 2))
    assert bool(torch.isneginf(batch.support_logprobs[0]).all())  # no teacher speaks of the other sample
    assert batch.completion_ids.tolist() == [[7, 2, 0, 0], [8, 9, 10, 2]]
    assert batch.mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.advantage_mask.tolist() == [[True, True, False, False], [False, True, False, True]]
    assert batch.advantages[0, :2].tolist() == [1.0, 1.0]
    assert batch.advantages[1].tolist() == [0.0, -1.0, 0.0, 0.5]
    assert batch.directive_weight.tolist() == [0.0, 1.0]
    assert batch.directive_alpha == (0.25, 0.25)
    assert batch.sample_weight.tolist() == [2.0, 1.0]
    assert batch.temperature.tolist() == [1.0, 0.5]
    for stream in (batch.sampling_logprobs, batch.trainer_logprobs, batch.base_logprobs, batch.advantages):
        assert stream is not None
        assert torch.equal(torch.isnan(stream), ~batch.mask)


def test_a_batch_of_the_wrong_shape_or_without_streams_is_refused() -> None:
    with pytest.raises(AlignmentError, match="no streams yet"):
        build_batch([replace(SHORT, streams=None), LONG], **grids())
    with pytest.raises(AlignmentError, match="trainer_logprobs has shape"):
        build_batch([SHORT], **grids())
    with pytest.raises(AlignmentError, match="base_logprobs has shape"):
        build_batch([SHORT, LONG], **{**grids(), "base_logprobs": torch.zeros(2, 3)})
    with pytest.raises(AlignmentError, match="needs a sample"):
        build_batch([], **grids())
    with pytest.raises(AlignmentError, match="a stream of 2 numbers for 1 tokens"):
        pad([(1.0, 2.0)], 1)


def test_an_anchor_has_no_staleness() -> None:
    anchor = Sample(
        turn_id="anchor",
        kind=SampleKind.ANCHOR,
        prompt_ids=(5, 6),
        completion_ids=(7, 2),
        sampling_logprobs=None,
        teacher_prompt_ids=(5, 6),
        streams=directive_streams(completion_length=2),
    )
    own = torch.tensor([[-9.0, -8.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert torch.equal(behaviour_logprobs([anchor], own, own, mask), own)


def test_b_is_moved_to_the_temperature_of_the_loss_by_how_far_the_sampler_was_off() -> None:
    """By hand: the trainer computes -2 at the reported temperature, the engine reported -2.5: ratio e^.5 at any temperature."""
    sample = replace(LONG, completion_ids=(8,), sampling_logprobs=(-2.5,), streams=None)
    own, reported = torch.tensor([[-1.0]]), torch.tensor([[-2.0]])
    moved = behaviour_logprobs([sample], own, reported, torch.ones(1, 1, dtype=torch.bool))
    assert (own - moved).item() == pytest.approx(0.5)


def test_batch_of_one_batch_of_three_and_padded_parts_have_one_loss_and_gradient(policy: LocalPolicy) -> None:
    """Through the real model: the loss of a batch is the sum of its parts' losses, whatever they are padded with."""
    step_once(policy)
    prompts = ([5, 9, 30, 12, 7], [44, 3, 8], [17])
    replies = policy.sample(prompts, max_tokens=9, temperature=0.7, seed=2)
    samples = []
    for i, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        count = 3 + 3 * i
        samples.append(
            Sample(
                turn_id=f"t{i}",
                prompt_ids=tuple(prompt),
                completion_ids=reply.token_ids[:count],
                sampling_logprobs=reply.logprobs[:count],
                temperature=0.7,
                teacher_prompt_ids=(*prompt, 60, 61),
                streams=Streams(
                    advantages=(0.5 - i,) * count, advantage_mask=(True,) * count, directive_weight=1.0
                ),
            )
        )

    def gradient(parts: list[list[Sample]]) -> tuple[float, dict[str, torch.Tensor]]:
        total = 0.0
        for part in parts:
            asked = [s.prompt_ids for s in part], [s.completion_ids for s in part]
            own, _ = policy.response_logprobs(*asked, temperature=0.7)
            reported, _ = policy.response_logprobs(*asked)
            base, _ = policy.response_logprobs(*asked, Weights.BASE, temperature=0.7)
            scores = policy.teacher_scores(
                [s.teacher_prompt_ids or () for s in part],
                asked[1],
                Weights.BASE,
                temperature=[0.7] * len(part),
                top_k=20,
            )
            batch = build_batch(
                [replace(one, teacher=score) for one, score in zip(part, scores, strict=True)],
                trainer_logprobs=own,
                reported_logprobs=reported,
                base_logprobs=base,
            )
            logits, _ = policy.response_logits(*asked)
            loss, _ = compute_loss(Objective(), batch, logits, live_samples=3)
            torch.autograd.backward(loss)
            total += float(loss.detach())
        found = {name: p.grad.clone() for name, p in policy._trainable.items() if p.grad is not None}
        policy.drop_gradients()
        return total, found

    whole, gradient_whole = gradient([samples])
    for parts in ([[s] for s in samples], [[samples[2], samples[0]], [samples[1]]]):
        loss, found = gradient(parts)
        assert loss == pytest.approx(whole, abs=1e-5)
        for name, value in gradient_whole.items():
            torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-3)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), max_size=20), st.integers(1, 200))
def test_parts_hold_every_sample_once_and_stay_within_the_token_limit(
    sizes: list[tuple[int, int]], limit: int
) -> None:
    samples = [
        Sample(turn_id=f"t{i:02d}", prompt_ids=(1,) * p, completion_ids=(1,) * c, sampling_logprobs=None)
        for i, (p, c) in enumerate(sizes)
    ]
    parts = list(micro_batches(samples, limit))
    assert sorted(s.turn_id for part in parts for s in part) == [s.turn_id for s in samples]
    for part in parts:
        assert len(part) == 1 or len(part) * max(s.tokens for s in part) <= limit


def test_one_long_sample_does_not_pad_all_others() -> None:
    samples = [
        Sample(turn_id=f"t{i}", prompt_ids=(1,) * p, completion_ids=(1,) * 40, sampling_logprobs=None)
        for i, p in enumerate([20] * 12 + [300])
    ]
    parts = list(micro_batches(samples, 8_192))
    assert [len(part) for part in parts] == [1, 12]
    alike = [replace(sample, prompt_ids=(1,) * (20 + i % 3)) for i, sample in enumerate(samples)]
    assert len(list(micro_batches(alike, 8_192))) == 1
