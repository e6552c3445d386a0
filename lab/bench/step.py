"""Time and memory of a training step against bare torch on the same tokens: `python -m lab.bench.step [--model NAME | --shape 0.6b] [...]`.

Bare is what a hand-written loop would do: transformers + peft, one padded forward with labels, backward, clip, AdamW. Ours reads
the same sequences for the trainer's, the base model's and the teacher's distributions first, takes its optimizer steps inside
a trust region, and measures once more. Both are timed alternately in one process, so that what else the machine does hits
both; the medians and their ratio are printed as JSON. `--shape` makes a model of random weights in Qwen3's form: `0.6b` and `8b` in
the sizes of the published ones (8b needs a GPU), `tiny` for tries, with a vocabulary that counts as large.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from lab.models import TOY
from store.settings import read_settings
from trainer.advantages import Streams
from trainer.batch import Sample
from trainer.policy import FLOAT32_BELOW, LocalPolicy
from trainer.step import StepPlan, train

GIB = 1 << 30

#: Of the published configurations; what is not here is Qwen3's default.
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "vocab_size": 20_000, "tie_word_embeddings": True,
    },
    "0.6b": {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151_936, "tie_word_embeddings": True,
    },
    "8b": {
        "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "tie_word_embeddings": False,
    },
}  # fmt: skip


def make_model(folder: Path, shape: str) -> Path:
    """Write a model of random weights with the test model's tokenizer; gives the folder back."""
    config = Qwen3Config(**SHAPES[shape], max_position_embeddings=40_960)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = Qwen3ForCausalLM._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(TOY).save_pretrained(folder)
    return folder


def make_samples(count: int, prompt: int, completion: int, vocabulary: int) -> list[Sample]:
    """Random sequences, every one with a verdict and a teacher."""
    rng = random.Random(0)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocabulary) for _ in range(length))

    samples = []
    for i in range(count):
        question, reply = ids(prompt), ids(completion)
        samples.append(
            Sample(
                turn_id=f"t{i}",
                prompt_ids=question,
                completion_ids=reply,
                sampling_logprobs=None,
                teacher_prompt_ids=(*question, *ids(24)),
                streams=Streams(
                    advantages=(0.3,) * completion,
                    advantage_mask=(True,) * completion,
                    directive_weight=1.0,
                ),
            )
        )
    return samples


def bare_step(model: str, rank: int, samples: list[Sample]) -> Callable[[], None]:
    """A plain cross-entropy LoRA step on the same prompt and completion tokens."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype="auto", local_files_only=True)
    if sum(p.numel() for p in network.parameters()) < FLOAT32_BELOW:
        network = network.float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers for a renamed property
        lora = get_peft_model(
            network, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", lora_dropout=0.0)
        )
    lora.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    parameters = [p for p in lora.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.0, fused=True)
    rows = [[*s.prompt_ids, *s.completion_ids] for s in samples]
    ids = torch.tensor(rows, device=lora.device)
    labels = ids.clone()
    labels[:, : len(samples[0].prompt_ids)] = -100

    def step() -> None:
        loss: Any = lora(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default=str(TOY))
    parser.add_argument("--shape", choices=SHAPES, help="a model of random weights instead")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=48, help="prompt tokens")
    parser.add_argument("--completion", type=int, default=48, help="completion tokens")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with TemporaryDirectory(prefix="patina-step-") as folder:
        if given.shape:
            given.model = str(make_model(Path(folder), given.shape))
        print(json.dumps(measure(given), indent=1))


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Time all contenders; returns what is printed."""
    on_gpu = torch.cuda.is_available()
    policy = LocalPolicy(given.model, rank=given.rank, learning_rate=1e-4)
    samples = make_samples(given.batch, given.prompt, given.completion, policy.vocabulary_size)
    bare = bare_step(given.model, given.rank, samples)

    def ours(steps: int) -> Callable[[], None]:
        plan = replace(
            StepPlan.of(read_settings({"method": "combine"})),
            steps_per_batch=steps, resample=False, max_kl_step=1e9, kl_target=math.inf,
        )  # fmt: skip
        return lambda: void(train(policy, samples, plan))

    contenders = {"bare": bare, "ours_1_step": ours(1), "ours_2_steps": ours(2)}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    peaks: dict[str, float] = dict.fromkeys(contenders, 0.0)
    for round_number in range(given.rounds + 1):
        for name, work in contenders.items():
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            started = time.perf_counter()
            work()
            if on_gpu:
                torch.cuda.synchronize()
                peaks[name] = max(peaks[name], torch.cuda.max_memory_allocated() / GIB)
            if round_number:  # the first round warms up
                times[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        **vars(given),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "parameters": policy.parameters,
        "median_s": {name: round(value, 4) for name, value in medians.items()},
        "ratio_1_step": round(medians["ours_1_step"] / medians["bare"], 2),
        "ratio_2_steps_per_step": round(medians["ours_2_steps"] / medians["bare"] / 2, 2),
        # on the device, both models on it: ours and the bare one
        "peak_gib": {name: round(value, 2) for name, value in peaks.items()} if on_gpu else None,
        "process_peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20), 2),
    }


def void(_: object) -> None:
    """Drop a result."""


if __name__ == "__main__":
    main()
