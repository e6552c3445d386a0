"""What a running vLLM can do and does, read from its own answers. Sans-IO: requests to send, replies to read.

vLLM does not tell the mode of its log-probabilities, so they are looked at: the same prompt at temperatures 1 and 2. Raw ones do not
change with the temperature; processed ones do; logits are no log-probabilities, their exponentials do not sum to at most 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from store.values import Json, LogprobMode

_TOP = 5
#: Two passes of the same prompt in bfloat16, batched differently, differ by so much at the most; temperature 2 by more.
_SAME, _CERTAIN = 0.05, 1e-3
_ROOM = 0.05

#: What is shown of `/metrics`, by our names.
_SHOWN = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "cache_used",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generated_tokens",
    "vllm:prefix_cache_queries_total": "_asked",
    "vllm:prefix_cache_hits_total": "_hit",
}
_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+(?P<value>\S+)")


def logprobs_request(model: str, temperature: float) -> Json:
    """Return a chat request of one token whose reply shows ids and log-probabilities."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Say one word."}],
        "max_tokens": 1,
        "temperature": temperature,
        # what the model's own defaults cut off would be missing from processed log-probabilities
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "logprobs": True,
        "top_logprobs": _TOP,
        "return_token_ids": True,
    }


def tools_request(model: str) -> Json:
    """Return a chat request whose tool is optional: a server without a parser refuses it."""
    function = {
        "name": "noop",
        "description": "Does nothing",
        "parameters": {"type": "object", "properties": {}},
    }
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Say one word."}],
        "max_tokens": 1,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "auto",
    }


def has_ids(reply: Mapping[str, Any]) -> bool:
    """Whether a reply carries the prompt's and the completion's token ids."""
    choices = reply.get("choices")
    ids = choices[0].get("token_ids") if isinstance(choices, list) and choices else None
    return bool(ids) and bool(reply.get("prompt_token_ids"))


def top_logprobs(reply: Mapping[str, Any]) -> dict[str, float]:
    """Return the alternatives of the first token; {} when none are there."""
    try:
        entries = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        # by bytes: texts of different tokens may be equal
        return {repr(e.get("bytes") or e["token"]): float(e["logprob"]) for e in entries}
    except (KeyError, IndexError, TypeError, ValueError):
        return {}


def mode_of(at_one: Mapping[str, float], at_two: Mapping[str, float]) -> LogprobMode:
    """Return what the log-probabilities are of, from the same position at temperatures 1 and 2."""
    common = at_one.keys() & at_two.keys()
    if len(common) < 2:
        return LogprobMode.UNKNOWN
    for found in (at_one, at_two):
        if any(value > _CERTAIN for value in found.values()):
            return LogprobMode.UNKNOWN  # logits
        if sum(math.exp(value) for value in found.values()) > 1 + _ROOM:
            return LogprobMode.UNKNOWN
    if all(abs(at_one[key] - at_two[key]) <= _SAME for key in common):
        return LogprobMode.RAW
    # At temperature 2 differences are half of what they are at 1; logits would keep them, and shift.
    keys = sorted(common, key=lambda key: at_one[key])
    spread_one, spread_two = (found[keys[-1]] - found[keys[0]] for found in (at_one, at_two))
    if spread_one > _SAME and abs(spread_two / spread_one - 0.5) < 0.1:
        return LogprobMode.PROCESSED
    return LogprobMode.UNKNOWN


def read_metrics(text: str) -> dict[str, float]:
    """Return what `/metrics` says now, summed over engines: running, waiting, cache_used (share), prefix_hits (share), …"""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None or match["name"] not in _SHOWN:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            name = _SHOWN[match["name"]]
            found[name] = found.get(name, 0.0) + value
    asked, hit = found.pop("_asked", 0.0), found.pop("_hit", 0.0)
    if asked:
        found["prefix_hits"] = round(hit / asked, 4)
    return found


def started_at(metrics: str) -> float | None:
    """Return when the process was started, seconds since the epoch; None where `/metrics` does not tell."""
    for line in metrics.splitlines():
        match = _SAMPLE.match(line)
        if match is not None and match["name"] == "process_start_time_seconds":
            return float(match["value"])
    return None
