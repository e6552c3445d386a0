"""The stack that the evals start: it serves, reports its process ids, never trains on probes, and stops completely."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lab.evals.client import PatinaClient
from lab.evals.metrics import plan_probes
from lab.evals.stack import Stack
from lab.evals.systems import LiveSystem
from store.processes import is_alive
from store.settings import read_settings
from tests.waiting import recorded, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_a_stack_serves_reports_its_pids_keeps_probes_apart_and_stops_completely(
    tmp_path: Path, tiny_model: Path
) -> None:
    settings = read_settings({"model_name": str(tiny_model), "threads": 1})
    with Stack(settings, home=tmp_path / "home") as stack:
        async with PatinaClient(stack.base_url, stack.key) as client:
            reply = await client.chat([{"role": "user", "content": "What is the capital of France?"}])
            assert reply.turn_id
            probes = plan_probes(["concise"], questions=4, undos=0, tools=0, seed=0)
            answers, _ = await LiveSystem(client, learns=True, batch_size=4).probe(probes, exact=False)
            assert len(answers) == 4
            await asyncio.to_thread(recorded, stack.home)
            status = await client.status()
        pids = {**stack.pids(), "run": stack.pid}
        assert set(pids) == {"run", "backend", "proxy", "recorder", "dashboard", "scorer", "trainer"}
        assert all(is_alive(pid) for pid in pids.values())
        assert status["stages"].get("recorded") == 1
        assert status["drop_reasons"]["opted_out"] >= 4
    until(lambda: not any(is_alive(pid) for pid in pids.values()), "the end of all processes")
