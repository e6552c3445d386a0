"""Downloading from the hub, against a stand-in on the loopback interface.

The library reads its variables when it is imported: each download is a process of its own, as the supervisor is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from serving.ports import free_port
from store.settings import child_environment
from tests.serving.models.hub_server import SHA, HubServer, running_hub

NAME = "maker/tiny-model"
#: What is written, and resumed, at once.
_PIECE = 2**20
_FETCH = """
import os, sys
from pathlib import Path
from serving.models.hub import fetch_hub_model
from store.errors import ConfigError
try:
    print(fetch_hub_model(sys.argv[1], Path(os.environ["HF_HOME"], "models")))
except ConfigError as error:
    print(error)
    sys.exit(2)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The tiny model, with three pieces and more of weights, with what repositories hold beside it."""
    made = shutil.copytree(tiny_model, tmp_path_factory.mktemp("hub") / "model")
    weights = load_file(made / "model.safetensors")
    save_file({**weights, "padding": np.zeros(3 * 2**18, np.float32)}, made / "model.safetensors")
    (made / "onnx").mkdir()
    for extra in ("pytorch_model.bin", "consolidated.safetensors", "onnx/model.onnx", "README.md"):
        (made / extra).write_bytes(b"not wanted")
    return made


@pytest.fixture
def hub(folder: Path) -> Iterator[HubServer]:
    with running_hub(NAME, folder) as server:
        yield server


def start(url: str, home: Path, name: str = NAME, **more: str) -> subprocess.Popen[str]:
    environment = child_environment(HF_ENDPOINT=url, HF_HOME=str(home), NO_PROXY="127.0.0.1", **more)
    environment.pop("HF_TOKEN", None)
    command = [sys.executable, "-c", _FETCH, name]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def fetch(url: str, home: Path, name: str = NAME, **more: str) -> tuple[int, str, str]:
    with start(url, home, name, **more) as process:
        output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def test_only_the_files_that_are_read_are_downloaded_and_once(
    hub: HubServer, folder: Path, tmp_path: Path
) -> None:
    code, output, _ = fetch(hub.url, tmp_path)
    assert code == 0
    first, path = output.splitlines()
    assert first == f"Downloading {NAME} (0.00 GB, 6 files) from {hub.url}"
    made = Path(path)
    assert made == tmp_path / "models" / f"maker--tiny-model-{SHA[:12]}"
    wanted = {"chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}  # fmt: skip
    assert {one.name for one in made.iterdir()} == {name for name, _ in hub.asked} == wanted
    assert all((made / name).read_bytes() == (folder / name).read_bytes() for name in wanted)
    # Now it is whole: the hub is not asked again.
    hub.status = (500, "")
    assert fetch(hub.url, tmp_path)[:2] == (0, f"{made}\n")
    assert fetch("http://127.0.0.1:9", tmp_path, HF_HUB_OFFLINE="1")[:2] == (0, f"{made}\n")


def test_a_cut_download_goes_on_where_it_stopped(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    hub.cuts = [_PIECE + 9_000, _PIECE + 9]
    code, output, errors = fetch(hub.url, tmp_path)
    assert code == 0, errors
    assert [start for name, start in hub.asked if name == "model.safetensors"] == [0, _PIECE, 2 * _PIECE]
    made = Path(output.splitlines()[-1])
    assert (made / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_a_killed_download_is_resumed_by_the_next_start(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    hub.cuts = [0]
    with start(hub.url, tmp_path) as process:
        assert hub.hung.wait(30)
        partial = tmp_path / "models"
        while sum(one.stat().st_size for one in partial.rglob("*.safetensors")) < _PIECE:
            assert process.poll() is None
        process.kill()
        process.communicate()
    code, output, errors = fetch(hub.url, tmp_path)
    assert code == 0, errors
    assert [start for name, start in hub.asked if name == "model.safetensors"] == [0, _PIECE]
    assert (Path(output.splitlines()[-1]) / "model.safetensors").read_bytes() == (
        folder / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        ((404, "RepoNotFound"), f"has no model {NAME}, or it is private and HF_TOKEN is not set"),
        ((401, "GatedRepo"), f"the model {NAME} is gated: accept its terms on"),
        ((403, "GatedRepo"), f"the model {NAME} is gated: accept its terms on"),
        ((503, ""), f"the model {NAME} cannot be downloaded: "),
    ],
)
def test_a_refusal_is_one_sentence(
    status: tuple[int, str], sentence: str, hub: HubServer, tmp_path: Path
) -> None:
    hub.status = status
    code, output, errors = fetch(hub.url, tmp_path)
    assert (code, len(output.splitlines())) == (2, 1), errors
    assert sentence in output


def test_without_a_network_the_start_ends_with_what_can_be_done(tmp_path: Path) -> None:
    silent = f"http://127.0.0.1:{free_port()}"
    code, output, _ = fetch(silent, tmp_path)
    assert (code, output) == (
        2,
        f"the model {NAME} is not on this machine and cannot be downloaded ({silent} does not answer): repeat with a network (what is "
        "there is kept), or give --model-name a folder, a .gguf file or ollama:NAME\n",
    )
    code, output, _ = fetch(silent, tmp_path, HF_HUB_OFFLINE="1")
    assert code == 2
    assert "(HF_HUB_OFFLINE is set)" in output


def test_a_repository_of_other_formats_and_a_name_of_none_are_refused(
    tmp_path: Path, tiny_model: Path
) -> None:
    other = shutil.copytree(tiny_model, tmp_path / "other", ignore=shutil.ignore_patterns("*.safetensors"))
    (other / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
    with running_hub(NAME, other) as hub:
        code, output, _ = fetch(hub.url, tmp_path)
        assert code == 2
        assert "has no config.json with .safetensors weights on the hub" in output
        assert "download one of its .gguf files" in output
        code, output, _ = fetch(hub.url, tmp_path, "no such name")
    assert (code, output) == (
        2,
        "--model-name: no such name is no folder, and no name of a model on the hub\n",
    )
