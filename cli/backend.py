"""Which backend serves, and how it is started. Decided once, at start, and printed.

`--backend auto`: with `--upstream` nothing of ours is started; the default model is served by the built-in engine;
any other by one's own Tinker server where TINKER_BASE_URL names one, else vLLM where this machine has an NVIDIA GPU and an environment for it, else the built-in
engine. The hosted Tinker costs money and sees the conversations: it is never chosen; where its key is all there is, the user is asked.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from serving.llamacpp.installation import INSTALL, is_installed
from serving.ports import free_port
from serving.tinker import service as tinker
from serving.vllm.environment import CPU_PATCHES, DEFAULT_FOLDER, find_environment, gpu_memory, main_memory
from serving.vllm.flags import LaunchOptions, build_launch_command, smallest_allowed_rank
from serving.vllm.memory_plan import plan_gpu_memory
from serving.vllm.model_folder import read_model_facts
from store.errors import ConfigError, UpstreamError
from store.settings import DEFAULT_MODEL, Settings

Choice = Literal["embedded", "llamacpp", "vllm", "upstream", "tinker"]
_LOOK_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendPlan:
    """How the policy is served.

    Attributes:
        kind: what serves it.
        urls: where; empty for an --upstream that only serves.
        command: of the process to start; empty: it runs already.
        served_model: name of the base model there, where it is not the policy's.
        reasons: what was decided for the person, one line each.
        colocate: `Settings.colocate`, decided.
    """

    kind: Choice
    urls: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    served_model: str = ""
    reasons: tuple[str, ...] = ()
    colocate: Literal["share", "sleep"] = "share"


def choose(settings: Settings, *, has_gpu: bool, has_vllm: bool) -> tuple[Choice, str]:
    """Return what serves and why (the rule is in this file's head).

    Raises:
        ConfigError: a choice that only the user can make.
    """
    if settings.backend != "auto":
        return cast(Choice, settings.backend), "as given"
    if settings.upstream:
        return "upstream", "--upstream alone is served and recorded; it learns with --backend vllm"
    if settings.model_name == DEFAULT_MODEL:
        return "embedded", "the default model"
    if settings.tinker_base_url:
        return "tinker", "TINKER_BASE_URL is set"
    if has_gpu and has_vllm:
        return "vllm", "there is a GPU and an environment for vLLM"
    if has_gpu:
        return "embedded", "there is a GPU but no environment for vLLM (scripts/install_vllm.py makes one)"
    if settings.tinker_api_key:
        raise ConfigError(
            f"there is no GPU, and TINKER_API_KEY is set: give --backend tinker to serve and train {settings.model_name} at "
            "Tinker, where prompts and replies then go, or --backend embedded to run it on this CPU"
        )
    return "embedded", "there is no GPU"


def resolve(settings: Settings) -> tuple[Settings, str]:
    """Return the settings with `auto` decided, and why."""
    memory = gpu_memory() if settings.backend == "auto" else 0
    has_vllm = (
        bool(settings.vllm_python) and Path(settings.vllm_python).expanduser().exists()
    ) or DEFAULT_FOLDER.exists()
    kind, why = choose(settings, has_gpu=memory > 0, has_vllm=has_vllm)
    if kind == "upstream":
        return settings, why
    return settings.model_copy(update={"backend": kind}), why


def plan_backend(settings: Settings) -> BackendPlan:
    """Return how these settings serve; `auto` has been decided before.

    Raises:
        ConfigError: it cannot be had, in one sentence.
    """
    if settings.backend == "tinker":
        return _tinker(settings)
    if settings.backend == "vllm":
        return _attached(settings) if settings.upstream else _own_vllm(settings)
    if settings.colocate == "sleep":
        raise ConfigError(
            "--colocate sleep is for vLLM, and the backend here is another: give --backend vllm"
        )
    if settings.upstream:
        return BackendPlan(kind="upstream")
    return _llamacpp(settings) if settings.backend == "llamacpp" else _embedded(settings)


def _embedded(settings: Settings) -> BackendPlan:
    return _local(settings, settings.model_path, "--max-lora-rank", str(max(64, settings.lora_rank)))


def _llamacpp(settings: Settings) -> BackendPlan:
    if not settings.model_gguf:
        raise ConfigError(
            f"--backend llamacpp serves GGUF files, and {settings.model_name} is none: give --model-name a .gguf file or ollama:NAME, or leave it "
            "out for the default model"
        )
    if not is_installed():
        raise ConfigError(f"--backend llamacpp needs the bindings of llama.cpp: {INSTALL}")
    return _local(settings, settings.model_gguf, "--folder", settings.model_path)


def _local(settings: Settings, model: str, *more: str) -> BackendPlan:
    """An engine of ours that holds the model in a process here."""
    kind: Choice = "llamacpp" if settings.backend == "llamacpp" else "embedded"
    port = settings.backend_port or free_port()
    command = (
        sys.executable, "-m", f"serving.{kind}", "--model", model, *more, "--host", "127.0.0.1", "--port", str(port),
        "--served-model-name", settings.policy, "--max-loras", str(settings.adapter_slots),
        "--threads", str(settings.resolved_threads), "--api-key-file", str(settings.backend_key_file),
        "--tool-check-file", str(settings.home / "run" / "tool_checks.json"),
    )  # fmt: skip
    return BackendPlan(kind=kind, urls=(f"http://127.0.0.1:{port}",), command=command)


def _tinker(settings: Settings) -> BackendPlan:
    """A Tinker server is asked for its health before anything is started; which models it has, by the process that serves."""
    try:
        took = tinker.probe(settings)
    except UpstreamError as exc:
        raise ConfigError(str(exc)) from exc
    port = settings.backend_port or free_port()
    command = (
        sys.executable, "-m", "serving.tinker", "--settings", str(settings.home / "run" / "settings.json"),
        "--host", "127.0.0.1", "--port", str(port), "--api-key-file", str(settings.backend_key_file),
    )  # fmt: skip
    kind = "a server of your own" if settings.tinker_base_url else "hosted"
    reasons = (
        f"Tinker at {tinker.address(settings)} ({kind}), which answered in {1000 * took:.0f} ms",
        "it samples and trains: prompts and replies go there, weights and versions stay there",
    )
    return BackendPlan(kind="tinker", urls=(f"http://127.0.0.1:{port}",), command=command, reasons=reasons)


def _own_vllm(settings: Settings) -> BackendPlan:
    place = find_environment(settings.vllm_python)
    facts = read_model_facts(settings.model_path)
    memory = 0 if place.is_cpu else gpu_memory()
    rank = smallest_allowed_rank(settings.lora_rank)
    fit = (
        plan_gpu_memory(
            facts,
            total=memory,
            rank=settings.lora_rank,
            engine_rank=rank,
            slots=settings.adapter_slots,
            wanted=settings.colocate,
            is_quantized=settings.quantize == "4bit",
        )
        if memory and settings.train_on == "here"
        else None
    )
    # without a GPU there is nothing to share, but what is asked for is done
    mode = fit.mode if fit is not None else "sleep" if settings.colocate == "sleep" else "share"
    port = settings.backend_port or free_port()
    options = LaunchOptions(
        model=settings.model_path,
        served_name=settings.policy,
        host="127.0.0.1",
        port=port,
        lora_rank=settings.lora_rank,
        slots=settings.adapter_slots,
        memory_share=settings.gpu_memory_share,
        max_model_len=settings.max_model_len,
        tool_parser=settings.tool_call_parser,
        extra=tuple(shlex.split(settings.vllm_args)),
        threads=settings.threads or (settings.resolved_threads if place.is_cpu else 0),
        sleeps=mode == "sleep",
        max_hold_s=settings.max_hold,
        cpu_patches=str(CPU_PATCHES),
    )
    launch = build_launch_command(options, facts, is_cpu=place.is_cpu, memory_plan=fit, memory=main_memory())
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable, "-m", "serving.vllm", "--python", str(place.python), "--url", url,
        "--state", str(settings.home / "run" / "vllm.json"), "--run-id", f"{os.getpid()}-{time.time_ns()}",
        "--api-key-file", str(settings.backend_key_file),
    ]  # fmt: skip
    for name, value in launch.environment.items():
        command.append(f"--set={name}={value}")
    shown = " ".join(f"{k}={v}" for k, v in launch.environment.items())
    reasons = (
        f"vLLM {place.version} of {place.python}",
        *launch.reasons,
        f"as a command: {shown} vllm serve {shlex.join(launch.arguments)}",
    )
    return BackendPlan(
        kind="vllm",
        urls=(url,),
        command=(*command, "--", *launch.arguments),
        reasons=reasons,
        colocate=mode,
    )


def _attached(settings: Settings) -> BackendPlan:
    """A vLLM that is started elsewhere. It may start later; a warning names another served model."""
    reasons = [f"vLLM at {address}" for address in settings.upstream_address.split(",")]
    reasons.append(
        "they read adapters from this machine's folders: "
        + str(settings.adapters_folder)
        + " has to be the same path there"
    )
    served = ""
    for url in settings.upstreams:
        names = base_models(url, settings.upstream_api_key)
        if names is None:
            reasons.append("one does not answer yet; requests wait for it")
        elif not served and names:
            served = settings.policy if settings.policy in names else names[0]
            if served.rpartition("/")[2] not in (settings.policy, Path(settings.model_name).name):
                reasons.append(
                    f"it serves {served}, and {settings.model_name} is what is trained: they have to be the same model"
                )
    return BackendPlan(
        kind="vllm",
        urls=settings.upstreams,
        served_model=served or settings.model_name,
        reasons=tuple(reasons),
    )


def base_models(url: str, key: str) -> Sequence[str] | None:
    """Return the names of the base model at an OpenAI endpoint; None without an answer."""
    request = urllib.request.Request(f"{url.removesuffix('/v1')}/v1/models")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=_LOOK_S) as response:
            cards = json.load(response).get("data") or []
    except urllib.error.HTTPError as exc:
        raise ConfigError(
            f"--upstream {url.rpartition('@')[2]}: it answered {exc.code} when asked for its models"
        ) from exc
    except (OSError, ValueError):
        return None
    return [str(card["id"]) for card in cards if isinstance(card, dict) and not card.get("parent")]
