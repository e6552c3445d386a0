"""The policy on a tiny real model: what it reads, how it steps, and that it comes back exactly after a kill."""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import safetensors.torch
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from store.errors import AdapterError, AlignmentError, ConfigError, GateRejected
from tests.tiny import make_tiny_model
from trainer.checkpoint import verify_version, write_version
from trainer.memory_plan import MOST_ON_CPU
from trainer.policy import LocalPolicy, Weights, _drawn, _WideLinear, wide_linear

PROMPTS = ([5, 9, 30, 12, 7], [44, 3, 8, 90, 33, 21, 60, 61, 62], [17])
RESPONSES = ([70, 71, 72, 2], [55, 2], [100, 101, 102, 103, 104, 105, 2])


def take_step(policy: LocalPolicy, number: int) -> float:
    """One optimizer step on the likelihood of a pseudo-random sequence: a gradient that differs from step to step."""
    rng = random.Random(number)
    prompt = [rng.randrange(3, 400) for _ in range(6)]
    response = [rng.randrange(3, 400) for _ in range(5)]
    logits, _ = policy.response_logits([prompt], [response])
    torch.autograd.backward(torch.nn.functional.cross_entropy(logits[0], torch.tensor(response)))
    return policy.apply_gradients()


def plain_logits(model: torch.nn.Module, prompt: Sequence[int], response: Sequence[int]) -> torch.Tensor:
    """The definition: the whole sequence alone through the whole model, then the positions that predict the response."""
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([[*prompt, *response]])).logits
    return logits[0, len(prompt) - 1 : -1]


def test_response_logits_are_the_models_own_for_every_row_whatever_it_is_padded_with(
    policy: LocalPolicy, tiny_model: Path
) -> None:
    reference = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    logits, mask = policy.response_logits(PROMPTS, RESPONSES)
    assert logits.dtype == torch.float32
    assert mask.sum(dim=1).tolist() == [4, 2, 7]
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        expected = plain_logits(reference, prompt, response)
        torch.testing.assert_close(logits[row, : len(response)], expected, atol=1e-5, rtol=0)


def test_a_batch_of_one_gives_the_gradient_of_its_row_in_a_batch_of_three(policy: LocalPolicy) -> None:
    for number in range(2):
        take_step(policy, number)  # otherwise half of the LoRA gradients are exactly 0

    def gradient(rows: Sequence[int], wanted: int) -> dict[str, torch.Tensor]:
        logits, mask = policy.response_logits([PROMPTS[i] for i in rows], [RESPONSES[i] for i in rows])
        row = rows.index(wanted)
        torch.autograd.backward(torch.logsumexp(logits[row][mask[row]], dim=-1).square().sum())
        found = {name: p.grad.clone() for name, p in policy._trainable.items() if p.grad is not None}
        policy.drop_gradients()
        return found

    alone, together = gradient([1], 1), gradient([0, 1, 2], 1)
    assert alone.keys() == together.keys() == policy._trainable.keys()
    for name in alone:
        torch.testing.assert_close(together[name], alone[name], atol=1e-5, rtol=1e-4)


def test_response_logprobs_in_chunks_are_those_of_the_whole_logits(policy: LocalPolicy) -> None:
    logits, mask = policy.response_logits(PROMPTS, RESPONSES)
    chunked, _ = policy.response_logprobs(PROMPTS, RESPONSES, temperature=[0.5, 1.0, 2.0], chunk=3)
    assert torch.isnan(chunked[~mask]).all()
    for row, (response, heat) in enumerate(zip(RESPONSES, (0.5, 1.0, 2.0), strict=True)):
        whole = torch.log_softmax(logits[row, : len(response)] / heat, dim=-1)
        expected = whole.gather(-1, torch.tensor(response)[:, None]).squeeze(-1)
        torch.testing.assert_close(chunked[row, : len(response)], expected, atol=1e-5, rtol=0)


def test_the_last_response_token_is_predicted_but_never_read(policy: LocalPolicy) -> None:
    one, _ = policy.response_logits([[5, 6, 7]], [[8, 9, 10]])
    other, _ = policy.response_logits([[5, 6, 7]], [[8, 9, 200]])
    assert torch.equal(one, other)


