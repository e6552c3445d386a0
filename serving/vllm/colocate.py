"""One GPU for the engine and the trainer: does it fit, and who gets how much. Sans-IO arithmetic.

The numbers are upper estimates on purpose: an engine that gets a little less room for its cache is slower under load, one that gets too
much takes the trainer's step down.
"""

from __future__ import annotations

from dataclasses import dataclass

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
#: Response positions whose logits are held at a time, float32: student, teacher, and their gradient.
LOGIT_ROWS, LOGIT_COPIES = 512, 3
#: Without a trainer on the device the engine takes what it usually takes.
ALONE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How one device is shared.

    Attributes:
        share: of the device's memory for the engine (`--gpu-memory-utilization`).
        engine_bytes, trainer_bytes: what each needs at the least.
        fits: both at once.
        why: the arithmetic in one sentence, for people.
    """

    share: float
    engine_bytes: int
    trainer_bytes: int
    fits: bool
    why: str


def engine_bytes(facts: ModelFacts, *, rank: int, slots: int) -> int:
    """Return what the engine needs at the least: weights, adapter slots, a working cache, overhead."""
    cache = facts.kv_bytes_per_token * max(
        min(facts.context, WORKING_TOKENS) * WORKING_SEQUENCES, min(facts.context, WORKING_TOKENS)
    )
    return (
        facts.weight_bytes + slots * facts.lora_parameters(rank) * facts.item_bytes + cache + ENGINE_OVERHEAD
    )


def trainer_bytes(facts: ModelFacts, *, rank: int, tokens: int = STEP_TOKENS) -> int:
    """Return what a step needs: base, LoRA with its optimizer, checkpointed activations, one chunk of logits."""
    item = facts.item_bytes
    boundaries = tokens * facts.hidden * facts.layers * item
    # inside the one layer that is recomputed: attention's and the MLP's inputs and outputs, and their gradients
    layer = 2 * tokens * (8 * facts.hidden + 4 * facts.intermediate) * item
    logits = LOGIT_ROWS * facts.vocabulary * 4 * LOGIT_COPIES
    return (
        facts.weight_bytes
        + facts.lora_parameters(rank) * LORA_BYTES
        + boundaries
        + layer
        + logits
        + TRAINER_OVERHEAD
    )


def share_device(facts: ModelFacts, *, total: int, rank: int, engine_rank: int, slots: int) -> Fit:
    """Split a device of ``total`` bytes: the trainer gets what a step needs, the engine the rest.

    Where both do not fit, the share is what the engine would have alone, and `Fit.fits` says so.
    """
    engine = engine_bytes(facts, rank=engine_rank, slots=slots)
    trainer = trainer_bytes(facts, rank=rank)
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
