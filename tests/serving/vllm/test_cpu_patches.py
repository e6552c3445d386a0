"""The patches of vLLM on CPUs, in a separate process as in vLLM: rows without an adapter get no adapter output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from serving.vllm.environment import CPU_PATCHES

#: As vLLM 0.32 has it, as far as it matters: a row's adapter is looked up by its index, whatever that is.
OPS = """
def bgmv_shrink(inputs, lora_b_weights, output_tensor, lora_indices_tensor, scaling=1.0):
    output_tensor[:] = scaling * (lora_b_weights[lora_indices_tensor] * inputs[:, None, :]).sum(-1)
def bgmv_expand(inputs, lora_b_weights, output_tensor, lora_indices_tensor, add_inputs=True):
    output_tensor[:] += (lora_b_weights[lora_indices_tensor] * inputs[:, None, :]).sum(-1)
bgmv_expand_slice = bgmv_expand
"""
USE = """
import torch
from vllm.lora.ops.torch_ops import bgmv_expand, bgmv_shrink
x, w = torch.ones(3, 4), torch.arange(2.0)[:, None, None].add(1).expand(2, 2, 4)
index = torch.tensor([-1, 0, 1])
small, out = torch.full((3, 2), 9.0), torch.full((3, 2), 0.5)
bgmv_shrink(x, w, small, index, 1.0)
bgmv_expand(x, w, out, index, add_inputs=True)
print(small.tolist(), out.tolist(), index.tolist())
"""


def test_rows_of_the_base_model_are_left_alone(tmp_path: Path) -> None:
    package = tmp_path / "vllm" / "lora" / "ops" / "torch_ops"
    package.mkdir(parents=True)
    for folder in (tmp_path / "vllm", tmp_path / "vllm/lora", tmp_path / "vllm/lora/ops"):
        (folder / "__init__.py").touch()
    (package / "lora_ops.py").write_text(OPS)
    (package / "__init__.py").write_text(
        "from vllm.lora.ops.torch_ops.lora_ops import bgmv_expand, bgmv_shrink\n"
    )

    def use(path: str) -> str:
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", USE], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    rows = "[[{0}, {0}], [4.0, 4.0], [8.0, 8.0]] [[{1}, {1}], [4.5, 4.5], [8.5, 8.5]] [-1, 0, 1]"
    assert use(str(tmp_path)) == rows.format("8.0", "8.5")  # the trap: the last adapter's
    assert use(f"{CPU_PATCHES}:{tmp_path}") == rows.format("0.0", "0.5")
