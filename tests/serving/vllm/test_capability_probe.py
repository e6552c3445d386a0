"""What a vLLM is, read from its replies: distributions in every mode vLLM has, and its own metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from serving.vllm.capability_probe import (
    detect_logprobs_mode,
    has_ids,
    read_metrics,
    started_at,
    template_shows_tools,
    top_logprobs,
)
from store.values import LogprobMode

LOGITS = {"a": 9.0, "b": 7.5, "c": 7.0, "d": 2.0, "e": -1.0}


def normalised(logits: Mapping[str, float]) -> dict[str, float]:
    total = math.log(sum(math.exp(value) for value in logits.values()))
    return {key: value - total for key, value in logits.items()}


def at(temperature: float, mode: str) -> dict[str, float]:
    """What vLLM reports in a mode at a temperature (vllm/v1/sample/sampler.py)."""
    cooled = {key: value / temperature for key, value in LOGITS.items()}
    return {
        "raw_logprobs": normalised(LOGITS),
        "processed_logprobs": normalised(cooled),
        "raw_logits": LOGITS,
        "processed_logits": cooled,
    }[mode]


@pytest.mark.parametrize(
    ("mode", "found"),
    [
        ("raw_logprobs", LogprobMode.RAW),
        ("processed_logprobs", LogprobMode.PROCESSED),
        ("raw_logits", LogprobMode.UNKNOWN),
        ("processed_logits", LogprobMode.UNKNOWN),
    ],
)
def test_every_logprobs_mode_of_vllm_is_detected_from_two_temperatures(mode: str, found: LogprobMode) -> None:
    assert detect_logprobs_mode(at(1.0, mode), at(2.0, mode)) is found


def test_rounding_of_bfloat16_does_not_hide_the_mode() -> None:
    noisy = {key: value + 0.02 * (-1) ** i for i, (key, value) in enumerate(normalised(LOGITS).items())}
    assert detect_logprobs_mode(at(1.0, "raw_logprobs"), noisy) is LogprobMode.RAW


def test_without_alternatives_the_mode_is_not_known() -> None:
    assert detect_logprobs_mode({}, {}) is LogprobMode.UNKNOWN
    assert detect_logprobs_mode({"a": -0.1}, {"a": -0.1}) is LogprobMode.UNKNOWN


def reply(**more: Any) -> dict[str, Any]:
    top = [{"token": t, "bytes": list(t.encode()), "logprob": v} for t, v in normalised(LOGITS).items()]
    content = [{"token": "a", "logprob": top[0]["logprob"], "bytes": [97], "top_logprobs": top}]
    return {"choices": [{"logprobs": {"content": content}, **more}]}


def test_alternatives_and_ids_are_read_from_a_reply() -> None:
    assert list(top_logprobs(reply()).values()) == list(normalised(LOGITS).values())
    assert top_logprobs({"choices": [{"logprobs": None}]}) == {}
    assert has_ids({**reply(token_ids=[5]), "prompt_token_ids": [1, 2]})
    assert not has_ids(reply(token_ids=[5]))
    assert not has_ids(reply())
    assert not has_ids({})


METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="patina-tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="patina-tiny"} 1.0
vllm:num_requests_waiting{engine="0",model_name="patina-tiny"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="patina-tiny"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="patina-tiny"} 200.0
vllm:prefix_cache_hits_total{engine="0",model_name="patina-tiny"} 50.0
vllm:generation_tokens_total{engine="0",model_name="patina-tiny"} 1.5e+03
vllm:request_success_total{finished_reason="stop"} NaN
process_start_time_seconds 1.76369e+09
"""


def test_metrics_are_summed_over_engines_and_named_plainly() -> None:
    assert read_metrics(METRICS) == {
        "running": 4.0, "waiting": 0.0, "cache_used": 0.25, "generated_tokens": 1500.0, "prefix_hits": 0.25,
    }  # fmt: skip
    assert read_metrics("") == {}
    assert (started_at(METRICS), started_at("")) == (1.76369e9, None)


@pytest.mark.parametrize(
    ("plain", "with_tools", "shown"),
    [
        ({"prompt_token_ids": [1, 2]}, {"prompt_token_ids": [1, 9, 2]}, True),
        ({"prompt_token_ids": [1, 2]}, {"prompt_token_ids": [1, 2]}, False),
        ({"usage": {"prompt_tokens": 12}}, {"usage": {"prompt_tokens": 80}}, True),
        ({"usage": {"prompt_tokens": 12}}, {"usage": {"prompt_tokens": 12}}, False),
        ({"usage": None}, {}, None),
        ({}, {"usage": {"prompt_tokens": 12}}, None),
    ],
)
def test_a_template_shows_tools_where_they_change_the_prompt(
    plain: dict[str, Any], with_tools: dict[str, Any], shown: bool | None
) -> None:
    assert template_shows_tools(plain, with_tools) is shown
