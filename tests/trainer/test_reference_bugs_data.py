"""Bugs of other implementations on the way from a recorded turn to a tensor, each shown not to be here.

A3, A4, A5, A6, A7 and A15 of the list; those of the losses and advantages are tested beside them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from store.errors import AlignmentError
from store.values import Completion, LogprobMode, ScoredTurn, Verdict
from tests.trainer.conftest import step_once
from trainer.advantages import token_streams, wish_streams
from trainer.batch import Sample, build_batch, sample_of
from trainer.objective import Objective, compute_loss
from trainer.policy import LocalPolicy, Reply, Weights
from trainer.prompt_pair import prompt_pair
from wire.wish_text import add_wishes

MESSAGES = ({"role": "user", "content": "What is the opposite of hot?"},)


def recorded(policy: LocalPolicy, reply: Reply, prompt: list[int], **changes: Any) -> ScoredTurn:
    """The turn as the proxy would have written it."""
    given: dict[str, Any] = {
        "turn_id": "t1",
        "session_id": "s1",
        "turn_index": 0,
        "policy": "mine",
        "key_name": "key",
        "adapter_version": 0,
        "messages": MESSAGES,
        "request": {},
        "completion": Completion(
            text=policy.decode(reply.token_ids),
            token_ids=reply.token_ids,
            sampling_logprobs=reply.logprobs,
            finish_reason="stop",
        ),
        "prompt_token_ids": tuple(prompt),
        "temperature": 1.0,
        "logprob_mode": LogprobMode.RAW,
        "verdict": Verdict(turn_id="t1", value=-1, hint="shorter", source="rule", created_at=0.0),
        "next_text": "shorter",
        "created_at": 0.0,
    }
    return ScoredTurn(**{**given, **changes})


def test_a3_trained_ids_are_the_sampled_ids_also_where_text_would_tokenise_otherwise(
    policy: LocalPolicy,
) -> None:
    """Random sampling emits sequences no tokenizer would: decoding and encoding them changes ids and their number."""
    prompt = policy.render(MESSAGES)
    replies = policy.sample([prompt] * 8, max_tokens=12, seed=3)
    reencoded = [tuple(policy.encode(policy.tokenizer.decode(reply.token_ids))) for reply in replies]
    assert any(again != reply.token_ids for again, reply in zip(reencoded, replies, strict=True))
    for reply in replies:
        sample = sample_of(recorded(policy, reply, prompt))
        assert sample.completion_ids == reply.token_ids
        assert sample.prompt_ids == tuple(prompt)
        assert sample.sampling_logprobs == reply.logprobs


def test_a3_missing_logprobs_are_never_padded(policy: LocalPolicy) -> None:
    prompt = policy.render(MESSAGES)
    reply = policy.sample([prompt], max_tokens=6, seed=3)[0]
    short = Completion(token_ids=reply.token_ids, sampling_logprobs=reply.logprobs[:-1])
    with pytest.raises(AlignmentError, match="6 token ids but 5 logprobs"):
        sample_of(recorded(policy, reply, prompt, completion=short))


def test_a3_no_number_of_a_batch_moves_by_a_position(policy: LocalPolicy) -> None:
    """The engine's and the trainer's logprobs of the same tokens agree at every position of a padded batch."""
    step_once(policy)
    prompts = [policy.render(MESSAGES), [5, 6, 7]]
    replies = policy.sample(prompts, max_tokens=7, seed=3)
    replies[1] = Reply(token_ids=replies[1].token_ids[:3], logprobs=replies[1].logprobs[:3], finished=False)
    own, mask = policy.response_logprobs(prompts, [reply.token_ids for reply in replies])
    for row, reply in enumerate(replies):
        torch.testing.assert_close(own[row][mask[row]], torch.tensor(reply.logprobs), atol=1e-4, rtol=0)


def test_a4_on_a_template_mismatch_the_turn_is_dropped_and_its_sample_keeps_its_bounds(
    policy: LocalPolicy,
) -> None:
    rendered = policy.render(MESSAGES)
    served = [*rendered[:-1], 17, *rendered[-1:]]  # the engine saw something the template does not give
    reply = policy.sample([served], max_tokens=5, seed=1)[0]
    turn = recorded(policy, reply, served)
    with pytest.raises(AlignmentError, match="template mismatch"):
        prompt_pair(policy.render, turn, text="shorter", place="behind")
    # Without a teacher the turn is still what was sampled: the conversation is prompt, not response.
    sample = sample_of(turn)
    assert (sample.prompt_ids, sample.completion_ids) == (tuple(served), reply.token_ids)
    _, mask = policy.response_logits([sample.prompt_ids], [sample.completion_ids])
    assert mask.sum() == len(reply.token_ids)


def test_a5_the_first_response_token_gets_the_teachers_own_number(policy: LocalPolicy) -> None:
    prompt = policy.render(MESSAGES)
    reply = policy.sample([prompt], max_tokens=5, seed=4)[0]
    pair = prompt_pair(policy.render, recorded(policy, reply, prompt), text="shorter", place="behind")
    hinted, response = list(pair.wished), reply.token_ids
    (score,) = policy.teacher_scores([hinted], [response], Weights.BASE, temperature=[1.0], top_k=5)
    logprobs = score.logprobs[None]
    with torch.no_grad():
        whole = policy._network(input_ids=torch.tensor([hinted])).logits[0, -1]
    expected = torch.log_softmax(whole, dim=-1)[response[0]]  # the next token after the generation header
    assert float(logprobs[0, 0]) == pytest.approx(float(expected), abs=1e-5)
    assert float(logprobs[0, 0]) < -0.1


def test_a6_a_teacher_that_did_not_answer_is_an_error_and_never_zeros(policy: LocalPolicy) -> None:
    reply = policy.sample([[5, 6, 7]], max_tokens=4, seed=4)[0]
    own, _ = policy.response_logprobs([[5, 6, 7]], [reply.token_ids])
    for broken in (None, [math.nan] * 4, [-1.0, -1.0, -1.0], [None, -1.0, -1.0, -1.0]):
        with pytest.raises(AlignmentError):
            token_streams(
                wish_streams("combine", 4),
                broken,  # type: ignore[arg-type]  # what a remote teacher may send
                own[0].tolist(),
                clip=1.0,
            )


@pytest.mark.parametrize("mode", [LogprobMode.RAW, LogprobMode.PROCESSED])
@pytest.mark.parametrize("temperature", [0.0, 0.3, 0.6, 1.0, 1.5])
def test_a7_an_identical_model_without_a_hint_has_no_advantage_and_no_staleness_at_any_temperature(
    policy: LocalPolicy, temperature: float, mode: LogprobMode
) -> None:
    """Teacher == student == sampler: q - o is 0, the staleness weight 1, the directive loss and its gradient 0."""
    step_once(policy)
    prompt = policy.render(MESSAGES)
    reply = policy.sample([prompt], max_tokens=10, temperature=temperature, seed=8)[0]
    heat = temperature or 1.0
    reported = reply.logprobs
    if mode is LogprobMode.PROCESSED:
        processed, _ = policy.response_logprobs([prompt], [reply.token_ids], temperature=heat)
        reported = tuple(processed[0].tolist())
    turn = recorded(
        policy,
        reply,
        prompt,
        temperature=temperature,
        logprob_mode=mode,
        completion=Completion(token_ids=reply.token_ids, sampling_logprobs=reported),
    )
    sample = replace(sample_of(turn), teacher_prompt_ids=tuple(prompt))
    asked = [sample.prompt_ids], [sample.completion_ids]
    own, _ = policy.response_logprobs(*asked, temperature=sample.loss_temperature)
    same_report, _ = policy.response_logprobs(*asked, temperature=sample.reported_temperature)
    (score,) = policy.teacher_scores(
        [sample.teacher_prompt_ids or ()],
        asked[1],
        Weights.STUDENT,
        temperature=[sample.loss_temperature],
        top_k=20,
    )
    assert float((score.logprobs - own[0]).abs().max()) < 1e-5  # in the references: .68 nat on average at .6
    advantages = token_streams(
        wish_streams("opd", len(reply.token_ids)), score.logprobs.tolist(), own[0].tolist(), clip=1.0
    ).advantages
    assert max(map(abs, advantages)) < 1e-5

    def measured(sample: Sample) -> dict[str, float]:
        streams = wish_streams("sdpo", len(sample.completion_ids))
        batch = build_batch(
            [replace(sample, streams=streams, teacher=score)],
            trainer_logprobs=own,
            reported_logprobs=same_report,
            base_logprobs=own,
        )
        logits, _ = policy.response_logits(*asked)
        loss, metrics = compute_loss(Objective(), batch, logits)
        torch.autograd.backward(loss)
        largest = max(float(p.grad.abs().max()) for p in policy._trainable.values() if p.grad is not None)
        policy.drop_gradients()
        return {**metrics, "gradient": largest}

    metrics = measured(sample)
    assert metrics["staleness_mean"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["directive_loss"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["gradient"] < 1e-5


def test_a7_raw_logprobs_taken_for_processed_ones_would_look_like_another_policy(policy: LocalPolicy) -> None:
    """The control: without the distinction, the very policy that sampled seems to be far away."""
    prompt = policy.render(MESSAGES)
    reply = policy.sample([prompt], max_tokens=10, temperature=0.5, seed=8)[0]
    at_loss, _ = policy.response_logprobs([prompt], [reply.token_ids], temperature=0.5)
    assert float((at_loss[0] - torch.tensor(reply.logprobs)).abs().mean()) > 0.2
    at_report, _ = policy.response_logprobs([prompt], [reply.token_ids])
    assert float((at_report[0] - torch.tensor(reply.logprobs)).abs().max()) < 1e-4


def test_a15_no_truncation_ever_cuts_the_generation_header(policy: LocalPolicy) -> None:
    messages: list[dict[str, Any]] = []
    for i in range(6):
        messages += [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"Yes, {i}."}]
    messages.append({"role": "user", "content": "And now?"})
    prompt = policy.render(messages)
    header = policy.encode("<|im_end|>\n<|im_start|>assistant\n")
    reply = policy.sample([prompt], max_tokens=5, seed=4)[0]
    turn = recorded(policy, reply, prompt, messages=tuple(messages))
    for place in ("behind", "system"):
        pair = prompt_pair(policy.render, turn, text="shorter", place=place)
        for ids in pair:
            assert list(ids[-len(header) :]) == header
        assert list(pair.wished) == policy.render(add_wishes(messages, "shorter", place))
    # A prompt that lacks it is proven by nothing, wherever it was cut.
    for count in range(1, len(prompt)):
        with pytest.raises(AlignmentError, match="template mismatch"):
            prompt_pair(
                policy.render,
                replace(turn, prompt_token_ids=tuple(prompt[:-count])),
                text="shorter",
                place="behind",
            )
        if count == 2 * len(header):
            break
