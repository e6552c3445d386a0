"""Tinker's losses, as documented: per token, summed over tokens and over the batch; no mean, no mask."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

#: loss -> the inputs it takes besides `target_tokens`.
INPUTS = {
    "cross_entropy": {"weights"},
    "importance_sampling": {"logprobs", "advantages"},
    "ppo": {"logprobs", "advantages"},
    "cispo": {"logprobs", "advantages"},
    "dro": {"logprobs", "advantages"},
}
_ALL = set().union(*INPUTS.values())
_CLIP_LOW, _CLIP_HIGH, _BETA = 0.8, 1.2, 0.05


def loss_of(kind: str, logprobs: Tensor, inputs: Mapping[str, Tensor], config: Mapping[str, float]) -> Tensor:
    """Return the loss of one datum, a scalar.

    Args:
        logprobs: [T] of the target tokens under the weights that are trained; [T, K] for soft targets (cross_entropy only).
        inputs: of the datum, each in the shape of `logprobs`; `logprobs` among them are those of sampling.

    Raises:
        ValueError: the loss or an input is not known, or the shapes do not fit.
    """
    wanted = INPUTS.get(kind)
    if wanted is None:
        raise ValueError(f"unknown loss_fn {kind!r}")
    given = set(inputs) - {"target_tokens"}
    unknown = given - _ALL  # what another loss takes is let pass, as elsewhere
    if unknown:
        raise ValueError(f"{kind} does not take {', '.join(sorted(unknown))}")
    if kind != "cross_entropy" and wanted - given:
        raise ValueError(f"{kind} needs {', '.join(sorted(wanted - given))}")
    for name in given & wanted:
        if inputs[name].shape != logprobs.shape:
            raise ValueError(
                f"{name} has shape {list(inputs[name].shape)}, the targets {list(logprobs.shape)}"
            )
    if kind == "cross_entropy":
        weights = inputs.get("weights")
        return -logprobs.sum() if weights is None else -(logprobs * weights).sum()
    if logprobs.dim() != 1:
        raise ValueError(f"{kind} takes one target token a position")
    sampled, advantages = inputs["logprobs"], inputs["advantages"]
    ratio = torch.exp(logprobs - sampled)
    clipped = ratio.clamp(
        config.get("clip_low_threshold", _CLIP_LOW), config.get("clip_high_threshold", _CLIP_HIGH)
    )
    if kind == "importance_sampling":
        gain = ratio * advantages
    elif kind == "ppo":
        gain = torch.minimum(ratio * advantages, clipped * advantages)
    elif kind == "cispo":
        gain = clipped.detach() * logprobs * advantages
    else:
        gain = logprobs * advantages - 0.5 * config.get("beta", _BETA) * (logprobs - sampled) ** 2
    return -gain.sum()
