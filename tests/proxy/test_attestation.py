"""A version goes live only if the engine serves its weights: the built-in engine, with planted faults, behind a gateway."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import safetensors.torch
import torch

from migrations import upgrade
from serving.embedded.adapters import Adapter
from serving.embedded.embedded_engine import EmbeddedEngine, EmbeddedOptions
from serving.embedded.model import load_model
from serving.openai_server.app import OpenAIServer
from store.manifest import (
    ADAPTER_WEIGHTS,
    MANIFEST,
    ModelDigests,
    build_manifest,
    content_hash,
    hash_manifest,
    read_attestation,
    read_served,
)
from store.values import AdapterState, AdapterVersion, StepReport
from tests.proxy.conftest import Gateway, run_gateway_at
from tests.proxy.test_adapters import backend, is_live, rollback
from tests.proxy.upstream import free_socket, running
from tests.waiting import until
from trainer.attestation import FixedText
from trainer.checkpoint import write_version
from trainer.policy import LocalPolicy


class FaultyEngine(EmbeddedEngine):
    """The built-in engine; a name in ``forgotten`` is loaded without an error, and the base model serves under it."""

    forgotten: frozenset[str] = frozenset()

    def load(self, name: str, path: str) -> Adapter:
        adapter = super().load(name, path)
        return replace(adapter, layers={}) if name in self.forgotten else adapter


@pytest.fixture(scope="module")
def versions(
    tiny_model: Path, tiny_adapters: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> list[AdapterVersion]:
    """Two versions as a trainer writes them."""
    policy = LocalPolicy(str(tiny_model), rank=4, learning_rate=1e-3)
    text = FixedText(policy)
    folder = tmp_path_factory.mktemp("adapters")
    made = []
    for number, source in enumerate(tiny_adapters, start=1):
        before = policy.snapshot()
        policy.load_version(source)
        attestation = text.attest(before if number == 1 else policy.snapshot(), f"tiny@{number - 1}")
        assert attestation is not None
        written = write_version(
            folder, "tiny", number, policy.version_files(), metrics={}, attestation=attestation
        )
        assert read_attestation(written.path) == attestation
        made.append(
            AdapterVersion(
                policy="tiny",
                version=number,
                path=str(written.path),
                content_hash=written.content_hash,
                parent_version=number - 1,
                state=AdapterState.PUBLISHED,
                reason="",
                method="combine",
                metrics={},
                created_at=time.time(),
                manifest_hash=written.manifest_hash,
            )
        )
    return made


@pytest.fixture
def engine(tiny_model: Path) -> FaultyEngine:
    return FaultyEngine(load_model(str(tiny_model), device="cpu"), EmbeddedOptions())


@pytest.fixture
def engine_url(engine: FaultyEngine, tiny_model: Path) -> Iterator[str]:
    with running(OpenAIServer(engine, served_names=["tiny"], root=str(tiny_model)).app) as url:
        yield url


@pytest.fixture
def gateway(engine: FaultyEngine, engine_url: str, record_file: Path) -> Iterator[Gateway]:
    with run_gateway_at(engine_url, engine, record_file) as gateway:
        yield gateway


def publish(gateway: Gateway, adapter: AdapterVersion) -> None:
    now = time.time()
    step = StepReport(
        step_id=f"step{adapter.version}", policy="tiny", method="combine", started_at=now, finished_at=now,
        version=adapter.version, error=None, metrics={},
    )  # fmt: skip
    gateway.in_record(lambda record: record.publish(adapter, [], step, worker="w"))


def refusal(gateway: Gateway, version: int) -> str:
    def found() -> Any:
        return gateway.in_record(lambda record: record.adapter("tiny", version))

    until(lambda: found().state is AdapterState.REFUSED, f"{version} is refused")
    reason: str = found().reason
    return reason


def test_versions_whose_weights_are_served_are_attested_and_go_live(
    gateway: Gateway, versions: list[AdapterVersion]
) -> None:
    for adapter in versions:
        publish(gateway, adapter)
        is_live(gateway, adapter.version)
        outcome = backend(gateway)["attested"][adapter.name]
        assert outcome.startswith("attested: log-probabilities differ by ")
        assert float(outcome.split("differ by ")[1].split()[0]) < 1e-3
        assert backend(gateway)["load_s"][adapter.name] > 0


def test_an_engine_that_silently_serves_the_base_model_is_found_and_the_ancestor_stays_live(
    gateway: Gateway, engine: FaultyEngine, versions: list[AdapterVersion]
) -> None:
    publish(gateway, versions[0])
    is_live(gateway, 1)
    engine.forgotten = frozenset({"tiny@2"})
    publish(gateway, versions[1])
    assert "serves the base model instead of this version" in refusal(gateway, 2)
    until(lambda: backend(gateway)["wanted"] == 1, "the ancestor is wanted")
    state = backend(gateway)
    assert (state["live"], state["loaded"]) == (1, [1])
    assert "serves the base model" in state["last_error"]
    move = gateway.in_record(lambda record: record.alias_moves("tiny"))[-1]
    assert (move.version, move.actor) == (1, "integrity")


def test_changed_weights_with_new_hashes_everywhere_are_found(
    gateway: Gateway, versions: list[AdapterVersion], tmp_path: Path
) -> None:
    folder = Path(versions[0].path)
    tensors = safetensors.torch.load((folder / ADAPTER_WEIGHTS).read_bytes())
    one = tensors[max(tensors, key=lambda key: tensors[key].numel() if "lora_B" in key else 0)]
    one.view(-1)[:400] += torch.linspace(-1.0, 1.0, 400)
    target = tmp_path / "tampered"
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    del files[MANIFEST]
    files[ADAPTER_WEIGHTS] = safetensors.torch.save(tensors, {"format": "pt"})
    manifest = build_manifest(
        files, name="tiny@1", model=ModelDigests(), attestation=read_attestation(folder)
    )
    for name, body in {**files, MANIFEST: manifest}.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(body)
    tampered = replace(
        versions[0],
        path=str(target),
        content_hash=content_hash(read_served(target)),
        manifest_hash=hash_manifest(manifest),
    )
    publish(gateway, tampered)
    assert "serves other weights than the trainer published (reply)" in refusal(gateway, 1)
    assert backend(gateway)["live"] == 0


def test_a_version_of_before_attestation_goes_live_with_a_note(
    gateway: Gateway, tiny_adapters: tuple[Path, Path]
) -> None:
    old = AdapterVersion(
        policy="tiny", version=1, path=str(tiny_adapters[0]), content_hash=content_hash(read_served(tiny_adapters[0])),
        parent_version=0, state=AdapterState.PUBLISHED, reason="", method="combine", metrics={}, created_at=time.time(),
    )  # fmt: skip
    publish(gateway, old)
    is_live(gateway, 1)
    assert "published before versions carried log-probabilities" in backend(gateway)["attested"]["tiny@1"]
    rollback(gateway, 0)
    is_live(gateway, 0)


def load_directly(url: str, adapter: AdapterVersion) -> None:
    """What another gateway, or an earlier process of this one, left on the engine."""
    body = {"lora_name": adapter.name, "lora_path": adapter.path}
    assert httpx.post(f"{url}/v1/load_lora_adapter", json=body, timeout=60).status_code == 200


def test_a_version_that_the_engine_has_already_is_attested_before_anything_is_routed_to_it(
    engine: FaultyEngine, engine_url: str, versions: list[AdapterVersion], record_file: Path
) -> None:
    with run_gateway_at(engine_url, engine, record_file) as before:
        publish(before, versions[0])
        is_live(before, 1)
    engine.forgotten = frozenset({"tiny@2"})
    load_directly(engine_url, versions[1])
    with run_gateway_at(engine_url, engine, record_file) as restarted:
        is_live(restarted, 1)
        assert backend(restarted)["attested"]["tiny@1"].startswith("attested: ")
        publish(restarted, versions[1])
        assert "serves the base model instead of this version" in refusal(restarted, 2)
        assert backend(restarted)["live"] == 1


def test_two_gateways_of_one_engine_each_attest_a_version(
    engine: FaultyEngine, engine_url: str, versions: list[AdapterVersion], tmp_path: Path
) -> None:
    record_files = [tmp_path / name / "patina.db" for name in ("one", "other")]
    for file in record_files:
        file.parent.mkdir()
        upgrade(f"sqlite+aiosqlite:///{file}")
    with (
        run_gateway_at(engine_url, engine, record_files[0]) as one,
        run_gateway_at(engine_url, engine, record_files[1]) as other,
    ):
        for gateway in (one, other):
            publish(gateway, versions[0])
            is_live(gateway, 1)
            assert backend(gateway)["attested"]["tiny@1"].startswith("attested: ")


def test_an_engine_that_was_away_and_has_the_version_again_is_attested_again(
    engine: FaultyEngine, tiny_model: Path, versions: list[AdapterVersion], record_file: Path
) -> None:
    with free_socket() as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with run_gateway_at(url, engine, record_file) as gateway:
        with running(
            OpenAIServer(engine, served_names=["tiny"], root=str(tiny_model)).app, free_socket(port)
        ):
            publish(gateway, versions[0])
            is_live(gateway, 1)
        until(lambda: not backend(gateway)["ready"], "the engine's absence is noticed")
        engine.forgotten = frozenset({"tiny@1"})
        with running(
            OpenAIServer(engine, served_names=["tiny"], root=str(tiny_model)).app, free_socket(port)
        ):
            load_directly(url, versions[0])
            assert "serves the base model instead of this version" in refusal(gateway, 1)
            until(lambda: backend(gateway)["live"] == 0, "the base model is live")
