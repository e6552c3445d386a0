"""A forget that cannot be done says why."""

import asyncio
from pathlib import Path

from dashboard.forgetting import Forgetting


async def test_a_process_that_fails_leaves_its_last_line(tmp_path: Path) -> None:
    forgetting = Forgetting(tmp_path / "absent.json")
    forgetting.start("t1", "alice")
    forgetting.start("t1", "alice")  # it is under way
    (job,) = forgetting.jobs
    assert job.state == "running"
    await asyncio.gather(*forgetting._tasks)
    assert (job.state, job.receipt) == ("failed", None)
    assert "absent.json" in job.error
