"""`run.py export VERSION --gguf`: what it writes is loaded by llama.cpp and changes the model as the version does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from cli.main import main
from migrations import upgrade
from serving.llamacpp.installation import INSTALL, is_installed
from serving.model_digests import digest_served_model
from store.manifest import MANIFEST, build_manifest, content_hash, hash_manifest, read_served
from store.record import Record
from store.settings import read_settings
from store.values import AdapterState, AdapterVersion, StepReport
from tests.gguf_model import write_gguf_model
from tests.serving.llamacpp.test_gguf_adapter import IDS, reference
from tests.tiny import make_tiny_adapter, make_tiny_llama, make_tiny_model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    return make_tiny_llama(folder / "llama", make_tiny_model(folder / "tiny"))


@pytest.fixture
def home(base: Path, tmp_path: Path) -> Path:
    """A home whose record holds version 1 of a Llama."""
    folder = make_tiny_adapter(tmp_path / "version-1", base, seed=4)
    (folder / "README.md").unlink()
    files = read_served(folder)
    manifest = build_manifest(files, name="llama@1", model=digest_served_model(str(base)))
    (folder / MANIFEST).write_bytes(manifest)
    version = AdapterVersion(
        policy="llama", version=1, path=str(folder), content_hash=content_hash(files), parent_version=0,
        state=AdapterState.PUBLISHED, reason="", method="combine", metrics={}, created_at=1.0, manifest_hash=hash_manifest(manifest),
    )  # fmt: skip
    step = StepReport(
        step_id="s", policy="llama", method="combine", started_at=1.0, finished_at=1.0, version=1, error=None, metrics={}
    )  # fmt: skip
    url = read_settings({"home": tmp_path / "home"}).database_url
    upgrade(url)

    async def fill() -> None:
        record = await Record.open(url)
        await record.publish(version, [], step, worker="w")
        await record.close()

    asyncio.run(fill())
    return tmp_path / "home"


def export(home: Path, base: Path, *arguments: str) -> int:
    return main(["export", *arguments, "--home", str(home), "--model-name", str(base)])


def test_the_adapter_changes_llama_cpps_model_as_the_version_changes_the_trainers(
    home: Path, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not is_installed():
        pytest.skip(f"no llama.cpp here: {INSTALL}")
    from serving.llamacpp.library import LlamaContext, LlamaModel

    out = tmp_path / "exported"
    assert export(home, base, "1", "--gguf", "--out", str(out)) == 0
    assert f"--lora {out / 'adapter.gguf'}" in capsys.readouterr().out
    weights = LlamaModel(write_gguf_model(base, tmp_path / "model.gguf"))
    context = LlamaContext(weights, cells=256, sequences=1, batch=64, outputs=64, threads=1)
    found = []
    for adapter in (None, weights.load_adapter(out / "adapter.gguf")):
        context.use_adapter(adapter)
        context.cut(0, 0)
        logits = context.decode([(0, 0, IDS, True)])
        found.append(torch.log_softmax(torch.from_numpy(logits).double(), -1))
    context.close()
    wanted = reference(base, tmp_path / "version-1") - reference(base, None)
    assert wanted.abs().max() > 0.1
    assert (found[1] - found[0] - wanted).abs().max() < 2e-4


def test_the_modelfile_names_the_base_model_and_the_adapter_beside_it(
    home: Path, base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "exported"
    assert export(home, base, "1", "--gguf", "--out", str(out)) == 0
    assert (out / "Modelfile").read_text() == f"FROM {base}\nADAPTER ./adapter.gguf\n"
    assert {path.name for path in out.iterdir()} == {"Modelfile", "adapter.gguf"}


def test_what_cannot_be_exported_is_refused_in_one_sentence(
    home: Path, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(sentence: str, *arguments: str) -> None:
        assert export(home, base, *arguments, "--gguf") == 2
        assert sentence in capsys.readouterr().err

    refused("has no version 7", "7")
    refused("has no version 0; version 0 is the base model", "0")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    refused("exists: name a new folder with --out", "1", "--out", str(tmp_path / "full"))
    weights = tmp_path / "version-1" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    refused("cannot be exported", "1", "--out", str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()
