"""Who may read `/metrics`, and that a real Prometheus scrapes it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from dashboard.app import Dashboard, create_app
from recorder.telemetry import observation_of
from serving.ports import free_port
from store.journal import STATE_FILE
from store.keys import KeyFile
from store.lifecycle import DropReason
from store.record import Record
from store.values import Heartbeat
from telemetry.request_metrics import RequestMetrics
from tests.dashboard.conftest import OWNER_KEY, fill
from tests.proxy.upstream import running
from tests.telemetry.test_metrics import TIMES, write_one
from tests.waiting import stop, until

BOARD = Path(__file__).parent.parent.parent / "deploy" / "grafana-dashboard.json"
PROMETHEUS = shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus is installed")


async def test_only_an_owners_key_reads_the_metrics(page: httpx.AsyncClient, keys: KeyFile) -> None:
    bob = keys.add("bob")
    refused = await page.get("/metrics")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert (await page.get("/metrics", headers={"authorization": "Bearer wrong"})).status_code == 401
    assert (await page.get("/metrics", headers={"authorization": f"Bearer {bob}"})).status_code == 403
    given = await page.get("/metrics", headers={"authorization": f"Bearer {OWNER_KEY}"})
    assert given.status_code == 200
    assert given.headers["content-type"].startswith("text/plain; version=")
    assert 'patina_turns{kind="main"} 3.0' in given.text


@needs_prometheus
async def test_promtool_finds_nothing_wrong(page: httpx.AsyncClient) -> None:
    text = (await page.get("/metrics", headers={"authorization": f"Bearer {OWNER_KEY}"})).text
    found = await asyncio.to_thread(
        subprocess.run,
        ["promtool", "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


def board_queries() -> list[str]:
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_the_board_asks_only_for_metrics_that_exist() -> None:
    named = {
        name
        for query in board_queries()
        for name in re.findall(r"\b(?:patina|gen_ai)_[a-z_]+(?=[\[{ )]|$)", query)
    } - {"gen_ai_token_type"}  # a label
    sources = "".join(
        (BOARD.parent.parent / "telemetry" / name).read_text(encoding="utf-8")
        for name in ("record_metrics.py", "request_metrics.py")
    )
    counted = {f"patina_{name}" for name in ("upstream_errors",)}  # named by a table
    assert len(named) > 15
    known = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in named}
    assert sorted(name for name in known - counted if f'"{name}"' not in sources) == []


async def fill_home(url: str, home: Path) -> None:
    """Write what the board shows: a trained version, a supervisor's heartbeat, a stream that failed."""
    record = await Record.open(url)
    await fill(record)
    detail = {"scorer": {"pid": 1, "restarts": 4}}
    await record.heartbeat(Heartbeat(process="supervisor", pid=1, state="running", detail=detail, at=1.0))
    fault = (DropReason.UPSTREAM_ERROR, "the backend answered 500")
    failed = await write_one(record, streamed=True, fault=fault, status_code=500, **TIMES)
    await record.close()
    metrics = RequestMetrics()
    metrics.observe(observation_of(*failed))
    metrics.write(home / "metrics.prom")
    (home / "journal").mkdir()
    (home / "journal" / STATE_FILE).write_text(json.dumps({"lag_turns": 0, "lag_s": 0.0}))


@needs_prometheus
@pytest.mark.timeout(300)
def test_a_real_prometheus_has_data_for_every_query_of_the_board(
    record_url: str, dashboard: Dashboard, tmp_path: Path
) -> None:
    asyncio.run(fill_home(record_url, tmp_path))
    with running(create_app(dashboard)) as url:
        target = url.removeprefix("http://")
        (tmp_path / "prometheus.yml").write_text(
            "scrape_configs:\n- job_name: patina\n  scrape_interval: 1s\n"
            f"  authorization: {{credentials: {OWNER_KEY}}}\n  static_configs: [{{targets: ['{target}']}}]\n"
        )
        port = free_port()
        process = subprocess.Popen(
            [
                str(PROMETHEUS), f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as prometheus:

                def ask(query: str) -> list[Any]:
                    try:
                        answer = prometheus.get("/api/v1/query", params={"query": query}).json()
                    except (httpx.TransportError, ValueError):
                        return []  # it starts
                    assert answer["status"] == "success", (query, answer)
                    found: list[Any] = answer["data"]["result"]
                    return found

                (sample,) = until(lambda: ask('patina_turns{kind="main"}'), "a sample in Prometheus")
                assert (sample["value"][1], sample["metric"]["job"]) == ("4", "patina")
                for query in board_queries():
                    until(partial(ask, query), f"data for {query}", 30)
        finally:
            stop(process)
