"""Fixtures that several packages share, and the Hypothesis profiles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from migrations import upgrade
from store.record import Record
from tests.tiny import make_tiny_adapter, make_tiny_model

# No property depends on the clock: the tests share a busy machine with training runs. In CI the examples are Hypothesis's fixed ones.
hypothesis_settings.register_profile(
    "tests", hypothesis_settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.register_profile("quick", hypothesis_settings.get_profile("tests"), max_examples=10)
hypothesis_settings.load_profile("tests")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random Qwen3 with its tokenizer."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def tiny_adapters(tiny_model: Path) -> tuple[Path, Path]:
    """Two adapters of the tiny model that change its greedy outputs, of different rank."""
    folder = tiny_model.parent
    return (
        make_tiny_adapter(folder / "one", tiny_model, 1, rank=4),
        make_tiny_adapter(folder / "two", tiny_model, 2, rank=8),
    )


@pytest.fixture
def record_url(tmp_path: Path) -> str:
    """A fresh, migrated SQLite record."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'patina.db'}"
    upgrade(url)
    return url


@pytest_asyncio.fixture
async def record(record_url: str) -> AsyncIterator[Record]:
    opened = await Record.open(record_url)
    yield opened
    await opened.close()
