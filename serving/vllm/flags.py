"""The command line of vLLM, derived from our settings and the model; and each choice in words. Sans-IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from serving.vllm.colocate import GIB, Fit
from serving.vllm.facts import ModelFacts
from store.errors import ConfigError

#: What vLLM takes for `--max-lora-rank`.
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
#: The log-probabilities of the model itself, before temperature and truncation: what the trainer compares with.
LOGPROBS_MODE = "raw_logprobs"
#: Requests may ask for so many alternatives a token (OpenAI's limit).
MAX_LOGPROBS = 20
#: On CPU: cache for so many full contexts, within these bounds.
_CPU_SEQUENCES, _CPU_LEAST_GB, _CPU_MOST_GB = 8, 1, 16

#: Chat templates tell how a family writes its tool calls: the first mark that is in the template decides.
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
#: Where the template does not tell: by `model_type`, the longest beginning that fits.
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
class Wishes:
    """What the settings say.

    Attributes:
        memory_share: of the GPU's memory; 0: computed.
        max_model_len: 0: as much of the model's context as fits.
        tool_parser: "" to derive it, "none" for none.
        extra: flags of a person's own, last, so that they win.
        threads: CPU threads; 0: vLLM's own choice.
        sleeps: the trainer has the device by turns (`serving.vllm.turns`).
        max_hold_s: how long a request waits for it then, to be told.
        mends: folder of what vLLM runs at its start on a CPU (`serving/vllm/for_cpu`).
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
    mends: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How vLLM is started.

    Attributes:
        arguments: of `python -m vllm.entrypoints.openai.api_server`.
        environment: variables beside the inherited ones.
        reasons: one line for each choice that was made for the person.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    reasons: tuple[str, ...] = ()


def rank_for(rank: int) -> int:
    """Return the smallest `--max-lora-rank` of vLLM that takes adapters of ``rank``.

    Raises:
        ConfigError: it takes none so large.
    """
    for allowed in RANKS:
        if rank <= allowed:
            return allowed
    raise ConfigError(f"--lora-rank {rank}: vLLM takes adapters up to rank {RANKS[-1]}")


def tool_parser_for(facts: ModelFacts) -> tuple[str, str]:
    """Return vLLM's tool-call parser for a model and why; ("", why) when its family is not known."""
    for mark, parser in _BY_TEMPLATE:
        if mark in facts.template:
            return parser, f"its chat template writes {mark}"
    fitting = [family for family in _BY_FAMILY if facts.family.startswith(family)]
    if fitting:
        return _BY_FAMILY[max(fitting, key=len)], f"it is a {facts.family}"
    return "", f"nothing is known of how a {facts.family or 'model of this kind'} calls tools"


def derive(
    wishes: Wishes, facts: ModelFacts, *, is_cpu: bool, fit: Fit | None = None, memory: int = 0
) -> Launch:
    """Return how vLLM is started for these wishes.

    Args:
        fit: how the GPU is shared with the trainer; None: the engine has it to itself.
        memory: bytes of main memory, on CPU.

    Raises:
        ConfigError: something wished for cannot be had.
    """
    rank = rank_for(wishes.lora_rank)
    reasons = [
        f"dtype {facts.dtype}: {facts.parameters / 1e6:,.1f} M parameters",
        f"adapters up to rank {rank}, {wishes.slots} of them at once; a version beyond that waits until an older one is idle",
    ]
    arguments = [
        "--model", wishes.model, "--served-model-name", wishes.served_name, "--host", wishes.host, "--port", str(wishes.port),
        "--dtype", facts.dtype, "--enable-lora", "--max-lora-rank", str(rank), "--max-loras", str(wishes.slots),
        # twice as many on the host: what was unloaded by name stays cached there, and must not push out what is in use
        "--max-cpu-loras", str(2 * wishes.slots), "--logprobs-mode", LOGPROBS_MODE, "--max-logprobs", str(MAX_LOGPROBS),
        # asked every second, by its keeper and by the proxy
        "--disable-access-log-for-endpoints", "/health,/metrics,/v1/models",
    ]  # fmt: skip
    environment = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # ours is the repository; vLLM would have modules of the same names in view
        "PYTHONPATH": "",
    }
    if wishes.max_model_len > facts.context:
        raise ConfigError(
            f"--max-model-len {wishes.max_model_len}: the model was made for {facts.context} tokens"
        )
    arguments += ["--max-model-len", str(wishes.max_model_len or "auto")]
    if not wishes.max_model_len:
        reasons.append(f"context: what fits of the model's {facts.context:,} tokens")
    parser, why = (wishes.tool_parser, "as you said") if wishes.tool_parser else tool_parser_for(facts)
    if parser and parser != "none":
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    else:
        why += "; requests whose tools are optional will be refused by vLLM (see --tool-call-parser)"
    reasons.append(f"tool calls: {parser or 'none'} ({why})")
    if is_cpu:
        gigabytes = _cpu_cache(facts, wishes.max_model_len or facts.context, memory)
        environment |= {
            "VLLM_CPU_KVCACHE_SPACE": str(gigabytes),
            # without it the first request that asks for log-probabilities waits for a compiler, up to half a minute
            "TORCHDYNAMO_DISABLE": "1",
            "PYTHONPATH": wishes.mends,
        }
        if wishes.threads:
            # bound to cores it would fight with the trainer for the first ones
            environment |= {"OMP_NUM_THREADS": str(wishes.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        reasons.append(f"on CPU, {gigabytes} GB for keys and values")
    else:
        share = wishes.memory_share or (fit.share if fit is not None else 0.9)
        arguments += ["--gpu-memory-utilization", f"{share:.2f}"]
        reasons.append(
            f"{share:.0%} of the GPU's memory"
            + (" (as you said)" if wishes.memory_share else f" ({fit.why})" if fit is not None else "")
        )
        if fit is not None and not fit.fits:
            reasons.append(
                "the trainer may run out of the GPU's memory: take a smaller model or a larger GPU, or set --gpu-memory-share"
            )
    if wishes.sleeps:
        if not is_cpu:  # refused there; on a CPU sleeping holds requests and frees nothing
            arguments.append("--enable-sleep-mode")
        environment["VLLM_SERVER_DEV_MODE"] = "1"
        reasons.append(
            f"sleeps while a training step runs; a request waits {wishes.max_hold_s:g} s at most, and until the step's next boundary"
        )
    if wishes.extra:
        arguments += wishes.extra
        reasons.append("beside these, your own: " + " ".join(wishes.extra))
    return Launch(
        arguments=tuple(arguments), environment=MappingProxyType(environment), reasons=tuple(reasons)
    )


def _cpu_cache(facts: ModelFacts, context: int, memory: int) -> int:
    wanted = facts.kv_bytes_per_token * context * _CPU_SEQUENCES / GIB
    most = min(_CPU_MOST_GB, memory // GIB // 4) if memory else _CPU_LEAST_GB
    return int(max(_CPU_LEAST_GB, min(-(-wanted // 1), most)))
