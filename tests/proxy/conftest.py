"""A proxy on a real port in front of a scripted backend, with a real record in a temporary file."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from migrations import upgrade
from proxy.app import Proxy
from proxy.guard import GuardedProtocol
from serving.http import HttpEngine
from store.record import Record
from tests.proxy.upstream import Upstream, running

KEY = "patina-test-key"


@dataclass
class House:
    """What a test needs of the running proxy."""

    url: str
    upstream: Any  #: the scripted backend
    upstream_url: str
    record_url: str
    proxy: Proxy
    client: openai.OpenAI

    def rows(self, at_least: int = 0) -> list[dict[str, Any]]:
        """Return the record's trajectories, oldest first; waits until there are ``at_least`` so many."""

        async def read() -> list[dict[str, Any]]:
            record = await Record.open(self.record_url)
            try:
                return await record.trajectories()
            finally:
                await record.close()

        for _ in range(400):
            rows = asyncio.run(read())
            if len(rows) >= at_least:
                return rows
            time.sleep(0.025)
        raise AssertionError(f"only {len(rows)} turns of {at_least}")

    def ask(self, text: str, history: list[dict[str, Any]] | None = None, **more: Any) -> Any:
        messages: list[Any] = [*(history or []), {"role": "user", "content": text}]
        return self.client.chat.completions.create(model="tiny", messages=messages, **more)

    def in_record(self, work: Callable[[Record], Any]) -> Any:
        """Run ``work(record)`` on a connection of its own."""

        async def run() -> Any:
            record = await Record.open(self.record_url)
            try:
                return await work(record)
            finally:
                await record.close()

        return asyncio.run(run())


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


@pytest.fixture(scope="session")
def empty_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated record to copy: migrating takes longer than most tests."""
    path = tmp_path_factory.mktemp("record") / "patina.db"
    upgrade(f"sqlite+aiosqlite:///{path}")
    return path


@pytest.fixture
def record_file(empty_record: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(empty_record, tmp_path / "patina.db"))


@contextmanager
def make_house(upstream: Upstream, record_file: Path, *, is_local: bool = True) -> Iterator[House]:
    """Run the backend and the proxy in front of it: a local one, or somebody else's endpoint (`--upstream`)."""
    with running(upstream) as url, house_at(url, upstream, record_file, is_local=is_local) as house:
        yield house


@contextmanager
def house_at(
    upstream_url: str,
    upstream: Any,
    record_file: Path,
    *,
    is_local: bool = True,
    patience_s: float = 10.0,
    **more: Any,
) -> Iterator[House]:
    """Run the proxy in front of a backend that somebody else starts and stops."""
    url = f"sqlite+aiosqlite:///{record_file}"
    engine = (
        HttpEngine(upstream_url)
        if is_local
        else HttpEngine(f"{upstream_url}/v1", api_key="upstream-key", speaks_vllm=False)
    )
    proxy = Proxy(
        engine=engine,
        policy="tiny",
        opening=lambda: Record.open(url),
        keys=more.pop("keys", KEY),
        is_local=is_local,
        patience_s=patience_s,
        **more,
    )
    # No TLS in the client: reading the certificates would take longer than most tests.
    with running(proxy, http=GuardedProtocol) as proxy_url, httpx.Client(verify=False, timeout=30) as plain:
        client = openai.OpenAI(base_url=f"{proxy_url}/v1", api_key=KEY, max_retries=0, http_client=plain)
        yield House(proxy_url, upstream, upstream_url, url, proxy, client)


@pytest.fixture
def house(upstream: Upstream, record_file: Path) -> Iterator[House]:
    with make_house(upstream, record_file) as made:
        yield made


@pytest.fixture
def remote_house(upstream: Upstream, record_file: Path) -> Iterator[House]:
    with make_house(upstream, record_file, is_local=False) as made:
        yield made
