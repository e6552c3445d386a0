"""One GPU for the engine and the trainer: does it fit, and who gets how much. Sans-IO arithmetic.

`share`: both at once, each within its part. `sleep`: by turns; between its steps the trainer keeps its base model in main memory, and on
the device only LoRA weights with their optimizer (and a quantized base).

The numbers are upper estimates on purpose: an engine that gets a little less room for its cache is slower under load, one that gets too
much takes the trainer's step down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from serving.vllm.facts import ModelFacts

GIB = 1 << 30
#: Of the device's memory, for what nobody planned: fragmentation, other processes' contexts.
MARGIN = 0.05
#: CUDA context, graphs and activations of the engine; context and libraries of the trainer.
ENGINE_OVERHEAD, TRAINER_OVERHEAD = 2 * GIB, 1 * GIB
#: What the engine needs at the least to be worth starting: so many sequences of so many tokens at once.
WORKING_SEQUENCES, WORKING_TOKENS = 8, 4096
#: Tokens of one micro-batch of the trainer.
STEP_TOKENS = 8192
#: Per LoRA parameter: float32 weight, gradient, two moments and the moving average.
LORA_BYTES = 20
#: A parameter in NF4, with the scales of its blocks and the layers that are not quantized.
QUANTIZED_BYTES = 0.75
#: Response positions that are normalised at a time, and what is held of each in float32: student, teacher, their log-softmax, gradients.
LOGIT_ROWS, LOGIT_COPIES = 256, 8
#: Without a trainer on the device the engine takes what it usually takes.
ALONE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How one device is shared.

    Attributes:
        share: of the device's memory for the engine (`--gpu-memory-utilization`).
        mode: both at once, or by turns.
        engine_bytes, trainer_bytes: what each needs at the least; the trainer's for a step, or by turns between its steps.
        fits: in this mode.
        why: the arithmetic in one sentence, for people.
    """

    share: float
    engine_bytes: int
    trainer_bytes: int
    fits: bool
    why: str
    mode: Literal["share", "sleep"] = "share"


def engine_bytes(facts: ModelFacts, *, rank: int, slots: int) -> int:
    """Return what the engine needs at the least: weights, adapter slots, a working cache, overhead."""
    cache = facts.kv_bytes_per_token * max(
        min(facts.context, WORKING_TOKENS) * WORKING_SEQUENCES, min(facts.context, WORKING_TOKENS)
    )
    return (
        facts.weight_bytes + slots * facts.lora_parameters(rank) * facts.item_bytes + cache + ENGINE_OVERHEAD
    )


def resident_bytes(facts: ModelFacts, *, rank: int, is_quantized: bool = False) -> int:
    """Return what the trainer keeps on the device between its turns: LoRA with its optimizer, its libraries, a quantized base."""
    base = _base_bytes(facts, is_quantized) if is_quantized else 0
    return base + facts.lora_parameters(rank) * LORA_BYTES + TRAINER_OVERHEAD


def _base_bytes(facts: ModelFacts, is_quantized: bool) -> int:
    return int(facts.parameters * QUANTIZED_BYTES) if is_quantized else facts.weight_bytes


def trainer_bytes(
    facts: ModelFacts, *, rank: int, tokens: int = STEP_TOKENS, is_quantized: bool = False
) -> int:
    """Return what a step needs: base, LoRA with its optimizer, checkpointed activations, the logits of the positions in work."""
    item = facts.item_bytes
    boundaries = tokens * facts.hidden * facts.layers * item
    # inside the one layer that is recomputed: attention's and the MLP's inputs and outputs, and their gradients
    layer = 2 * tokens * (8 * facts.hidden + 4 * facts.intermediate) * item
    logits = LOGIT_ROWS * facts.vocabulary * 4 * LOGIT_COPIES
    lora = facts.lora_parameters(rank) * LORA_BYTES
    return _base_bytes(facts, is_quantized) + lora + TRAINER_OVERHEAD + boundaries + layer + logits


def colocate(
    facts: ModelFacts,
    *,
    total: int,
    rank: int,
    engine_rank: int,
    slots: int,
    wanted: Literal["auto", "share", "sleep"] = "auto",
    is_quantized: bool = False,
) -> Fit:
    """Choose how a device of ``total`` bytes is shared: both at once where that fits, by turns where only that does."""
    sizes = {"total": total, "rank": rank, "engine_rank": engine_rank, "slots": slots}
    share = share_device(facts, **sizes, is_quantized=is_quantized)
    if wanted == "share" or (wanted == "auto" and share.fits):
        return share
    turns = take_turns(facts, **sizes, is_quantized=is_quantized)
    return turns if wanted == "sleep" or turns.fits else share


def take_turns(
    facts: ModelFacts, *, total: int, rank: int, engine_rank: int, slots: int, is_quantized: bool = False
) -> Fit:
    """Give the engine what the trainer does not keep between its steps; a step has to fit once the engine sleeps."""
    engine = engine_bytes(facts, rank=engine_rank, slots=slots)
    resident = resident_bytes(facts, rank=rank, is_quantized=is_quantized)
    step = trainer_bytes(facts, rank=rank, is_quantized=is_quantized)
    usable = int(total * (1 - MARGIN))
    left = usable - resident
    # a sleeping engine keeps its context and its graphs
    fits = left >= engine and step + ENGINE_OVERHEAD <= usable
    share = min(ALONE, left / total) if fits else ALONE
    why = (
        f"{_gib(total)} of memory, by turns: the trainer keeps {_gib(resident)} between its turns and needs {_gib(step)} for a step,"
        f" the engine at least {_gib(engine)} of the {_gib(max(left, 0))} that remain: "
        + ("each fits" if fits else "they do not fit")
    )
    return Fit(
        share=int(share * 100) / 100,
        engine_bytes=engine,
        trainer_bytes=resident,
        fits=fits,
        why=why,
        mode="sleep",
    )


def share_device(
    facts: ModelFacts, *, total: int, rank: int, engine_rank: int, slots: int, is_quantized: bool = False
) -> Fit:
    """Split a device of ``total`` bytes: the trainer gets what a step needs, the engine the rest.

    Where both do not fit, the share is what the engine would have alone, and `Fit.fits` says so.
    """
    engine = engine_bytes(facts, rank=engine_rank, slots=slots)
    trainer = trainer_bytes(facts, rank=rank, is_quantized=is_quantized)
    left = int(total * (1 - MARGIN)) - trainer
    fits = left >= engine
    share = min(ALONE, left / total) if fits else ALONE
    why = (
        f"{_gib(total)} of memory: a training step needs about {_gib(trainer)}, the engine at least {_gib(engine)}"
        f" of the {_gib(max(left, 0))} that remain: " + ("both fit" if fits else "they do not fit together")
    )
    # rounded down: what is promised to the trainer must be there
    return Fit(share=int(share * 100) / 100, engine_bytes=engine, trainer_bytes=trainer, fits=fits, why=why)


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
