"""A proxy on a real port in front of a scripted backend, its journal, a recorder and a real record in a temporary file."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
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
from proxy.http_protocol import LimitedHttpProtocol
from recorder.worker import RecorderWorker
from scorers.registry import build_scorer_chain
from scorers.worker import ScorerWorker
from serving.http import HttpBackend
from store.journal import JournalWriter, is_recorded, journal_ends
from store.record import Record
from store.settings import read_settings
from tests.proxy.upstream import Upstream, running

KEY = "patina-test-key"


@dataclass
class Gateway:
    """What a test needs of the running proxy."""

    url: str
    upstream: Any  #: the scripted backend
    upstream_url: str
    record_url: str
    proxy: Proxy
    client: openai.OpenAI
    journal: Path  #: its folder

    def settle(self, seconds: float = 60) -> None:
        """Wait until everything that is in the journal now is recorded."""
        ends = journal_ends(self.journal)

        async def wait() -> None:
            record = await Record.open(self.record_url)
            try:
                async with asyncio.timeout(seconds):
                    while True:
                        if is_recorded(self.journal, await record.journal_offsets(), ends):
                            return
                        await asyncio.sleep(0.01)
            finally:
                await record.close()

        asyncio.run(wait())

    def rows(self, at_least: int = 0) -> list[dict[str, Any]]:
        """Return the record's trajectories, oldest first; waits for the recorder, and until there are ``at_least`` so many."""
        self.settle()

        async def read() -> list[dict[str, Any]]:
            record = await Record.open(self.record_url)
            try:
                return await record.trajectories(limit=at_least + 1000)
            finally:
                await record.close()

        for _ in range(2400):
            rows = asyncio.run(read())
            if len(rows) >= at_least:
                return rows
            time.sleep(0.025)
        raise AssertionError(f"only {len(rows)} turns of {at_least}")

    def ask(self, text: str, history: list[dict[str, Any]] | None = None, **more: Any) -> Any:
        messages: list[Any] = [*(history or []), {"role": "user", "content": text}]
        return self.client.chat.completions.create(model="tiny", messages=messages, **more)

    def in_record(self, work: Callable[[Record], Any]) -> Any:
        """Run ``work(record)`` on a connection of its own, once the recorder has caught up."""
        self.settle()

        async def run() -> Any:
            record = await Record.open(self.record_url)
            try:
                return await work(record)
            finally:
                await record.close()

        return asyncio.run(run())


async def score(record: Record) -> None:
    """Score every turn of a record that waits for it, by the built-in rules and reader."""
    chain = build_scorer_chain(read_settings({"judge": "none"}))
    await chain.start()
    worker = ScorerWorker(record, chain)
    while await worker.poll():
        await worker.drain()
    await chain.close()


@contextmanager
def running_recorder(folder: Path, record_url: str) -> Iterator[RecorderWorker]:
    """Run a recorder in a thread of its own."""
    worker = RecorderWorker(folder, lambda: Record.open(record_url))
    loop = asyncio.new_event_loop()

    async def work() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await worker.stop(5.0)

    task = loop.create_task(worker.run())
    thread = threading.Thread(target=loop.run_until_complete, args=(work(),), daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(60)
        assert not thread.is_alive()
        loop.close()


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
def run_gateway(upstream: Upstream, record_file: Path, *, is_local: bool = True) -> Iterator[Gateway]:
    """Run the backend and the proxy in front of it: a local backend, or a remote endpoint (`--upstream`)."""
    with running(upstream) as url, run_gateway_at(url, upstream, record_file, is_local=is_local) as gateway:
        yield gateway


@contextmanager
def run_gateway_at(
    upstream_url: str,
    upstream: Any,
    record_file: Path,
    *,
    is_local: bool = True,
    backend_wait_s: float = 10.0,
    **more: Any,
) -> Iterator[Gateway]:
    """Run the proxy in front of a backend that the test starts and stops."""
    url = f"sqlite+aiosqlite:///{record_file}"
    folder = record_file.parent / "journal"
    backend = (
        HttpBackend(upstream_url)
        if is_local
        else HttpBackend(f"{upstream_url}/v1", api_key="upstream-key", speaks_vllm=False)
    )
    proxy = Proxy(
        backend=backend,
        policy="tiny",
        open_record=lambda: Record.open(url),
        keys=more.pop("keys", KEY),
        is_local=is_local,
        journal=more.pop("journal", None) or JournalWriter(folder, "gateway"),
        backend_wait_s=backend_wait_s,
        **more,
    )
    # No TLS in the client: reading the certificates would take longer than most tests.
    with (
        running_recorder(folder, url),
        running(proxy, http=LimitedHttpProtocol) as proxy_url,
        httpx.Client(verify=False, timeout=60) as plain,
    ):
        client = openai.OpenAI(
            base_url=f"{proxy_url}/v1", api_key=KEY, max_retries=0, http_client=plain, _strict_response_validation=True
        )  # fmt: skip
        yield Gateway(proxy_url, upstream, upstream_url, url, proxy, client, folder)


@pytest.fixture
def gateway(upstream: Upstream, record_file: Path) -> Iterator[Gateway]:
    with run_gateway(upstream, record_file) as made:
        yield made


@pytest.fixture
def remote_gateway(upstream: Upstream, record_file: Path) -> Iterator[Gateway]:
    with run_gateway(upstream, record_file, is_local=False) as made:
        yield made
