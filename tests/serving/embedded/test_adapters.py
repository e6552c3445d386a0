"""Reading adapter folders, and applying several adapters to one batch as peft applies each alone."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from serving.embedded.adapters import Adapter, AdapterSelector, read_adapter
from store.errors import AdapterError

# peft still asks transformers by an old attribute name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@pytest.fixture
def switch(tiny_model: Path) -> tuple[Any, AdapterSelector]:
    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    return model, AdapterSelector(model)


def read(switch: AdapterSelector, folder: Path, *, max_rank: int = 64) -> Adapter:
    return read_adapter("a", folder, switch.modules, max_rank=max_rank)


def logits_by_peft(base: Path, adapter: Path | None, ids: torch.Tensor) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(base).eval()
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).eval()
    with torch.no_grad():
        logits: torch.Tensor = model(ids).logits
    return logits


def test_a_mixed_batch_gives_each_row_what_peft_gives_it_alone(
    switch: tuple[Any, AdapterSelector], tiny_model: Path, tiny_adapters: tuple[Path, Path]
) -> None:
    model, loras = switch
    one, two = (read(loras, folder) for folder in tiny_adapters)
    ids = torch.arange(20).view(1, 20) + 100
    alone = [logits_by_peft(tiny_model, folder, ids) for folder in (None, *tiny_adapters)]
    assert (alone[0] - alone[1]).abs().max() > 0.1, "the adapter must matter for this test to mean something"
    base, first, second = alone
    for rows, wanted in (
        ((None, one, two, one), (base, first, second, first)),
        ((one, one), (first, first)),
        ((None, None), (base, base)),
        ((two, None), (second, base)),
    ):
        loras.activate(rows)
        with torch.no_grad():
            got = model(ids.expand(len(rows), -1)).logits
        for row, expected in enumerate(wanted):
            torch.testing.assert_close(got[row : row + 1], expected, atol=2e-5, rtol=1e-5)


def test_rank_stabilised_scaling_is_applied(
    switch: tuple[Any, AdapterSelector], tiny_model: Path, tiny_adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    model, loras = switch
    folder = shutil.copytree(tiny_adapters[0], tmp_path / "rs")
    edit_config(folder, use_rslora=True)
    ids = torch.arange(20).view(1, 20) + 100
    loras.activate([read(loras, folder)])
    with torch.no_grad():
        torch.testing.assert_close(
            model(ids).logits, logits_by_peft(tiny_model, folder, ids), atol=2e-5, rtol=1e-5
        )


def test_an_adapter_without_users_leaves_memory(
    switch: tuple[Any, AdapterSelector], tiny_adapters: tuple[Path, Path]
) -> None:
    _, loras = switch
    one, two = (read(loras, folder) for folder in tiny_adapters)
    loras.activate([one, two])
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is not None
    loras.retain_only([two])
    gc.collect()
    assert gone() is None


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "adapter_model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


def first_a(weights: dict[str, torch.Tensor]) -> str:
    return next(key for key in weights if "lora_A" in key)


def rename_module(weights: dict[str, torch.Tensor]) -> None:
    for key in [key for key in weights if "layers.1.mlp.up_proj" in key]:
        weights[key.replace("layers.1", "layers.9")] = weights.pop(key)


def wrong_shape(weights: dict[str, torch.Tensor]) -> None:
    weights[first_a(weights)] = torch.zeros(4, 3)


def not_finite(weights: dict[str, torch.Tensor]) -> None:
    weights[first_a(weights)][0, 0] = float("nan")


BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing folder": (shutil.rmtree, "no adapter_config.json"),
    "no weights": (lambda f: (f / "adapter_model.safetensors").unlink(), "no adapter_model.safetensors"),
    "torn weights": (
        lambda f: (f / "adapter_model.safetensors").write_bytes(
            (f / "adapter_model.safetensors").read_bytes()[:-100]
        ),
        "cannot be read",
    ),
    "torn config": (lambda f: (f / "adapter_config.json").write_text("{"), "cannot be read"),
    "not LoRA": (lambda f: edit_config(f, peft_type="IA3"), "only LoRA"),
    "no rank": (lambda f: edit_config(f, r=None), "no usable r"),
    "dora": (lambda f: edit_config(f, use_dora=True), "uses use_dora"),
    "bias": (lambda f: edit_config(f, bias="all"), "uses bias"),
    "rank pattern": (lambda f: edit_config(f, rank_pattern={"q_proj": 2}), "uses rank_pattern"),
    "other model": (lambda f: edit_weights(f, rename_module), "of another model"),
    "wrong shape": (lambda f: edit_weights(f, wrong_shape), "has shapes (4, 3)"),
    "not finite": (lambda f: edit_weights(f, not_finite), "not finite"),
    "half a pair": (lambda f: edit_weights(f, lambda w: w.pop(first_a(w))), "only one of"),
    "nothing inside": (lambda f: edit_weights(f, dict.clear), "holds no weights"),
    "strange key": (
        lambda f: edit_weights(f, lambda w: w.update({"base_model.model.x.weight": torch.ones(1)})),
        "is not the weight of a linear layer's LoRA",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_folder_that_cannot_be_served_says_why(
    name: str, switch: tuple[Any, AdapterSelector], tiny_adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    break_it, reason = BREAKS[name]
    folder = shutil.copytree(tiny_adapters[0], tmp_path / "broken")
    break_it(folder)
    with pytest.raises(AdapterError) as caught:
        read(switch[1], folder)
    assert reason in str(caught.value)


def test_a_rank_above_the_limit_is_refused(
    switch: tuple[Any, AdapterSelector], tiny_adapters: tuple[Path, Path]
) -> None:
    with pytest.raises(AdapterError, match="rank 8 is above"):
        read(switch[1], tiny_adapters[1], max_rank=4)
