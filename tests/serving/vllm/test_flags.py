"""vLLM's command line, derived: each choice follows from the settings and the model, and is reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serving.vllm.flags import (
    LaunchCommand,
    LaunchOptions,
    build_launch_command,
    choose_tool_parser,
    smallest_allowed_rank,
)
from serving.vllm.memory_plan import GIB, plan_gpu_memory, plan_memory_sharing, resident_bytes
from serving.vllm.model_facts import ModelFacts, model_facts_from_config
from serving.vllm.model_folder import read_model_facts
from store.errors import ConfigError
from tests.fixtures import PATINA_TINY

#: config.json of Qwen3-8B, as published.
QWEN3_8B: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": False,
}  # fmt: skip
WISHES = LaunchOptions(model="/m", served_name="m", host="127.0.0.1", port=8000, lora_rank=16, slots=8)


def flag(launch: LaunchCommand, name: str) -> str | None:
    """Return a flag's value: its last one, as vLLM reads it."""
    words = list(launch.arguments)
    places = [i for i, word in enumerate(words) if word == name]
    return words[places[-1] + 1] if places else None


def qwen() -> ModelFacts:
    return model_facts_from_config("Qwen/Qwen3-8B", QWEN3_8B)


def test_the_sizes_of_a_model_follow_from_its_configuration() -> None:
    facts = qwen()
    assert abs(facts.parameters / 8.19e9 - 1) < 0.01  # what its page says
    assert (facts.dtype, facts.kv_bytes_per_token) == ("bfloat16", 147_456)
    # per layer: q 8192, k and v 5120 each, o 8192, gate, up and down 16384 each
    assert facts.lora_parameters(16) == 16 * 36 * (8192 + 2 * 5120 + 8192 + 3 * 16384)


def test_the_test_model_is_read_from_its_folder() -> None:
    facts = read_model_facts(str(PATINA_TINY))
    assert (facts.family, facts.layers, facts.context, facts.dtype) == ("qwen3", 4, 2048, "float32")
    assert 1_900_000 < facts.parameters < 2_100_000
    assert facts.temperature == 1.0
    assert choose_tool_parser(facts)[0] == "hermes"


@pytest.mark.parametrize("name", ["/no/such/folder", "./nothing", "no-such-org/no-such-model"])
def test_a_model_that_is_not_here_is_a_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no model folder"):
        read_model_facts(name)


