"""Fixtures that several rooms share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from migrations import upgrade
from store.record import Record
from tests.tiny import make_tiny_adapter, make_tiny_model


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
