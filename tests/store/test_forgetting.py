"""Forgetting in the background: what clients deleted is forgotten, and what cannot be says why."""

import asyncio
from pathlib import Path

from migrations import upgrade
from store.forgetting import Forgetting
from store.record import Record
from store.record_handle import RecordHandle
from store.settings import read_settings
from tests.store.queries.test_forget import fill
from tests.waiting import until_async


async def test_a_process_that_fails_leaves_its_last_line(tmp_path: Path) -> None:
    forgetting = Forgetting(tmp_path / "absent.json")
    forgetting.start("t1", "alice")
    forgetting.start("t1", "alice")  # it is under way
    (job,) = forgetting.jobs
    assert job.state == "running"
    await asyncio.gather(*forgetting._tasks)
    assert (job.state, job.receipt) == ("failed", None)
    assert "absent.json" in job.error


async def test_what_a_client_deleted_is_forgotten_with_a_receipt(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    settings = read_settings({"home": home})
    upgrade(settings.database_url)
    settings.dump(tmp_path / "settings.json")
    handle = RecordHandle(lambda: Record.open(settings.database_url))
    record = await handle.get()
    await fill(record)
    await record.delete_completion("quote")
    assert [turn_id for turn_id, _ in await record.turns_to_forget()] == ["quote"]
    forgetting = Forgetting(tmp_path / "settings.json")
    task = asyncio.create_task(forgetting.run(handle))
    await until_async(lambda: forgetting.jobs and forgetting.jobs[0].state != "running", 120)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert forgetting.state() == {"forgotten": 1, "last_error": None}
    assert await record.turns_to_forget() == []
    assert await record.key_of_turn("quote") is None
    assert len(list((home / "receipts").iterdir())) == 1
    await handle.close()
