"""One running backend a kind, and adapters that change what it says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from serving.llamacpp.installation import INSTALL, is_installed
from serving.protocol import BackendClient, Capabilities
from tests.contract.backends import Backend, missing_vllm
from tests.fixtures import PATINA_TINY
from tests.tiny import make_tiny_adapter

KINDS = [
    "embedded",
    "llamacpp",
    "tinker",
    pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(1800)]),
]


@pytest.fixture(scope="module", params=KINDS)
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    kind: str = request.param
    if kind == "vllm" and (why := missing_vllm()):
        pytest.skip(f"no vLLM here: {why}")
    if kind == "llamacpp" and not is_installed():
        pytest.skip(f"no llama.cpp here: {INSTALL}")
    made = Backend(kind, tmp_path_factory.mktemp(kind))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest_asyncio.fixture
async def engine(backend: Backend) -> AsyncIterator[BackendClient]:
    made = backend.engine()
    yield made
    await made.close()


@pytest_asyncio.fixture
async def able(engine: BackendClient) -> Capabilities:
    """What the backend says it can do."""
    return await engine.capabilities()


@pytest.fixture(scope="module")
def adapters(backend: Backend, lora_folders: list[Path]) -> list[Path]:
    """Adapters of the test model, where the backend finds them."""
    backend.publish(lora_folders)
    return lora_folders


@pytest.fixture(scope="session")
def lora_folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Adapters of the test model that make it say other things, as the trainer writes them."""
    folder = tmp_path_factory.mktemp("adapters")
    return [
        make_tiny_adapter(folder / str(i), PATINA_TINY, seed=i, rank=(8, 16)[i % 2], strength=5.0)
        for i in range(1, 5)
    ]
