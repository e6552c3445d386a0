"""Two hosts on one PostgreSQL in front of two backends: a version reaches both, any process may die, and each turn is recorded once.

A host is a home with its own gateway, port, journal and recorder. The version's folder is what the hosts share.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from recorder.worker import REJECTED
from serving.ports import free_port
from store.journal import segments
from store.record import Record
from store.values import StepReport
from tests.fixtures import PATINA_TINY
from tests.proxy.test_adapters import make_adapter
from tests.proxy.test_main import client, process, recording, send_requests, write_settings
from tests.proxy.upstream import Upstream, free_socket, running
from tests.store.test_postgres import SERVERS, server, turns_of
from tests.waiting import until

pytest.importorskip("asyncpg")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SERVERS, reason="no PostgreSQL server here (Debian: apt-get install postgresql)"),
]
__all__ = ["server"]  # the fixture

_CLIENTS = 2  # of each host


def publish(url: str, version: int, folder: Path) -> None:
    """Publish a version as the trainer does."""

    async def work() -> None:
        now = time.time()
        step = StepReport(
            step_id=f"two-hosts-{version}", policy=PATINA_TINY.name, method="combine", started_at=now, finished_at=now,
            version=version, error=None, metrics={},
        )  # fmt: skip
        record = await Record.open(url)
        try:
            await record.publish(
                make_adapter(PATINA_TINY.name, version, folder, created_at=now), [], step, worker="w"
            )
        finally:
            await record.close()

    asyncio.run(work())


def holds(backend: Upstream, name: str) -> bool:
    """Whether a backend has a version loaded; its name there ends with the tag of the home that loaded it."""
    return any(one.startswith(f"{name}.") for one in backend.adapters)


def is_live(port: int, version: int) -> bool:
    with client(port) as asking:
        return bool(asking.get("/patina/status").json()["proxy"]["backend"]["live"] == version)


def test_a_version_reaches_both_backends_from_both_hosts_and_any_process_may_die(
    server: str, tmp_path: Path
) -> None:
    homes = [tmp_path / "one", tmp_path / "two"]
    ports = [free_port(), free_port()]
    versions = tmp_path / "versions"
    versions.mkdir()
    backends = [Upstream(base=PATINA_TINY.name, chunk_delay_s=0.002) for _ in range(2)]
    ended: tuple[list[str], list[str]] = ([], [])
    threads: list[threading.Thread] = []

    talking: list[list[threading.Thread]] = [[], []]

    def more(host: int, count: int = 10) -> Callable[[], bool]:
        """Return whether ``count`` more replies have ended; starts clients again that ended with a connection."""
        wanted = len(ended[host]) + count

        def holds() -> bool:
            talking[host] = [thread for thread in talking[host] if thread.is_alive()]
            while len(talking[host]) < _CLIENTS:
                name = f"host {host}, client {len(threads)}"
                threads.append(
                    threading.Thread(target=send_requests, args=(ports[host], name, ended[host]), daemon=True)
                )
                threads[-1].start()
                talking[host].append(threads[-1])
            return len(ended[host]) >= wanted

        return holds

    with ExitStack() as stack:
        stops = [stack.enter_context(ExitStack()) for _ in backends]
        listeners = [free_socket() for _ in backends]
        urls = [
            stop.enter_context(running(one, listener))
            for stop, one, listener in zip(stops, backends, listeners, strict=True)
        ]
        flags = [word for url in urls for word in ("--backend-url", url)]
        settings = [
            write_settings(home, port, database=server, backend="vllm", upstream=",".join(urls))
            for home, port in zip(homes, ports, strict=True)
        ]
        gateways = [
            stack.enter_context(process(path, port, *flags))
            for path, port in zip(settings, ports, strict=True)
        ]
        recorders = [stack.enter_context(recording(path)) for path in settings]
        for host in range(2):
            until(more(host), f"replies from host {host}")

        publish(server, 1, versions)
        name = f"{PATINA_TINY.name}@1"
        for host, port in enumerate(ports):
            until(partial(is_live, port, 1), f"version 1 on host {host}")
        assert [holds(one, name) for one in backends] == [True, True], [one.adapters for one in backends]
        for host in range(2):
            until(more(host), f"replies of version 1 from host {host}")
        served = [
            sum(str(seen.body["model"]).startswith(f"{name}.") for seen in one.seen if seen.method == "POST")
            for one in backends
        ]
        assert all(served)  # requests are spread

        stops[0].close()  # a backend dies, with streams in flight
        for host, port in enumerate(ports):
            until(more(host), f"replies of the other backend from host {host}")
            assert is_live(port, 1)
        recorders[0].kill()
        gateways[0].kill()
        until(more(1), "replies from the host that is left")
        gateways[1].kill()
        for thread in threads:
            thread.join(60)
        with recording(settings[0]):  # started again, as the supervisor does
            until(lambda: not any(segments(home / "journal") for home in homes), "all being recorded")
    seen = [*ended[0], *ended[1]]
    assert len(seen) >= 60
    rows = asyncio.run(turns_of(server))
    assert Counter(row for row in rows if row in set(seen)) == Counter(seen)
    assert [list((home / "journal" / REJECTED).glob("*")) for home in homes] == [[], []]
