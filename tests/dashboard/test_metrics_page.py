"""Who may read `/metrics`, and that a real Prometheus scrapes it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from dashboard.app import Dashboard, create_app
from serving.ports import free_port
from store.keys import KeyFile
from store.record import Record
from tests.dashboard.conftest import OWNER_KEY, fill
from tests.proxy.upstream import running
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


async def fill_record(url: str) -> None:
    record = await Record.open(url)
    await fill(record)
    await record.close()


@needs_prometheus
@pytest.mark.timeout(300)
def test_a_real_prometheus_scrapes_the_page(record_url: str, dashboard: Dashboard, tmp_path: Path) -> None:
    asyncio.run(fill_record(record_url))
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

                def result() -> list[Any]:
                    try:
                        answer = prometheus.get(
                            "/api/v1/query", params={"query": 'patina_turns{kind="main"}'}
                        )
                        found: list[Any] = answer.json()["data"]["result"]
                    except (httpx.TransportError, ValueError, KeyError):
                        return []  # it starts
                    return found

                (sample,) = until(result, "a sample in Prometheus")
                assert (sample["value"][1], sample["metric"]["job"]) == ("3", "patina")
                for query in board_queries():
                    answer = prometheus.get("/api/v1/query", params={"query": query}).json()
                    assert answer["status"] == "success", query
        finally:
            stop(process)