def test_gradient_checkpointing_changes_no_gradient(tiny_model: Path) -> None:
    gradients = []
    for checkpointing in (False, True):
        policy = LocalPolicy(
            str(tiny_model), rank=4, seed=3, device="cpu", checkpointing=checkpointing, learning_rate=1e-4
        )
        take_step(policy, 0)
        logits, _ = policy.response_logits([PROMPTS[0]], [RESPONSES[0]])
        torch.autograd.backward(logits.square().mean())
        gradients.append({name: p.grad for name, p in policy._trainable.items()})
        assert not any(module.training for module in policy._network.modules())
        assert policy.sample([PROMPTS[0]], max_tokens=3, temperature=0.0)  # the cache works beside it
    plain, recomputed = gradients
    for name, gradient in plain.items():
        assert gradient is not None
        torch.testing.assert_close(recomputed[name], gradient, atol=1e-6, rtol=1e-5)


def test_base_and_student_differ_and_come_back(policy: LocalPolicy) -> None:
    base_before, _ = policy.response_logits([PROMPTS[0]], [RESPONSES[0]], Weights.BASE)
    for number in range(3):
        take_step(policy, number)
    student, _ = policy.response_logits([PROMPTS[0]], [RESPONSES[0]])
    base, _ = policy.response_logits([PROMPTS[0]], [RESPONSES[0]], Weights.BASE)
    again, _ = policy.response_logits([PROMPTS[0]], [RESPONSES[0]])
    assert torch.equal(base, base_before)
    assert torch.equal(student, again)
    assert student.requires_grad
    assert not base.requires_grad
    assert (student - base).norm() > 0


def test_a_teacher_tells_its_likeliest_tokens_at_the_temperature_of_the_reply(policy: LocalPolicy) -> None:
    take_step(policy, 0)
    heats = [0.5, 1.0, 2.0]
    scores = policy.teacher_scores(PROMPTS, RESPONSES, Weights.STUDENT, temperature=heats, top_k=5)
    logits, _ = policy.response_logits(PROMPTS, RESPONSES)
    for row, (score, response, heat) in enumerate(zip(scores, RESPONSES, heats, strict=True)):
        whole = torch.log_softmax(logits[row, : len(response)].detach() / heat, dim=-1)
        assert score.support_ids is not None
        assert torch.equal(score.support_ids, whole.topk(5, dim=-1).indices)
        torch.testing.assert_close(score.support_logprobs, whole.topk(5, dim=-1).values, atol=1e-5, rtol=0)
        expected = whole.gather(-1, torch.tensor(response)[:, None]).squeeze(-1)
        torch.testing.assert_close(score.logprobs, expected, atol=1e-5, rtol=0)


def test_the_student_is_the_base_until_the_first_step(policy: LocalPolicy) -> None:
    student, _ = policy.response_logits(PROMPTS, RESPONSES)
    base, _ = policy.response_logits(PROMPTS, RESPONSES, Weights.BASE)
    assert torch.equal(student, base)


@pytest.mark.parametrize(
    ("prompt", "response"),
    [([], [4]), ([4], []), ([4], [100_000]), ([-1], [4]), ([4] * 2040, [4] * 9)],
    ids=["no prompt", "no response", "beyond the vocabulary", "negative", "beyond the context"],
)
def test_what_cannot_be_aligned_is_refused(
    policy: LocalPolicy, prompt: list[int], response: list[int]
) -> None:
    with pytest.raises(AlignmentError):
        policy.response_logits([prompt], [response])


# -- sampling


def test_sampled_logprobs_are_those_of_reading_the_same_tokens(policy: LocalPolicy) -> None:
    for number in range(2):
        take_step(policy, number)
    replies = policy.sample(PROMPTS, max_tokens=12, temperature=0.7, seed=5)
    read, _ = policy.response_logprobs(PROMPTS, [reply.token_ids for reply in replies])
    for row, reply in enumerate(replies):
        expected = read[row, : len(reply.token_ids)]
        torch.testing.assert_close(torch.tensor(reply.logprobs), expected, atol=1e-4, rtol=0)


