"""Builds vLLM's command line from the settings and the model, with a reason for each choice. Sans-IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from serving.vllm.memory_plan import GIB, VllmMemoryPlan
from serving.vllm.model_facts import ModelFacts
from store.errors import ConfigError

#: Allowed values of `--max-lora-rank`.
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
#: Log-probabilities of the model itself, before temperature and truncation: the trainer compares them with its own.
LOGPROBS_MODE = "raw_logprobs"
#: Alternatives of a token that a request may ask for (OpenAI's limit).
MAX_LOGPROBS = 20
#: On CPU: cache for this many full contexts, within these limits.
_CPU_SEQUENCES, _CPU_MIN_GB, _CPU_MAX_GB = 8, 1, 16

#: A chat template shows how a family writes tool calls: the first mark found in it decides.
_BY_TEMPLATE = (
    ("<function=", "qwen3_coder"),
    ("<arg_key>", "glm45"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<｜tool▁calls▁begin｜>", "deepseek_v3"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama3_json"),
    ("<tool_call>", "hermes"),
)
#: Where the template has no mark: by `model_type`, the longest matching prefix.
_BY_FAMILY = {
    "qwen": "hermes",
    "llama": "llama3_json",
    "llama4": "llama4_pythonic",
    "mistral": "mistral",
    "ministral": "mistral",
    "deepseek_v3": "deepseek_v3",
    "glm4": "glm45",
    "gpt_oss": "openai",
    "granite": "granite",
    "phi4": "phi4_mini_json",
    "internlm": "internlm",
    "jamba": "jamba",
    "gemma4": "gemma4",
    "olmo3": "olmo3",
    "lfm2": "lfm2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """The settings of a launch.

    Attributes:
        memory_share: of the GPU's memory; 0: computed.
        max_model_len: 0: as much of the model's context as fits the memory.
        tool_parser: "" to derive it, "none" for none.
        extra: the user's own flags, last, so that they take precedence.
        threads: CPU threads; 0: vLLM's own choice.
        sleeps: engine and trainer share the GPU in time (`serving.vllm.gpu_sharing`).
        max_hold_s: longest wait of a request during a step, for display.
        cpu_patches: folder of code that vLLM runs at its start on a CPU (`serving/vllm/cpu_patches`).
    """

    model: str
    served_name: str
    host: str
    port: int
    lora_rank: int
    slots: int
    memory_share: float = 0.0
    max_model_len: int = 0
    tool_parser: str = ""
    extra: tuple[str, ...] = ()
    threads: int = 0
    sleeps: bool = False
    max_hold_s: float = 0.0
    cpu_patches: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """The command that starts vLLM.

    Attributes:
        arguments: of `python -m vllm.entrypoints.openai.api_server`.
        environment: variables in addition to the inherited ones.
        reasons: one line for each automatic choice.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    reasons: tuple[str, ...] = ()


def smallest_allowed_rank(rank: int) -> int:
    """Return the smallest `--max-lora-rank` of vLLM that takes adapters of ``rank``.

    Raises:
        ConfigError: the rank is too large.
    """
    for allowed in RANKS:
        if rank <= allowed:
            return allowed
    raise ConfigError(f"--lora-rank {rank}: vLLM takes adapters up to rank {RANKS[-1]}")


def choose_tool_parser(facts: ModelFacts) -> tuple[str, str]:
    """Return vLLM's tool-call parser for a model and why; ("", why) when its family is not known."""
    for mark, parser in _BY_TEMPLATE:
        if mark in facts.template:
            return parser, f"its chat template writes {mark}"
    fitting = [family for family in _BY_FAMILY if facts.family.startswith(family)]
    if fitting:
        return _BY_FAMILY[max(fitting, key=len)], f"it is a {facts.family}"
    return "", f"the tool-call format of {facts.family or 'this model'} is unknown"


