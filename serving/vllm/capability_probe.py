"""Capabilities and activity of a running vLLM, from its own responses. Sans-IO: builds requests, reads replies.

vLLM does not report the mode of its log-probabilities, so they are compared for the same prompt at temperatures 1 and 2. Raw ones do not change with the
temperature, processed ones do. Logits are not log-probabilities: their exponentials sum to more than 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from store.values import Json, LogprobMode

_TOP = 5
#: Largest difference between two passes of the same prompt in bfloat16, batched differently; temperature 2 changes more.
_TOLERANCE, _MAX_LOGPROB = 0.05, 1e-3
_SUM_TOLERANCE = 0.05

#: Displayed values of `/metrics`, with Patina's names.
_METRIC_NAMES = {
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
        # tokens that the model's defaults truncate would be missing from processed log-probabilities
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
        "return_token_ids": True,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "auto",
    }


def template_shows_tools(plain: Mapping[str, Any], with_tools: Mapping[str, Any]) -> bool | None:
    """Whether the chat template shows tools to the model: the same question has another prompt with them. None: no reply says what its prompt was."""
    prompts = [
        reply.get("prompt_token_ids") or (reply.get("usage") or {}).get("prompt_tokens")
        for reply in (plain, with_tools)
    ]
    return None if None in prompts else prompts[0] != prompts[1]


def has_ids(reply: Mapping[str, Any]) -> bool:
    """Whether a reply carries the prompt's and the completion's token ids."""
    choices = reply.get("choices")
    ids = choices[0].get("token_ids") if isinstance(choices, list) and choices else None
    return bool(ids) and bool(reply.get("prompt_token_ids"))


def top_logprobs(reply: Mapping[str, Any]) -> dict[str, float]:
    """Return the alternatives of the first token; {} if there are none."""
    try:
        entries = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        # by bytes: different tokens may have equal texts
        return {repr(e.get("bytes") or e["token"]): float(e["logprob"]) for e in entries}
    except (KeyError, IndexError, TypeError, ValueError):
        return {}


def detect_logprobs_mode(at_one: Mapping[str, float], at_two: Mapping[str, float]) -> LogprobMode:
    """Return the mode of the log-probabilities, from the same position at temperatures 1 and 2."""
    common = at_one.keys() & at_two.keys()
    if len(common) < 2:
        return LogprobMode.UNKNOWN
    for found in (at_one, at_two):
        if any(value > _MAX_LOGPROB for value in found.values()):
            return LogprobMode.UNKNOWN  # logits
        if sum(math.exp(value) for value in found.values()) > 1 + _SUM_TOLERANCE:
            return LogprobMode.UNKNOWN
    if all(abs(at_one[key] - at_two[key]) <= _TOLERANCE for key in common):
        return LogprobMode.RAW
    # At temperature 2, differences between log-probabilities are halved; logits would keep them.
    keys = sorted(common, key=lambda key: at_one[key])
    spread_one, spread_two = (found[keys[-1]] - found[keys[0]] for found in (at_one, at_two))
    if spread_one > _TOLERANCE and abs(spread_two / spread_one - 0.5) < 0.1:
        return LogprobMode.PROCESSED
    return LogprobMode.UNKNOWN


def read_metrics(text: str) -> dict[str, float]:
    """Return the values of `/metrics`, summed over engines: running, waiting, cache_used (share), prefix_hits (share), …"""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None or match["name"] not in _METRIC_NAMES:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            name = _METRIC_NAMES[match["name"]]
            found[name] = found.get(name, 0.0) + value
    asked, hit = found.pop("_asked", 0.0), found.pop("_hit", 0.0)
    if asked:
        found["prefix_hits"] = round(hit / asked, 4)
    return found


def started_at(metrics: str) -> float | None:
    """Return the start time of the process, seconds since the epoch; None if `/metrics` does not contain it."""
    for line in metrics.splitlines():
        match = _SAMPLE.match(line)
        if match is not None and match["name"] == "process_start_time_seconds":
            return float(match["value"])
    return None
