"""Memory plan of one GPU for engine and trainer: whether both fit, and each one's share. Sans-IO arithmetic.

`share`: both at once, each within its share. `sleep`: one after the other; between its steps, the trainer keeps its base model in main memory, and only
LoRA weights with their optimizer (and a quantized base) on the GPU.

The numbers are upper estimates on purpose: an engine with too little cache is slower under load, one with too much makes the trainer's step fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from serving.vllm.model_facts import ModelFacts

GIB = 1 << 30
#: Share of the GPU's memory that stays free for fragmentation and other processes.
MARGIN = 0.05
#: CUDA context, graphs and activations of the engine; context and libraries of the trainer.
ENGINE_OVERHEAD, TRAINER_OVERHEAD = 2 * GIB, 1 * GIB
#: Smallest useful engine: this many sequences of this many tokens at once.
WORKING_SEQUENCES, WORKING_TOKENS = 8, 4096
#: Tokens of one micro-batch of the trainer.
STEP_TOKENS = 8192
#: Per LoRA parameter: float32 weight, gradient, two moments and the moving average.
LORA_BYTES = 20
#: A parameter in NF4, with the scales of its blocks and the layers that are not quantized.
QUANTIZED_BYTES = 0.75
#: Response positions that are normalised at a time, and their copies in float32: student, teacher, their log-softmax, gradients.
LOGIT_ROWS, LOGIT_COPIES = 256, 8
#: The engine's share without a trainer on the GPU.
EXCLUSIVE_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmMemoryPlan:
    """How one GPU is shared.

    Attributes:
        share: the engine's share of the memory (`--gpu-memory-utilization`).
        mode: both at once ("share"), or one after the other ("sleep").
        engine_bytes, trainer_bytes: minimum of each; the trainer's for a step, or with "sleep" between its steps.
        fits: whether both fit in this mode.
        why: the arithmetic in one sentence, for display.
    """

    share: float
    engine_bytes: int
    trainer_bytes: int
    fits: bool
    why: str
    mode: Literal["share", "sleep"] = "share"


def engine_bytes(facts: ModelFacts, *, rank: int, slots: int) -> int:
    """Return the engine's minimum: weights, adapter slots, a working cache, overhead."""
    cache = facts.kv_bytes_per_token * max(
        min(facts.context, WORKING_TOKENS) * WORKING_SEQUENCES, min(facts.context, WORKING_TOKENS)
    )
    return (
        facts.weight_bytes + slots * facts.lora_parameters(rank) * facts.item_bytes + cache + ENGINE_OVERHEAD
    )


def resident_bytes(facts: ModelFacts, *, rank: int, is_quantized: bool = False) -> int:
    """Return what the trainer keeps on the GPU between steps: LoRA with its optimizer, its libraries, a quantized base."""
    base = _base_bytes(facts, is_quantized) if is_quantized else 0
    return base + facts.lora_parameters(rank) * LORA_BYTES + TRAINER_OVERHEAD


def _base_bytes(facts: ModelFacts, is_quantized: bool) -> int:
    return int(facts.parameters * QUANTIZED_BYTES) if is_quantized else facts.weight_bytes


def trainer_bytes(
    facts: ModelFacts, *, rank: int, tokens: int = STEP_TOKENS, is_quantized: bool = False
) -> int:
    """Return the memory of a step: base, LoRA with its optimizer, checkpointed activations, the logits of the current positions."""
    item = facts.item_bytes
    boundaries = tokens * facts.hidden * facts.layers * item
    # Within the one recomputed layer: inputs and outputs of attention and MLP, and their gradients.
    layer = 2 * tokens * (8 * facts.hidden + 4 * facts.intermediate) * item
    logits = LOGIT_ROWS * facts.vocabulary * 4 * LOGIT_COPIES
    lora = facts.lora_parameters(rank) * LORA_BYTES
    return _base_bytes(facts, is_quantized) + lora + TRAINER_OVERHEAD + boundaries + layer + logits


def plan_gpu_memory(
    facts: ModelFacts,
    *,
    total: int,
    rank: int,
    engine_rank: int,
    slots: int,
    wanted: Literal["auto", "share", "sleep"] = "auto",
    is_quantized: bool = False,
) -> VllmMemoryPlan:
    """Plan the sharing of ``total`` bytes: both at once if that fits, one after the other if only that does."""
    sizes = {"total": total, "rank": rank, "engine_rank": engine_rank, "slots": slots}
    share = plan_memory_sharing(facts, **sizes, is_quantized=is_quantized)
    if wanted == "share" or (wanted == "auto" and share.fits):
        return share
    turns = plan_time_sharing(facts, **sizes, is_quantized=is_quantized)
    return turns if wanted == "sleep" or turns.fits else share


def plan_time_sharing(
    facts: ModelFacts, *, total: int, rank: int, engine_rank: int, slots: int, is_quantized: bool = False
) -> VllmMemoryPlan:
    """Plan for one after the other: the engine gets what the trainer does not keep; a step must fit while the engine sleeps."""
    engine = engine_bytes(facts, rank=engine_rank, slots=slots)
    resident = resident_bytes(facts, rank=rank, is_quantized=is_quantized)
    step = trainer_bytes(facts, rank=rank, is_quantized=is_quantized)
    usable = int(total * (1 - MARGIN))
    remaining = usable - resident
    # A sleeping engine keeps its context and its graphs.
    fits = remaining >= engine and step + ENGINE_OVERHEAD <= usable
    share = min(EXCLUSIVE_SHARE, remaining / total) if fits else EXCLUSIVE_SHARE
    why = (
        f"{_gib(total)} of memory, alternating: the trainer keeps {_gib(resident)} between its steps and needs {_gib(step)} for a step,"
        f" the engine at least {_gib(engine)} of the {_gib(max(remaining, 0))} that remain: "
        + ("each fits" if fits else "they do not fit")
    )
    return VllmMemoryPlan(
        share=int(share * 100) / 100,
        engine_bytes=engine,
        trainer_bytes=resident,
        fits=fits,
        why=why,
        mode="sleep",
    )


def plan_memory_sharing(
    facts: ModelFacts, *, total: int, rank: int, engine_rank: int, slots: int, is_quantized: bool = False
) -> VllmMemoryPlan:
    """Plan for both at once: the trainer gets the memory of a step, the engine the rest.

    If both do not fit, the share is that of the engine alone, and `VllmMemoryPlan.fits` is False.
    """
    engine = engine_bytes(facts, rank=engine_rank, slots=slots)
    trainer = trainer_bytes(facts, rank=rank, is_quantized=is_quantized)
    remaining = int(total * (1 - MARGIN)) - trainer
    fits = remaining >= engine
    share = min(EXCLUSIVE_SHARE, remaining / total) if fits else EXCLUSIVE_SHARE
    why = (
        f"{_gib(total)} of memory: a training step needs about {_gib(trainer)}, the engine at least {_gib(engine)}"
        f" of the {_gib(max(remaining, 0))} that remain: "
        + ("both fit" if fits else "they do not fit together")
    )
    # Rounded down: the trainer's part must be free.
    return VllmMemoryPlan(
        share=int(share * 100) / 100, engine_bytes=engine, trainer_bytes=trainer, fits=fits, why=why
    )


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
