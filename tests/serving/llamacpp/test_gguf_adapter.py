"""A version's weights as GGUF: loaded by llama.cpp they do what peft does, and what cannot be converted is refused."""

from __future__ import annotations

import json
import math
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from serving.llamacpp.adapters import layout_of, load_adapter
from serving.llamacpp.gguf_adapter import ModelLayout, layout_of_folder, write_gguf_adapter
from serving.llamacpp.library import LlamaContext
from serving.llamacpp.model import GgufModel
from serving.peft_folder import CONFIG, WEIGHTS
from store.errors import AdapterError
from tests.tiny import make_tiny_adapter

IDS = list(range(5, 45))


@lru_cache(maxsize=8)
def reference_model(folder: Path, adapter: Path | None) -> Any:
    """Return the model of transformers and peft."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model if adapter is None else PeftModel.from_pretrained(model, adapter)


def reference(folder: Path, adapter: Path | None) -> torch.Tensor:
    """Return the log-probabilities [T, V] that transformers and peft compute."""
    with torch.no_grad():
        return torch.log_softmax(reference_model(folder, adapter)(torch.tensor([IDS])).logits[0].double(), -1)


def computed(model: GgufModel, adapter: Path | None) -> torch.Tensor:
    context = LlamaContext(model.weights, cells=256, sequences=2, batch=64, outputs=64, threads=1)
    loaded = None if adapter is None else load_adapter("a", adapter, model.weights)
    try:
        context.use_adapter(loaded and loaded.pointer)
        logits = context.decode([(0, 0, IDS, True)])
    finally:
        context.close()
        if loaded is not None:
            loaded.free()
    return torch.log_softmax(torch.from_numpy(logits).double(), -1)


def edited(source: Path, folder: Path, **config: object) -> Path:
    shutil.copytree(source, folder)
    found = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**found, **config}))
    return folder


@pytest.fixture(scope="module")
def adapter(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_adapter(tmp_path_factory.mktemp("adapter") / "one", folder, seed=3)


def test_the_model_computes_what_the_trainers_folder_does(folder: Path, model: GgufModel) -> None:
    assert (computed(model, None) - reference(folder, None)).abs().max() < 1e-4


def test_an_adapter_changes_the_model_as_peft_does(folder: Path, model: GgufModel, adapter: Path) -> None:
    wanted = reference(folder, adapter)
    assert (wanted - reference(folder, None)).abs().max() > 0.1
    assert (computed(model, adapter) - wanted).abs().max() < 1e-4


def test_the_scaling_of_rslora_and_of_alpha_are_kept(
    folder: Path, model: GgufModel, adapter: Path, tmp_path: Path
) -> None:
    scaled = edited(adapter, tmp_path / "scaled", use_rslora=True, lora_alpha=3)
    assert (computed(model, scaled) - reference(folder, scaled)).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_adapters_of_half_precision_are_read(
    folder: Path, model: GgufModel, adapter: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    half = edited(adapter, tmp_path / "half")
    save_file({key: value.to(dtype) for key, value in load_file(half / WEIGHTS).items()}, half / WEIGHTS)
    assert (computed(model, half) - reference(folder, half)).abs().max() < 1e-3


def test_the_layout_of_a_folder_is_that_of_the_file(folder: Path, model: GgufModel) -> None:
    assert layout_of_folder(folder) == layout_of(model.weights)


def test_what_cannot_be_served_is_refused_with_a_reason(folder: Path, adapter: Path, tmp_path: Path) -> None:
    layout = layout_of_folder(folder)
    file = tmp_path / "adapter.gguf"

    def refused(source: Path, reason: str, wanted: ModelLayout = layout) -> None:
        with pytest.raises(AdapterError, match=reason):
            write_gguf_adapter(source, file, wanted)

    refused(tmp_path, "is not an adapter folder")
    refused(edited(adapter, tmp_path / "dora", use_dora=True), "use_dora")
    refused(edited(adapter, tmp_path / "rank", r=5), "not of rank 5")
    unknown = ModelLayout(architecture="bloom", layers=2, heads=4, kv_heads=2)
    refused(adapter, "architecture bloom", unknown)
    tensors = load_file(adapter / WEIGHTS)
    for name, changed, reason in (
        ("elsewhere", {key.replace("q_proj", "z_proj"): value for key, value in tensors.items()}, "no layer"),
        (
            "half",
            {key: value for key, value in tensors.items() if "0.self_attn.k_proj.lora_A" not in key},
            "only one of",
        ),
        ("infinite", {key: value * math.inf for key, value in tensors.items()}, "not finite"),
        ("none", {}, "holds no weights"),
    ):
        wrong = edited(adapter, tmp_path / name)
        save_file({key: value.contiguous() for key, value in changed.items()}, wrong / WEIGHTS)
        refused(wrong, reason)
    torn = edited(adapter, tmp_path / "torn")
    (torn / WEIGHTS).write_bytes((torn / WEIGHTS).read_bytes()[:500])
    refused(torn, "cannot be read")


def test_an_adapter_of_another_size_is_refused_by_the_library(
    folder: Path, model: GgufModel, adapter: Path, tmp_path: Path
) -> None:
    wide = edited(adapter, tmp_path / "wide")
    tensors = load_file(wide / WEIGHTS)
    save_file(
        {key: torch.cat([value, value], 1) if "lora_A" in key else value for key, value in tensors.items()},
        wide / WEIGHTS,
    )
    with pytest.raises(AdapterError, match="incorrect shape"):
        load_adapter("wide", wide, model.weights)
    assert numpy.isfinite(computed(model, None).numpy()).all()
