"""The tiny models as GGUF files; what needs the bindings skips without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.llamacpp.installation import INSTALL, is_installed
from serving.llamacpp.model import GgufModel, load_model
from tests.gguf_model import write_gguf_model
from tests.tiny import make_tiny_llama, make_tiny_model


@pytest.fixture(scope="session", params=["qwen3", "llama"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3, and a Llama, whose query and key rows a GGUF file has in another order."""
    made = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    return made if request.param == "qwen3" else make_tiny_llama(tmp_path_factory.mktemp("llama"), made)


@pytest.fixture(scope="session")
def model(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> GgufModel:
    if not is_installed():
        pytest.skip(f"no llama.cpp here: {INSTALL}")
    return load_model(
        write_gguf_model(folder, tmp_path_factory.mktemp("gguf") / "model.gguf"), folder, threads=1
    )
