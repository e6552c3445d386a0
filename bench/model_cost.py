"""What a version costs with real models: seconds and peak memory of serving, teaching, stepping and the gate.

Two random Qwen3 models are made in a temporary folder: 70 M parameters with a vocabulary of 32 k, and .5 B with one of 152 k. Their tokenizer
is a byte-level BPE trained on the text of this repository; ids beyond it are padding of the embedding. Nothing is learnt here; random
weights cost what trained ones do, but for replies: those of a random model never end.

    python -m bench.model_cost [--models 70m 0.5b] [--threads N] [--budget-s S]

Each model runs in a process of its own, so that peak memory is its own. Seconds are wall clock; "processor" is this process alone, for a
machine that does other work beside.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from models import BUILTIN

R = TypeVar("R")

#: name -> configuration of Qwen3. The second has the form of Qwen3-0.6B.
MODELS: dict[str, dict[str, int]] = {
    "70m": {
        "vocab_size": 32_000,
        "hidden_size": 640,
        "intermediate_size": 1_792,
        "num_hidden_layers": 10,
        "num_attention_heads": 10,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    "0.5b": {
        "vocab_size": 151_936,
        "hidden_size": 1_024,
        "intermediate_size": 2_816,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 64,
    },
}
#: Questions and reactions.
_ASKED = (
    "What is the capital of France?",
    "How do I sort a list in Python?",
    "Who wrote Faust?",
    "Why is the sky blue?",
)
_FEEDBACK = ("Shorter, please.", "No emoji, please.", "That was far too long.", "Please answer in Spanish.")
#: Tokens of a reply.
_REPLY = 64


def texts() -> Iterator[str]:
    """The text of this repository's documentation and source."""
    root = Path(__file__).resolve().parent.parent
    for pattern in ("*.md", "docs/*.md", "*/*.py", "tests/*/*.py"):
        for path in sorted(root.glob(pattern)):
            yield from path.read_text(encoding="utf-8").split("\n\n")


def make_model(name: str, folder: Path) -> int:
    """Write a random model with a tokenizer; returns its number of parameters."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    sizes = MODELS[name]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts(),
        trainers.BpeTrainer(
            vocab_size=min(32_000, sizes["vocab_size"]),
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = (BUILTIN.parent / "chat_template.jinja").read_text(encoding="utf-8")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        **sizes,
        max_position_embeddings=40_960,
        tie_word_embeddings=True,
        eos_token_id=fast.eos_token_id,
        bos_token_id=None,
        pad_token_id=fast.pad_token_id,
        dtype="bfloat16",
    )
    network = Qwen3ForCausalLM(config).to(torch.bfloat16)
    network.save_pretrained(folder)
    return sum(parameter.numel() for parameter in network.parameters())


def measure(folder: Path, threads: int, budget_s: float) -> Iterator[dict[str, Any]]:
    """A version from four complaints, phase by phase."""
    import torch

    torch.set_num_threads(threads)
    from evals.in_process import InProcessLearner
    from store.settings import read_settings
    from trainer import hint_selection, playbook, step

    # Random weights act on no hint, and the trainer would refuse each: here none has to have an effect.
    for module, bound in (
        (hint_selection, "LEAST_EFFECT"),
        (playbook, "LEAST_EFFECT"),
        (step, "MIN_SHIFT"),
        (step, "MIN_OVERLAP"),
    ):
        setattr(module, bound, 0.0)

    def phase(name: str, work: Callable[[], R]) -> tuple[R, dict[str, Any]]:
        wall, processor = time.perf_counter(), time.process_time()
        result = work()
        return result, {
            "phase": name,
            "seconds": round(time.perf_counter() - wall, 1),
            "processor": round(time.process_time() - processor, 1),
            "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        }

    with tempfile.TemporaryDirectory() as home:
        settings = read_settings({"model_name": str(folder), "home": home})
        learner, line = phase("load", lambda: InProcessLearner(settings, budget_s=budget_s))
        yield line
        policy = learner.policy
        speed = policy.measure_speed()
        yield {
            "phase": "plan",
            "notes": list(learner.notes),
            "ms_a_token": round(1e3 * speed.read_s, 3),
            "ms_logits": round(1e3 * speed.logits_s, 3),
            "ms_decode": round(1e3 * speed.step_s, 1),
            "ms_decode_row": round(1e3 * speed.row_s, 2),
            "checkpointing": policy.memory.checkpointing,
            "micro_tokens": policy.memory.micro_tokens,
            "longest": policy.memory.longest,
        }
        prompts = [policy.render([{"role": "user", "content": text}]) for text in _ASKED]
        replies, line = phase("serve", lambda: policy.sample(prompts, max_tokens=_REPLY, seed=1))
        yield line
        for number, (asked, prompt, reply, reaction) in enumerate(
            zip(_ASKED, prompts, replies, _FEEDBACK, strict=True)
        ):
            turn = learner.record_reply(
                session=str(number),
                messages=[{"role": "user", "content": asked}],
                prompt_ids=prompt,
                reply=reply,
            )
            learner.add_reaction(turn, reaction)
        attempt, line = phase("version", learner.train)
        assert attempt is not None
        outcome = attempt.outcome
        shown = (
            "teach_s",
            "train_s",
            "gate_s",
            "estimate_s",
            "kl_step",
            "step_scale",
            "optimizer_steps",
            "anchors",
            "contexts",
        )
        yield (
            line
            | {key: round(float(outcome.metrics[key]), 3) for key in shown if key in outcome.metrics}
            | {
                "samples": outcome.metrics.get("turns"),
                "refused": [f"{one.reason.value}: {one.detail}" for one in outcome.refused.values()],
                "rejected": len(outcome.rejected),
            }
        )


def main() -> int:
    """Measure each model in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget-s", type=float, default=150.0, help="seconds that a version may take")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder:
        for line in measure(Path(arguments.folder), arguments.threads, arguments.budget_s):
            print(json.dumps(line), flush=True)
        return 0
    status = 0
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            parameters = make_model(name, Path(folder))
            print(json.dumps({"model": name, "parameters": parameters}), flush=True)
            command = [sys.executable, "-m", "bench.model_cost", "--folder", folder]
            options = ["--threads", str(arguments.threads), "--budget-s", str(arguments.budget_s)]
            status |= subprocess.run([*command, *options], check=False).returncode
    return status


if __name__ == "__main__":
    raise SystemExit(main())