def test_a_torn_weight_file_is_a_sentence(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text((PATINA_TINY / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(ConfigError, match="not a safetensors file"):
        read_model_facts(str(tmp_path))


def test_the_rank_is_the_smallest_that_vllm_takes() -> None:
    assert [smallest_allowed_rank(r) for r in (1, 8, 9, 16, 17, 64, 200)] == [8, 8, 16, 16, 32, 64, 256]
    with pytest.raises(ConfigError, match="up to rank 512"):
        smallest_allowed_rank(513)


def test_adapters_are_loaded_at_runtime_and_logprobs_are_raw() -> None:
    launch = build_launch_command(WISHES, qwen(), is_cpu=False)
    assert launch.environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert "--enable-lora" in launch.arguments
    assert flag(launch, "--logprobs-mode") == "raw_logprobs"
    assert (flag(launch, "--max-loras"), flag(launch, "--max-lora-rank")) == ("8", "16")
    assert flag(launch, "--served-model-name") == "m"
    assert flag(launch, "--max-model-len") == "auto"
    assert launch.environment["PYTHONPATH"] == ""


def test_on_cpu_there_is_a_cache_in_gigabytes_and_no_share_of_a_gpu() -> None:
    launch = build_launch_command(
        replace(WISHES, threads=1), read_model_facts(str(PATINA_TINY)), is_cpu=True, memory=64 * GIB
    )
    assert launch.environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert launch.environment["OMP_NUM_THREADS"] == "1"
    assert flag(launch, "--gpu-memory-utilization") is None
    assert flag(launch, "--dtype") == "float32"
    large = build_launch_command(WISHES, qwen(), is_cpu=True, memory=16 * GIB)
    assert (
        large.environment["VLLM_CPU_KVCACHE_SPACE"] == "4"
    )  # a quarter of the memory, not the 45 GB that it could use


def test_the_share_of_the_gpu_is_the_wish_or_what_the_trainer_leaves() -> None:
    memory_plan = plan_memory_sharing(qwen(), total=80 * GIB, rank=16, engine_rank=16, slots=8)
    assert (
        flag(
            build_launch_command(WISHES, qwen(), is_cpu=False, memory_plan=memory_plan),
            "--gpu-memory-utilization",
        )
        == f"{memory_plan.share:.2f}"
    )
    wished = build_launch_command(
        replace(WISHES, memory_share=0.5), qwen(), is_cpu=False, memory_plan=memory_plan
    )
    assert flag(wished, "--gpu-memory-utilization") == "0.50"


def test_a_context_beyond_the_models_is_refused() -> None:
    assert (
        flag(
            build_launch_command(replace(WISHES, max_model_len=8192), qwen(), is_cpu=False), "--max-model-len"
        )
        == "8192"
    )
    with pytest.raises(ConfigError, match="made for 40960 tokens"):
        build_launch_command(replace(WISHES, max_model_len=50_000), qwen(), is_cpu=False)


@pytest.mark.parametrize(
    ("family", "template", "parser"),
    [
        ("qwen3", "<tool_call>{...}", "hermes"),
        ("qwen3_moe", "<tool_call><function=name>", "qwen3_coder"),
        ("llama", "<|python_tag|>", "llama3_json"),
        ("llama4", "", "llama4_pythonic"),
        ("mistral3", "[TOOL_CALLS]", "mistral"),
        ("glm4_moe", "<tool_call><arg_key>", "glm45"),
        ("gpt_oss", "", "openai"),
        ("deepseek_v3", "<｜tool▁calls▁begin｜>", "deepseek_v3"),
        ("rwkv", "", ""),
    ],
)
def test_the_tool_parser_follows_the_template_then_the_family(
    family: str, template: str, parser: str
) -> None:
    facts = replace(qwen(), family=family, template=template)
    assert choose_tool_parser(facts)[0] == parser
    launch = build_launch_command(WISHES, facts, is_cpu=False)
    assert flag(launch, "--tool-call-parser") == (parser or None)
    assert ("--enable-auto-tool-choice" in launch.arguments) == bool(parser)
    assert any("tool calls" in reason for reason in launch.reasons)


def test_a_person_may_choose_the_parser_or_none() -> None:
    assert (
        flag(
            build_launch_command(replace(WISHES, tool_parser="xlam"), qwen(), is_cpu=False),
            "--tool-call-parser",
        )
        == "xlam"
    )
    assert (
        "--enable-auto-tool-choice"
        not in build_launch_command(replace(WISHES, tool_parser="none"), qwen(), is_cpu=False).arguments
    )


def test_own_flags_come_last_so_that_they_win() -> None:
    launch = build_launch_command(replace(WISHES, extra=("--dtype", "float16")), qwen(), is_cpu=False)
    assert launch.arguments[-2:] == ("--dtype", "float16")
    assert flag(launch, "--dtype") == "float16"


# ---- one GPU for both


@pytest.mark.parametrize(
    ("gigabytes", "fits"), [(24, False), (40, False), (48, True), (80, True), (140, True)]
)
def test_an_8b_model_and_its_trainer_share_a_gpu_from_48_gb(gigabytes: int, fits: bool) -> None:
    memory_plan = plan_memory_sharing(qwen(), total=gigabytes * GIB, rank=16, engine_rank=16, slots=8)
    assert memory_plan.fits is fits
    if fits:  # both get what they need, and a margin stays
        engine = memory_plan.share * gigabytes * GIB
        assert engine >= memory_plan.engine_bytes
        assert engine + memory_plan.trainer_bytes <= 0.951 * gigabytes * GIB
    else:
        assert "do not fit together" in memory_plan.why


def test_settings_that_do_not_fit_are_reported() -> None:
    memory_plan = plan_memory_sharing(qwen(), total=24 * GIB, rank=16, engine_rank=16, slots=8)
    assert any(
        "may run out" in reason
        for reason in build_launch_command(WISHES, qwen(), is_cpu=False, memory_plan=memory_plan).reasons
    )


def test_a_bigger_gpu_gives_all_that_is_left_to_the_engine_but_never_more_than_alone() -> None:
    shares = [
        plan_memory_sharing(qwen(), total=size * GIB, rank=16, engine_rank=16, slots=8).share
        for size in (48, 80, 140, 1000)
    ]
    assert shares == sorted(shares)
    assert shares[-1] == 0.9


def test_the_memory_estimate_is_shown_in_gigabytes() -> None:
    why = plan_memory_sharing(qwen(), total=80 * GIB, rank=16, engine_rank=16, slots=8).why
    assert why.startswith("80.0 GiB of memory: a training step needs about ")
    assert why.endswith("both fit")


def test_colocation_is_chosen_when_both_do_not_fit_and_the_arithmetic_is_shown() -> None:
    sizes: Any = {"rank": 16, "engine_rank": 16, "slots": 8}
    large = plan_gpu_memory(qwen(), total=80 * GIB, **sizes)
    assert (large.mode, large.fits) == ("share", True)
    middle = plan_gpu_memory(qwen(), total=32 * GIB, **sizes)
    assert (middle.mode, middle.fits) == ("sleep", True)
    assert "alternating" in middle.why
    # what the trainer keeps between its steps is not the engine's
    assert middle.share * 32 * GIB + resident_bytes(qwen(), rank=16) <= 32 * GIB
    assert plan_gpu_memory(qwen(), total=80 * GIB, **sizes, wanted="sleep").mode == "sleep"
    small = plan_gpu_memory(qwen(), total=24 * GIB, **sizes)
    assert (small.mode, small.fits) == ("share", False)
    assert plan_gpu_memory(qwen(), total=24 * GIB, **sizes, wanted="sleep").fits is False
    # a base in 4 bits stays where it is; both fit where they did not
    quarter = plan_gpu_memory(qwen(), total=40 * GIB, **sizes, is_quantized=True)
    assert (quarter.mode, quarter.fits) == ("share", True)
    assert plan_gpu_memory(qwen(), total=40 * GIB, **sizes).mode == "sleep"


def test_sleeping_needs_its_flag_on_a_gpu_and_is_refused_one_on_a_cpu() -> None:
    options = replace(WISHES, sleeps=True, max_hold_s=7.0)
    for is_cpu in (False, True):
        launch = build_launch_command(options, qwen(), is_cpu=is_cpu)
        assert ("--enable-sleep-mode" in launch.arguments) is not is_cpu
        assert launch.environment["VLLM_SERVER_DEV_MODE"] == "1"
        assert any("7 s at most" in reason for reason in launch.reasons)
