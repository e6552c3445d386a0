"""Architectures other than the built-in one: what is served is right, what cannot be is refused at start."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Phi3Config,
    Qwen3Config,
)

from serving.embedded.kv_cache import BatchKvCache
from serving.embedded.model import Model, default_threads, load_model
from store.errors import ConfigError

SHAPE: dict[str, Any] = {
    "vocab_size": 430,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
    "bos_token_id": None,
    "pad_token_id": 0,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SHAPE),
    "mistral, window 8": MistralConfig(**SHAPE, sliding_window=8),
    "gemma2, alternating window 8, soft caps": Gemma2Config(**SHAPE, sliding_window=8),
    "qwen3, second layer window 8": Qwen3Config(
        **SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "phi3": Phi3Config(**SHAPE),
    "gpt2": GPT2Config(
        vocab_size=430, n_positions=256, n_embd=32, n_layer=2, n_head=4, eos_token_id=2, bos_token_id=None
    ),
}


def make(config: Any, tiny_model: Path, folder: Path) -> Path:
    shutil.copytree(tiny_model, folder)
    (folder / "model.safetensors").unlink()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.data.mul_(4.0)
    model.to(torch.float32).save_pretrained(folder)
    return folder


def greedy_in_two_rows(model: Model, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Rows of different length, side by side, through the cache."""
    cache, rows = BatchKvCache(), [list(prompt) for prompt in prompts]
    longest = max(map(len, rows))
    padded = [row + [row[-1]] * (longest - len(row)) for row in rows]
    no_adapters = [None] * len(rows)
    logits = model.forward(cache, padded, [0] * len(rows), no_adapters, [len(row) - 1 for row in rows])
    for step in range(tokens):
        for row, best in zip(rows, logits.argmax(-1).tolist(), strict=True):
            row.append(best)
        if step < tokens - 1:
            starts = [len(row) - 1 for row in rows]
            logits = model.forward(cache, [[row[-1]] for row in rows], starts, no_adapters, [0] * len(rows))
    return [row[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)]


@pytest.mark.parametrize("name", CONFIGS)
def test_an_architecture_batches_to_what_it_says_alone_beyond_its_window(
    name: str, tiny_model: Path, tmp_path: Path
) -> None:
    model = load_model(str(make(CONFIGS[name], tiny_model, tmp_path / "model")), device="cpu")
    prompts = [list(range(30, 33)), list(range(100, 130))]
    wanted = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(20):
            with torch.no_grad():
                logits = model.network(input_ids=torch.tensor([ids]), use_cache=False).logits
            ids.append(int(logits[0, -1].argmax()))
        wanted.append(ids[len(prompt) :])
    assert wanted[0] != wanted[1]
    assert greedy_in_two_rows(model, prompts, 20) == wanted


def test_a_model_without_attention_is_refused_at_start(tiny_model: Path, tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=430, hidden_size=32, num_hidden_layers=2, eos_token_id=2, bos_token_id=2)
    folder = make(config, tiny_model, tmp_path / "model")
    with pytest.raises(ConfigError, match=r"MambaForCausalLM.*built-in engine.*Serve it with vLLM"):
        load_model(str(folder), device="cpu")


def test_a_context_beyond_the_models_own_is_refused(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="--max-model-len 4096 is above"):
        load_model(str(tiny_model), device="cpu", max_model_len=4096)
    assert load_model(str(tiny_model), device="cpu", max_model_len=100).max_model_len == 100


def test_a_device_that_is_not_there_is_refused(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="--device nonsense cannot be used"):
        load_model(str(tiny_model), device="nonsense")


def test_the_dtype_can_be_chosen_and_is_float32_for_small_models(tiny_model: Path) -> None:
    assert load_model(str(tiny_model), device="cpu").dtype == torch.float32
    assert load_model(str(tiny_model), device="cpu", dtype="bfloat16").dtype == torch.bfloat16


def test_tiny_models_run_on_one_thread() -> None:
    assert default_threads(4_000_000, 8) == 1
    assert default_threads(600_000_000, 8) == 8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_says_what_the_cpu_says(tiny_model: Path) -> None:
    prompts = [list(range(30, 33)), list(range(100, 130))]
    on_cpu = greedy_in_two_rows(load_model(str(tiny_model), device="cpu"), prompts, 20)
    assert greedy_in_two_rows(load_model(str(tiny_model), device="cuda"), prompts, 20) == on_cpu
