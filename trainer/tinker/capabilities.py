"""What a Tinker server can do for training: tried with a few tokens at start, shown in `status`.

Tinker's documents promise sums as losses, log-probabilities of any prompt, and of the likeliest tokens at any position of it. Servers of
one's own lack some. What is missing decides how the directive term is computed, and whether a method can be had at all.
"""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import numpy as np
import tinker
from tinker import types

from serving.tinker.service import base_url
from store.errors import ConfigError, TheirError
from store.settings import Settings
from trainer.tinker.link import TinkerConnection

#: Log-probabilities of one model, computed in two ways on one server, may differ by so much.
_SAME = 0.05
#: What SkyRL's server calls itself. It divides a sequence's loss by its number of tokens, and a step by its number of sequences.
_SKYRL = "Tinker API Mock"


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerCapabilities:
    """What was found.

    Attributes:
        support: the likeliest tokens at each position of a prompt (`topk_prompt_logprobs`), and gradients for several tokens a position,
            through `cross_entropy` with weights of either sign: what a divergence on the teacher's likeliest tokens needs.
        means: losses are means over a sequence's tokens and over sequences, not sums as documented.
        greedy_is_raw: log-probabilities of a greedy reply are those of the model.
    """

    support: bool
    means: bool
    greedy_is_raw: bool


def find_capabilities(
    link: TinkerConnection, settings: Settings, base_model: str, training: tinker.TrainingClient
) -> TinkerCapabilities:
    """Try what the server can do. ``training`` is left as it was: nothing here has a backward pass.

    Raises:
        ConfigError: it lacks what no method can do without.
        UpstreamError: it went away meanwhile.
    """
    client = link.base_client(base_model)
    sampled = _sampled(link, client)
    tokens = [*_PROMPT, *sampled.tokens]
    prompt = types.ModelInput.from_ints(tokens)
    whole = link.wait([client.compute_logprobs(prompt)])[0]
    if whole is None or len(whole) != len(tokens) or any(value is None for value in whole[1:]):
        raise ConfigError(
            f"the Tinker server at {link.address} does not tell the log-probabilities of a prompt (compute_logprobs): "
            "without them there is no teacher, and nothing can be trained"
        )
    reported = [math.nan if value is None else value for value in sampled.logprobs or ()]
    greedy_is_raw = len(reported) == len(sampled.tokens) and _same(reported, whole[len(_PROMPT) :])
    means = settings.learning.tinker_gradients == "means" or (
        settings.learning.tinker_gradients == "auto" and _calls_itself(settings) == _SKYRL
    )
    # a server with means knows none of these, and a request that it does not expect may cost it its life
    support = not means and _top(link, client, prompt, whole) and _wide(link, training, tokens)
    return TinkerCapabilities(support=support, means=means, greedy_is_raw=greedy_is_raw)


_PROMPT = (3, 4, 5, 6)


def _sampled(link: TinkerConnection, client: tinker.SamplingClient) -> types.SampledSequence:
    asked = client.sample(
        prompt=types.ModelInput.from_ints(list(_PROMPT)),
        num_samples=1,
        sampling_params=types.SamplingParams(max_tokens=3, temperature=0.0, seed=0),
    )
    sequence: types.SampledSequence = link.wait([asked])[0].sequences[0]
    return sequence


def _top(
    link: TinkerConnection, client: tinker.SamplingClient, prompt: types.ModelInput, whole: list[float]
) -> bool:
    asked = client.sample(
        prompt=prompt,
        num_samples=1,
        sampling_params=types.SamplingParams(max_tokens=1, seed=0),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=2,
    )
    found = _unless_refused(link, asked)
    matrix = None if found is None else found.topk_prompt_logprobs_np
    return (
        matrix is not None
        and matrix.logprobs.shape == (len(whole), 2)
        and bool((matrix.logprobs[1:, 0] >= np.array(whole[1:]) - _SAME).all())
    )


def _unless_refused(link: TinkerConnection, future: Any) -> Any:
    """The result; None: the server refuses."""
    try:
        return link.wait([future])[0]
    except TheirError as exc:
        if isinstance(exc.__cause__, tinker.TinkerError):
            return None
        raise


def _wide(link: TinkerConnection, training: tinker.TrainingClient, tokens: list[int]) -> bool:
    """Several targets a position, with weights of either sign, summed as documented."""
    targets = np.array([[token, 7, 8] for token in tokens[1:]], dtype=np.int64)
    weights = np.array([[1.5, -0.5, -1.5]] * len(targets), dtype=np.float32)
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData.from_numpy(targets),
            "weights": types.TensorData.from_numpy(weights),
        },
    )
    output = _unless_refused(link, training.forward([datum], "cross_entropy"))
    if output is None:
        return False
    logprobs = np.array(output.loss_fn_outputs[0]["logprobs"].data)
    if logprobs.size != targets.size:
        return False
    # 0.0 where it tells no sum: then there is only the shape to go by
    reported_sum = output.metrics.get("loss:sum")
    return reported_sum is None or math.isclose(
        reported_sum, float(-(logprobs.reshape(-1) * weights.reshape(-1)).sum()), rel_tol=1e-2, abs_tol=1e-2
    )


def _same(one: list[float], other: list[float]) -> bool:
    return len(one) == len(other) and all(abs(a - b) <= _SAME for a, b in zip(one, other, strict=True))


def _calls_itself(settings: Settings) -> str:
    """The name at the server's root; "" where it says none."""
    try:
        with urllib.request.urlopen(f"{base_url(settings)}/", timeout=5.0) as response:
            found = json.loads(response.read(100_000))
    except (OSError, ValueError):
        return ""
    name = found.get("name") if isinstance(found, dict) else None
    return name if isinstance(name, str) else ""
