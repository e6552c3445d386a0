"""Bugs of other implementations on the way from a recorded turn to a tensor, each shown not to be here.

A3, A4, A5, A6, A7 and A15 of the list; those of the losses and advantages are tested beside them.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from trainer.teacher import teacher_prompt

from store.errors import AlignmentError
from store.values import Completion, LogprobMode, ScoredTurn, Verdict
from tests.trainer.conftest import step_once
from trainer.advantages import build_streams
from trainer.batch import Sample, build_batch, sample_of
from trainer.objective import Objective, compute_loss
from trainer.policy import LocalPolicy, Reply, Weights

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
        teacher_prompt(
            policy.render,
            messages=turn.messages,
            request=turn.request,
            hint="shorter",
            is_reaction=True,
            recorded_prompt_ids=turn.prompt_token_ids,
            max_tokens=1000,
        )
    # Without a teacher the turn is still what was sampled: the conversation is prompt, not response.
    sample = sample_of(turn)
    assert (sample.prompt_ids, sample.completion_ids) == (tuple(served), reply.token_ids)
    _, mask = policy.response_logits([sample.prompt_ids], [sample.completion_ids])
    assert mask.sum() == len(reply.token_ids)


def test_a5_the_first_response_token_gets_the_teachers_own_number(policy: LocalPolicy) -> None:
    prompt = policy.render(MESSAGES)
    hinted = list(
        teacher_prompt(
            policy.render,
            messages=MESSAGES,
            request={},
            hint="shorter",
            is_reaction=True,
            recorded_prompt_ids=prompt,
            max_tokens=1000,
        )
    )
    response = policy.sample([prompt], max_tokens=5, seed=4)[0].token_ids
    logprobs, _ = policy.response_logprobs([hinted], [response], Weights.BASE)
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
            build_streams(
                "combine",
                verdict=-1,
                baseline=0.0,
                has_hint=True,
                teacher_logprobs=broken,  # type: ignore[arg-type]  # what a remote teacher may send
                trainer_logprobs=own[0].tolist(),
                w_rl=0.3,
                w_opd=1.0,
                opd_support="token",
                opd_clip=1.0,
                completion_length=4,
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
    sample = sample_of(turn, teacher_prompt_ids=prompt)
    asked = [sample.prompt_ids], [sample.completion_ids]
    own, _ = policy.response_logprobs(*asked, temperature=sample.loss_temperature)
    same_report, _ = policy.response_logprobs(*asked, temperature=sample.reported_temperature)
    teacher, _ = policy.response_logits([sample.teacher_prompt_ids or ()], asked[1])
    logprobs, _ = policy.response_logprobs(
        [sample.teacher_prompt_ids or ()], asked[1], temperature=sample.loss_temperature
    )
    assert float((logprobs - own).abs().max()) == 0.0  # in the references: .68 nat on average at .6

    def measured(sample: Sample) -> dict[str, float]:
        streams = build_streams(
            "sdpo",
            verdict=-1,
            baseline=0.0,
            has_hint=True,
            teacher_logprobs=logprobs[0].tolist(),
            trainer_logprobs=own[0].tolist(),
            w_rl=0.3,
            w_opd=1.0,
            opd_support="topk",
            opd_clip=1.0,
            completion_length=len(sample.completion_ids),
        )
        batch = build_batch(
            [sample.with_streams(streams)],
            trainer_logprobs=own,
            reported_logprobs=same_report,
            base_logprobs=own,
            teacher_logits=teacher.detach(),
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
    fitted = 0
    for room in range(20, len(prompt) + 60):
        try:
            ids = teacher_prompt(
                policy.render,
                messages=messages,
                request={},
                hint="shorter",
                is_reaction=True,
                recorded_prompt_ids=prompt,
                max_tokens=room,
            )
        except AlignmentError:
            assert fitted == 0  # too little room at first, and from then on enough
            continue
        fitted += 1
        assert len(ids) <= room
        assert list(ids[-len(header) :]) == header
        assert "shorter" in policy.tokenizer.decode(ids)
    assert fitted > 50
