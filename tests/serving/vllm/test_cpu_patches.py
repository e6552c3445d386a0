"""The patches of vLLM on CPUs, in a separate process as in vLLM: rows without an adapter get no adapter output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
#: The output layer over three rows of a prompt, with the indices of a batch's two samples.
PROMPT = """
import torch
from vllm.lora.ops.torch_ops import bgmv_expand, bgmv_shrink
x, w = torch.ones(3, 4), torch.ones(2, 2, 4)
small, out = torch.zeros(3, 2), torch.full((3, 2), 0.5)
bgmv_shrink(x, w, small, torch.tensor([0, 1]), 1.0)
bgmv_expand(x, w, out, torch.tensor([0, 1]), add_inputs=True)
print(small.tolist(), out.tolist())
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with the part of vLLM that is patched."""
    folder = tmp_path / "vllm" / "lora" / "ops" / "torch_ops"
    folder.mkdir(parents=True)
    for one in (tmp_path / "vllm", tmp_path / "vllm/lora", tmp_path / "vllm/lora/ops"):
        (one / "__init__.py").touch()
    (folder / "lora_ops.py").write_text(OPS)
    (folder / "__init__.py").write_text(
        "from vllm.lora.ops.torch_ops.lora_ops import bgmv_expand, bgmv_shrink\n"
    )
    return tmp_path


def use(program: str, path: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )


def test_rows_of_the_base_model_are_left_alone(package: Path) -> None:
    rows = "[[{0}, {0}], [4.0, 4.0], [8.0, 8.0]] [[{1}, {1}], [4.5, 4.5], [8.5, 8.5]] [-1, 0, 1]"
    # the trap: the last adapter's
    assert use(USE, str(package)).stdout.strip() == rows.format("8.0", "8.5")
    assert use(USE, f"{CPU_PATCHES}:{package}").stdout.strip() == rows.format("0.0", "0.5")


def test_rows_of_a_prompt_with_the_indices_of_other_rows_are_left_alone(package: Path) -> None:
    unpatched = use(PROMPT, str(package))
    assert (unpatched.returncode, unpatched.stdout) == (1, "")  # the trap: the engine dies
    rows = "[[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]] [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]"
    assert use(PROMPT, f"{CPU_PATCHES}:{package}").stdout.strip() == rows