def test_greedy_rows_of_a_batch_are_the_greedy_rows_alone(policy: LocalPolicy) -> None:
    together = policy.sample(PROMPTS, max_tokens=8, temperature=0.0)
    alone = [policy.sample([prompt], max_tokens=8, temperature=0.0)[0] for prompt in PROMPTS]
    assert [reply.token_ids for reply in together] == [reply.token_ids for reply in alone]


def test_sampling_repeats_with_its_seed_and_leaves_torchs_random_state_alone(policy: LocalPolicy) -> None:
    state = torch.get_rng_state()
    first = policy.sample(PROMPTS, max_tokens=8, seed=1)
    assert policy.sample(PROMPTS, max_tokens=8, seed=1) == first
    assert policy.sample(PROMPTS, max_tokens=8, seed=2) != first
    assert torch.equal(torch.get_rng_state(), state)


def test_a_reply_ends_with_the_end_of_turn_and_says_so(policy: LocalPolicy) -> None:
    end = policy.tokenizer.eos_token_id
    for _ in range(60):  # teach it to stop at once
        logits, _ = policy.response_logits([PROMPTS[0]], [[end]])
        torch.autograd.backward(torch.nn.functional.cross_entropy(logits[0], torch.tensor([end])))
        policy.apply_gradients()
    stopping, cut = (
        policy.sample([PROMPTS[0]], max_tokens=4, temperature=0.0, weights=weights)[0]
        for weights in (Weights.STUDENT, Weights.BASE)
    )
    assert (stopping.token_ids, stopping.finished) == ((end,), True)
    assert (len(cut.token_ids), cut.finished) == (4, False)


# -- the step


def test_a_gradient_that_is_not_finite_takes_no_step(policy: LocalPolicy) -> None:
    take_step(policy, 0)
    before = policy.snapshot()
    logits, _ = policy.response_logits([PROMPTS[0]], [RESPONSES[0]])
    torch.autograd.backward(logits.sum() * torch.nan)
    with pytest.raises(GateRejected, match="not finite"):
        policy.apply_gradients()
    after = policy.snapshot()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert take_step(policy, 1) > 0  # and nothing of it is left


def test_adam_does_not_decay_and_gradients_are_clipped_to_one(policy: LocalPolicy) -> None:
    group = policy._optimizer.param_groups[0]
    assert (group["betas"], group["weight_decay"]) == ((0.9, 0.99), 0.0)
    logits, _ = policy.response_logits([PROMPTS[0]], [RESPONSES[0]])
    torch.autograd.backward(logits.square().sum() * 1e6)
    assert policy.apply_gradients() > 1e3
    moments = [state["exp_avg"] for state in policy._optimizer.state.values()]
    # After one step the first moment is a tenth of the gradient that was used.
    assert float(torch.stack([m.norm() for m in moments]).norm()) == pytest.approx(0.1, rel=1e-3)


# -- coming back


def test_snapshot_and_restore_undo_a_step_exactly(policy: LocalPolicy) -> None:
    take_step(policy, 0)
    before = policy.snapshot()
    first = take_step(policy, 1)
    once = policy.snapshot()
    take_step(policy, 2)
    policy.restore(before)
    assert take_step(policy, 1) == first
    again = policy.snapshot()
    assert all(torch.equal(once[name], again[name]) for name in once)