def build_launch_command(
    options: LaunchOptions,
    facts: ModelFacts,
    *,
    is_cpu: bool,
    memory_plan: VllmMemoryPlan | None = None,
    memory: int = 0,
) -> LaunchCommand:
    """Return the command that starts vLLM with these options.

    Args:
        memory_plan: how the GPU is shared with the trainer; None: the engine has it alone.
        memory: bytes of main memory, on CPU.

    Raises:
        ConfigError: an option exceeds the model's or vLLM's limits.
    """
    rank = smallest_allowed_rank(options.lora_rank)
    reasons = [
        f"dtype {facts.dtype}: {facts.parameters / 1e6:,.1f} M parameters",
        f"adapters up to rank {rank}, {options.slots} of them at once; a version beyond that waits until an older one is idle",
    ]
    arguments = [
        "--model", options.model, "--served-model-name", options.served_name, "--host", options.host, "--port", str(options.port),
        "--dtype", facts.dtype, "--enable-lora", "--max-lora-rank", str(rank), "--max-loras", str(options.slots),
        # twice as many on the host: unloaded adapters stay cached there and must not evict those in use
        "--max-cpu-loras", str(2 * options.slots), "--logprobs-mode", LOGPROBS_MODE, "--max-logprobs", str(MAX_LOGPROBS),
        # queried every second, by its supervisor and by the proxy
        "--disable-access-log-for-endpoints", "/health,/metrics,/v1/models",
    ]  # fmt: skip
    environment = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # the inherited path is the repository, whose module names would shadow vLLM's
        "PYTHONPATH": "",
    }
    if options.max_model_len > facts.context:
        raise ConfigError(
            f"--max-model-len {options.max_model_len}: the model was made for {facts.context} tokens"
        )
    arguments += ["--max-model-len", str(options.max_model_len or "auto")]
    if not options.max_model_len:
        reasons.append(f"context: what fits of the model's {facts.context:,} tokens")
    _add_tool_parser(options, facts, arguments, reasons)
    if is_cpu:
        _add_cpu(options, facts, memory, environment, reasons)
    else:
        _add_gpu(options, memory_plan, arguments, reasons)
    if options.sleeps:
        if not is_cpu:  # refused on a CPU, where sleep holds requests and frees no memory
            arguments.append("--enable-sleep-mode")
        environment["VLLM_SERVER_DEV_MODE"] = "1"
        reasons.append(
            f"sleeps while a training step runs; a request waits {options.max_hold_s:g} s at most, and until the step's next boundary"
        )
    if options.extra:
        arguments += options.extra
        reasons.append("your own flags: " + " ".join(options.extra))
    return LaunchCommand(
        arguments=tuple(arguments), environment=MappingProxyType(environment), reasons=tuple(reasons)
    )


def _add_tool_parser(
    options: LaunchOptions, facts: ModelFacts, arguments: list[str], reasons: list[str]
) -> None:
    parser, why = (options.tool_parser, "as set") if options.tool_parser else choose_tool_parser(facts)
    if parser and parser != "none":
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    else:
        why += "; vLLM will refuse requests with optional tools (see the setting tool_call_parser)"
    reasons.append(f"tool calls: {parser or 'none'} ({why})")


def _add_cpu(
    options: LaunchOptions, facts: ModelFacts, memory: int, environment: dict[str, str], reasons: list[str]
) -> None:
    gigabytes = _cpu_cache(facts, options.max_model_len or facts.context, memory)
    environment |= {
        "VLLM_CPU_KVCACHE_SPACE": str(gigabytes),
        # without it, the first request for log-probabilities waits up to half a minute for a compiler
        "TORCHDYNAMO_DISABLE": "1",
        "PYTHONPATH": options.cpu_patches,
    }
    if options.threads:
        # bound to cores, it would compete with the trainer for the first ones
        environment |= {"OMP_NUM_THREADS": str(options.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    reasons.append(f"on CPU, {gigabytes} GB for keys and values")


def _add_gpu(
    options: LaunchOptions, memory_plan: VllmMemoryPlan | None, arguments: list[str], reasons: list[str]
) -> None:
    share = options.memory_share or (memory_plan.share if memory_plan is not None else 0.9)
    arguments += ["--gpu-memory-utilization", f"{share:.2f}"]
    why = ""
    if options.memory_share:
        why = " (as set)"
    elif memory_plan is not None:
        why = f" ({memory_plan.why})"
    reasons.append(f"{share:.0%} of the GPU's memory{why}")
    if memory_plan is not None and not memory_plan.fits:
        reasons.append(
            "the trainer may run out of the GPU's memory: use a smaller model or a larger GPU, or give --set gpu_memory_share=SHARE"
        )


def _cpu_cache(facts: ModelFacts, context: int, memory: int) -> int:
    wanted = facts.kv_bytes_per_token * context * _CPU_SEQUENCES / GIB
    most = min(_CPU_MAX_GB, memory // GIB // 4) if memory else _CPU_MIN_GB
    return int(max(_CPU_MIN_GB, min(-(-wanted // 1), most)))
