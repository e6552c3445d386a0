"""What training takes in memory, and what of it is decided by how much there is: micro-batch, longest turn, gradient checkpointing.

    resident    base model; adapter, gradient and two moments in float32; moving average; while a step runs, copies of weights and average
                at its start and end (on an accelerator these and snapshots lie in main memory)
    by token    activations that the backward pass reads: all of them, or with gradient checkpointing one tensor a layer and the insides of
                one layer at a time
    by pass     logits of some positions at a time (`trainer.policy`), a few such tensors at once

Sizes of activations are those of a gated decoder layer with LoRA on every linear layer; attention is taken as computed in blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

#: Of what is free, this share is planned with: fragmentation, other processes, tensors without an estimate.
USABLE = 0.5
#: Padded tokens of a pass: never more, and with checkpointing where it would be fewer.
MOST_TOKENS, CHECKPOINT_BELOW = 8_192, 2_048
#: On a CPU a longer pass is hardly faster a token, and with 135 million parameters each 512 tokens take 1 GB.
MOST_ON_CPU = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a model: layers, hidden size, size of the gated layer, width of all heads' queries, keys and values together, bytes of a number."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    item_bytes: int
    lora_parameters: int

    @property
    def layer_bytes(self) -> int:
        """Activations of a token in one layer: inputs of norms and linear layers (norms also in float32), and of what is multiplied."""
        widths = 8 * self.hidden + 5 * self.intermediate + 5 * self.heads
        return widths * self.item_bytes + 4 * 4 * self.hidden

    def token_bytes(self, *, checkpointing: bool) -> int:
        """Activations of a token that live until the backward pass."""
        if checkpointing:
            return self.layers * self.hidden * self.item_bytes + self.layer_bytes
        return self.layers * self.layer_bytes

    @property
    def resident_bytes(self) -> int:
        """Gradient, two moments, and the weights and averages of a step's start and end; those that are there already not counted."""
        return 4 * self.lora_parameters * 7


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMemoryPlan:
    """What follows from the memory there is.

    Attributes:
        checkpointing: recompute layers in the backward pass of every pass.
        whole_tokens: padded tokens up to which a pass needs no recomputing; a longer one, of a long turn alone, recomputes.
        micro_tokens: padded tokens of a pass with a gradient.
        longest: tokens of the longest text that can be trained on.
    """

    checkpointing: bool
    whole_tokens: int
    micro_tokens: int
    longest: int


def plan_memory(sizes: Sizes, free_bytes: int) -> TrainingMemoryPlan:
    """Plan with so many free bytes, the base model and its adapter being loaded."""
    room = max(0, int(USABLE * free_bytes) - sizes.resident_bytes)
    whole = room // sizes.token_bytes(checkpointing=False)
    recomputed = room // sizes.token_bytes(checkpointing=True)
    checkpointing = whole < CHECKPOINT_BELOW
    fitting = recomputed if checkpointing else whole
    return TrainingMemoryPlan(
        checkpointing=checkpointing,
        whole_tokens=whole,
        micro_tokens=max(1, min(MOST_TOKENS, fitting)),
        longest=max(1, recomputed),
    )


def free_bytes(device: torch.device) -> int | None:
    """Free memory of the device; None: unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    path = Path("/proc/meminfo")
    if device.type != "cpu" or not path.exists():
        return None
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