RESUME = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("error")
import torch
torch.set_num_threads(1)
from tests.trainer.test_policy import take_step
from trainer.policy import LocalPolicy
model, version = sys.argv[1:]
policy = LocalPolicy(model, rank=4, learning_rate=1e-2, seed=99, device="cpu")
policy.load_version(Path(version))
norms = [take_step(policy, number) for number in range(3, 6)]
torch.save({"norms": norms, "state": policy.snapshot(), "random": torch.rand(4)}, Path(version).parent / "resumed.pt")
"""


def test_a_new_process_goes_on_from_a_version_bit_for_bit(
    policy: LocalPolicy, tiny_model: Path, tmp_path: Path
) -> None:
    """Six steps straight are three steps, a version, another process with another seed, and three more."""
    torch.manual_seed(11)
    for number in range(3):
        take_step(policy, number)
    version = write_version(tmp_path / "adapters", "tiny", 1, policy.version_files(), metrics={})
    norms = [take_step(policy, number) for number in range(3, 6)]
    straight, straight_random = policy.snapshot(), torch.rand(4)

    done = subprocess.run(
        [sys.executable, "-c", RESUME, str(tiny_model), str(version.path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "PYTHONPATH": "."},
    )
    assert done.returncode == 0, done.stderr
    resumed = torch.load(version.path.parent / "resumed.pt")
    assert resumed["norms"] == norms
    assert resumed["state"].keys() == straight.keys()
    for name, value in straight.items():
        assert torch.equal(resumed["state"][name], value), name
    assert torch.equal(resumed["random"], straight_random)


def test_the_same_weights_give_the_same_bytes(policy: LocalPolicy, tiny_model: Path) -> None:
    take_step(policy, 0)
    files = policy.version_files()
    twin = LocalPolicy(str(tiny_model), rank=4, learning_rate=1e-2, seed=3, device="cpu")
    take_step(twin, 0)
    assert twin.version_files() == files


def test_peft_loads_a_version_as_it_is(policy: LocalPolicy, tiny_model: Path, tmp_path: Path) -> None:
    for number in range(3):
        take_step(policy, number)
    version = write_version(tmp_path, "tiny", 1, policy.version_files(), metrics={})
    verify_version(version.path, version.content_hash)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with pytest.warns(FutureWarning, match="is_gradient_checkpointing"):  # peft 0.21 with transformers 5.23
        served = PeftModel.from_pretrained(base, version.path).eval()
    config = json.loads((version.path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tiny_model.resolve())
    assert (config["r"], config["lora_alpha"]) == (4, 8)
    mine, _ = policy.response_logits([PROMPTS[0]], [RESPONSES[0]])
    theirs = plain_logits(served, PROMPTS[0], RESPONSES[0])
    torch.testing.assert_close(mine[0].detach(), theirs, atol=1e-5, rtol=0)
    assert (mine - policy.response_logits([PROMPTS[0]], [RESPONSES[0]], Weights.BASE)[0]).abs().max() > 0.01


def test_a_foreign_adapter_of_another_rank_is_taken_over_with_its_form(
    policy: LocalPolicy, tiny_model: Path, tiny_adapters: tuple[Path, Path]
) -> None:
    folder = tiny_adapters[1]  # rank 8, no trainer state
    take_step(policy, 0)
    policy.load_version(folder)
    assert policy.rank == 8
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with pytest.warns(FutureWarning, match="is_gradient_checkpointing"):
        foreign = PeftModel.from_pretrained(base, folder).eval()
    mine, _ = policy.response_logits([PROMPTS[0]], [RESPONSES[0]])
    expected = plain_logits(foreign, PROMPTS[0], RESPONSES[0])
    torch.testing.assert_close(mine[0].detach(), expected, atol=1e-5, rtol=0)
    assert take_step(policy, 1) > 0


def test_reset_is_version_zero(policy: LocalPolicy) -> None:
    take_step(policy, 0)
    policy.reset()
    student, _ = policy.response_logits([PROMPTS[0]], [RESPONSES[0]])
    base, _ = policy.response_logits([PROMPTS[0]], [RESPONSES[0]], Weights.BASE)
    assert torch.equal(student.detach(), base)
    assert not policy._optimizer.state


def test_a_broken_version_changes_nothing(policy: LocalPolicy, tmp_path: Path) -> None:
    take_step(policy, 0)
    good = write_version(tmp_path, "tiny", 1, policy.version_files(), metrics={}).path
    take_step(policy, 1)
    before = policy.snapshot()

    torn = shutil.copytree(good, tmp_path / "torn")
    body = (torn / "adapter_model.safetensors").read_bytes()
    (torn / "adapter_model.safetensors").write_bytes(body[: len(body) // 2])
    stranger = shutil.copytree(good, tmp_path / "stranger")
    weights = safetensors.torch.load(body)
    name = next(iter(weights))
    weights[name] = torch.zeros(3, 3)
    safetensors.torch.save_file(weights, stranger / "adapter_model.safetensors")
    other_rank = shutil.copytree(good, tmp_path / "other_rank")
    config = json.loads((other_rank / "adapter_config.json").read_text())
    (other_rank / "adapter_config.json").write_text(json.dumps({**config, "r": 2}))
    half_state = shutil.copytree(good, tmp_path / "half_state")
    (half_state / "patina/trainer_state.safetensors").write_bytes(
        safetensors.torch.save({"adam.exp_avg/of another adapter": torch.zeros(3)})
    )

    for folder in (torn, stranger, other_rank, half_state, tmp_path / "missing"):
        with pytest.raises(AdapterError):
            policy.load_version(folder)
        after = policy.snapshot()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before), folder.name
    policy.load_version(good)


# -- set-up


def test_a_missing_or_corrupt_model_folder_is_one_clear_sentence(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no model folder"):
        LocalPolicy(str(tmp_path / "nowhere"), rank=16, learning_rate=1e-4)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no config\.json"):
        LocalPolicy(str(tmp_path / "empty"), rank=16, learning_rate=1e-4)
    torn = shutil.copytree(tiny_model, tmp_path / "torn")
    weights = torn / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ConfigError, match="cannot be loaded"):
        LocalPolicy(str(torn), rank=16, learning_rate=1e-4)
    incomplete = shutil.copytree(tiny_model, tmp_path / "incomplete")
    tensors = safetensors.torch.load_file(incomplete / "model.safetensors")
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    safetensors.torch.save_file(tensors, incomplete / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match="incomplete"):
        LocalPolicy(str(incomplete), rank=16, learning_rate=1e-4)
    plain = shutil.copytree(tiny_model, tmp_path / "plain")
    (plain / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        LocalPolicy(str(plain), rank=16, learning_rate=1e-4)


def test_another_model_can_teach_if_it_speaks_the_same_tokens(tiny_model: Path, tmp_path: Path) -> None:
    teacher = make_tiny_model(tmp_path / "teacher", seed=5)
    policy = LocalPolicy(str(tiny_model), rank=2, teacher=str(teacher), device="cpu", learning_rate=1e-4)
    logits, _ = policy.response_logits([PROMPTS[0]], [RESPONSES[0]], Weights.TEACHER)
    reference = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32).eval()
    torch.testing.assert_close(
        logits[0], plain_logits(reference, PROMPTS[0], RESPONSES[0]), atol=1e-5, rtol=0
    )
    stranger = make_tiny_model(tmp_path / "stranger", vocabulary=400)
    with pytest.raises(ConfigError, match="another vocabulary"):
        LocalPolicy(str(tiny_model), rank=2, teacher=str(stranger), device="cpu", learning_rate=1e-4)
    alone = LocalPolicy(str(tiny_model), rank=2, device="cpu", learning_rate=1e-4)
    with pytest.raises(ConfigError, match="no teacher"):
        alone.response_logits([PROMPTS[0]], [RESPONSES[0]], Weights.TEACHER)


def test_a_half_precision_output_layer_gives_float32_logits_and_the_right_gradient() -> None:
    torch.manual_seed(0)
    weight = torch.randn(50, 8).to(torch.bfloat16)
    hidden = torch.randn(3, 8).to(torch.bfloat16).requires_grad_()
    logits = wide_linear(hidden, weight, None)
    exact = hidden.detach().double() @ weight.double().T
    torch.testing.assert_close(logits.double(), exact, atol=1e-5, rtol=0)
    upstream = torch.randn(3, 50)
    torch.autograd.backward(logits, upstream)
    assert hidden.grad is not None
    expected = (upstream.double() @ weight.double()).to(torch.bfloat16)
    torch.testing.assert_close(hidden.grad, expected, atol=0, rtol=1e-2)
    _WideLinear.ROWS, rows = 7, _WideLinear.ROWS
    try:
        again = wide_linear(hidden.detach().requires_grad_(), weight, None)
    finally:
        _WideLinear.ROWS = rows
    torch.testing.assert_close(again, logits, atol=1e-6, rtol=0)


def test_rendering_adds_the_generation_header_and_nothing_else(policy: LocalPolicy) -> None:
    ids = policy.render([{"role": "user", "content": "What is the capital of France?"}])
    text = policy.tokenizer.decode(ids)
    assert text == "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    assert policy.encode(text) == ids
    with pytest.raises(AlignmentError, match="chat template"):
        policy.render([{"role": "user", "content": "x", "tool_calls": [{"function": 3}]}])


# -- one device with others


def test_there_is_a_boundary_before_every_micro_batch_and_every_optimizer_step(policy: LocalPolicy) -> None:
    passed: list[str] = []
    policy.at_boundary = lambda: passed.append("here")
    policy.response_logprobs([[1, 2]], [[3]])
    assert len(passed) == 1
    logits, _ = policy.response_logits([[1, 2]], [[3]])
    assert len(passed) == 2
    logits.sum().backward()  # type: ignore[no-untyped-call]  # torch does not type it
    policy.apply_gradients()
    assert len(passed) == 3
    policy.sample([[1, 2]], max_tokens=1)
    assert len(passed) == 4


def test_leaving_the_device_and_coming_back_changes_nothing(policy: LocalPolicy) -> None:
    before, _ = policy.response_logprobs([[1, 2, 3]], [[4, 5]])
    policy.park()
    policy.unpark()
    after, _ = policy.response_logprobs([[1, 2, 3]], [[4, 5]])
    assert torch.equal(before, after)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_parked_policy_leaves_the_device_to_others(tiny_model: Path) -> None:
    policy = LocalPolicy(str(tiny_model), rank=4, learning_rate=1e-4)
    before, _ = policy.response_logprobs([[1, 2, 3]], [[4, 5]])
    held = torch.cuda.memory_allocated()
    policy.park()
    base = sum(p.numel() * p.element_size() for p in policy._frozen())
    assert torch.cuda.memory_allocated() <= held - base * 0.9
    policy.unpark()
    after, _ = policy.response_logprobs([[1, 2, 3]], [[4, 5]])
    assert torch.equal(before, after)


def test_four_bits_need_a_gpu_and_say_so(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="--quantize 4bit needs an NVIDIA GPU"):
        LocalPolicy(str(tiny_model), quantize=True, device="cpu", rank=16, learning_rate=1e-4)


def test_an_output_layer_held_in_float32_gives_the_logits_and_gradient_of_one_that_is_widened_each_time(
    policy: LocalPolicy,
) -> None:
    layer = torch.nn.Linear(64, 300, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    kept = policy._widened(layer.weight)
    assert kept is not None
    assert policy._widened(layer.weight) is kept
    found = []
    for work in (lambda h: wide_linear(h, layer.weight, None), lambda h: h.float() @ kept.T):
        hidden = torch.arange(3 * 64, dtype=torch.float32).reshape(3, 64).sin().bfloat16().requires_grad_()
        logits = work(hidden)
        torch.autograd.backward(logits.square().sum())
        found.append((logits.detach(), hidden.grad))
    (one, gradient), (other, same) = found
    torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(same, gradient)


def test_a_pass_with_a_gradient_is_short_on_a_cpu(policy: LocalPolicy) -> None:
    assert policy.memory.micro_tokens == MOST_ON_CPU
    assert policy.memory.longest > MOST_ON_CPU  # a longer turn has a pass of its own


def test_the_clock_counts_what_only_one_core_can_do_in_full_and_what_runs_beside_not_at_all(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spin() -> None:
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            pass

    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    began = policy.clock()
    beside = threading.Thread(target=spin)
    beside.start()
    spin()
    beside.join()
    assert policy.clock() - began == pytest.approx(0.2, abs=0.05)


def test_no_draw_gives_a_token_of_probability_zero() -> None:
    """The sum of a distribution may miss 1 by rounding; a draw between that sum and 1 must not fall behind the last token."""
    highest = torch.nextafter(torch.tensor([1.0]), torch.tensor([0.0]))
    missed = 0
    for count in range(2, 400):
        logits = torch.full((1, count + 1), -math.inf)
        logits[0, :count] = torch.linspace(0.0, 3.0, count)
        summed = torch.softmax(logits, dim=-1).cumsum(dim=-1)
        missed += int(summed[0, -1] <= highest[0])
        for draw in (highest, torch.zeros(1)):
            assert int(_drawn(logits, 1.0, draw)) < count
    assert missed  # or nothing was tried
