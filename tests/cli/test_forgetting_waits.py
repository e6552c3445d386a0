"""What a forget waits for, what takes it up, and what it names."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cli.forgetting import Forgetter
from cli.supervisor import Forgetting
from migrations import upgrade
from store.record import Record
from store.settings import Settings, read_settings
from store.values import ForgetJob, ForgetStage, Heartbeat, Json, Selection
from tests.making import make_turn
from tests.store.queries.test_forget import SENTINEL, fill, said
from tests.waiting import until_async


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    home = tmp_path / "home"
    home.mkdir()
    made = read_settings({"home": home, "served_model_name": "patina-tiny"})
    upgrade(made.database_url)
    made.logs_folder.mkdir()
    made.dump(home / "run" / "settings.json")
    return made


@pytest.fixture
async def record(settings: Settings) -> AsyncIterator[Record]:
    opened = await Record.open(settings.database_url)
    await fill(opened)
    yield opened
    await opened.close()


async def beat(record: Record, process: str, state: str = "running", at: float = 0.0, **detail: Any) -> None:
    await record.heartbeat(
        Heartbeat(process=process, pid=os.getpid(), state=state, detail=detail, at=at or time.time())
    )


async def advance(record: Record, settings: Settings, job_id: str) -> ForgetJob:
    await Forgetter(record, settings).run(job_id, patience_s=0.0)
    job = await record.forget_job(job_id)
    assert job is not None
    return job


async def test_replies_in_flight_a_step_and_what_the_journal_lacks_are_waited_for(
    record: Record, settings: Settings
) -> None:
    began = time.time() - 60
    await beat(record, "proxy", at=began, oldest_request_at=began - 1, journal={"waiting": 0})
    await beat(record, "trainer", "training", step_started_at=began)
    job_id = await record.ask_to_forget(Selection(turn="three"))
    job = await advance(record, settings, job_id)
    assert (job.stage, job.waits) == (ForgetStage.DELETED, "a training step that began before it")
    assert await record.holds_training()
    assert await record.known_turns(["three"]) == set()
    late = make_turn("late", said(SENTINEL), created_at=began)
    await record.write_turns([late])
    await beat(record, "trainer", "waiting: something is being forgotten")
    for detail, waits in (
        ({"oldest_request_at": began, "journal": {"waiting": 0}}, "a reply that began before it"),
        ({"oldest_request_at": None, "journal": {"waiting": 2}}, "entries of the journal that the proxy cannot write yet"),
    ):  # fmt: skip
        await beat(record, "proxy", **detail)
        job = await advance(record, settings, job_id)
        assert (job.stage, job.waits) == (ForgetStage.UNLEARNT, waits)
        assert not await record.holds_training()
    assert (await record.status()).forgetting == (job.sentence,)
    await record.write_turns([make_turn("late", said(SENTINEL), created_at=began)])
    await beat(record, "proxy", oldest_request_at=time.time(), journal={"waiting": 0})
    assert (await advance(record, settings, job_id)).state == "forgotten"
    assert await record.known_turns(["three", "late"]) == set()


async def test_a_gateway_that_died_is_not_waited_for(record: Record, settings: Settings) -> None:
    await record.heartbeat(
        Heartbeat(process="proxy", pid=2**22 - 1, state="running", detail={"oldest_request_at": 1.0}, at=time.time())
    )  # fmt: skip
    job_id = await record.ask_to_forget(Selection(turn="three"))
    assert (await advance(record, settings, job_id)).state == "forgotten"


async def test_the_supervisor_takes_up_what_was_asked_for(record: Record, settings: Settings) -> None:
    """Row 2 of the second attack: what the page and a client had asked for was in a process's memory."""
    forgetting = Forgetting(settings)
    await forgetting.look(record, has_changed=True)
    await record.delete_completion("quote")
    await forgetting.look(record, has_changed=False)
    assert [one.stage for one in await record.open_forget_jobs()] == [ForgetStage.ASKED]

    async def is_done() -> bool:
        await forgetting.look(record, has_changed=True)
        return not await record.open_forget_jobs()

    try:
        deadline = time.monotonic() + 120
        while not await is_done():
            assert time.monotonic() < deadline
            await until_async(lambda: True)
    finally:
        await forgetting.stop()
    (receipt,) = (settings.home / "receipts").glob("*.json")
    assert json.loads(receipt.read_text())["selected"] == ["quote"]


async def test_the_receipt_names_what_it_does_not_reach_and_is_not_complete_while_copies_hold_it(
    record: Record, settings: Settings, tmp_path: Path
) -> None:
    home = settings.home
    aside = tmp_path / "home.before-20260101-000000"
    aside.mkdir()
    (aside / "patina.db").write_bytes(b"a row of turn three")
    with_words = tmp_path / "home.before-20260102-000000"
    with_words.mkdir()
    (with_words / "patina.db-wal").write_text(f"a turn that this record never had: {SENTINEL}")
    (tmp_path / "home.restoring-x").mkdir()
    (home / "patina.db.restored").write_text(SENTINEL)  # of a restore that was killed
    (home / "backups.json").write_text('["/backups/older"]')
    (home / "exports.json").write_text('["/exports/moved.jsonl"]')
    of_bob = home / "adapters" / "patina-tiny.bob@1"
    of_bob.mkdir(parents=True)
    (of_bob / "metrics.json").write_text(SENTINEL)
    await record.write_turns([make_turn("own", said("Hello"), session_id="s", key_name="bob")])
    job_id = await record.ask_to_forget(Selection(turn="three"))
    job = await advance(record, settings, job_id)
    receipt: Json = json.loads((home / "receipts" / f"{job_id}.json").read_text())
    assert job.state == "incomplete"
    assert receipt["complete"] is False
    (left,) = receipt["remaining"]
    assert left.startswith(f"{aside}, which a restore laid aside, holds it")
    assert receipt["out_of_reach"] == [
        "the export /exports/moved.jsonl, which was moved or deleted",
        "the copy /backups/older",
        f"{with_words}, which a restore laid aside, holds the same words: look there with --home, or delete it",
    ]
    assert receipt["copies"] == [str(home / "patina.db.restored")]
