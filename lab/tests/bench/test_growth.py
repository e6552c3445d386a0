"""The record that `lab.bench.growth` measures on is one that the proxy could have written."""

import asyncio
from pathlib import Path

from lab.bench.growth import fill
from store.record import Record


async def test_a_filled_record_has_its_turns_and_is_sound(tmp_path: Path) -> None:
    await asyncio.to_thread(fill, tmp_path, 60)
    record = await Record.open(f"sqlite+aiosqlite:///{tmp_path / 'patina.db'}")
    assert (await record.status()).turns == 60
    assert await record.verify() == []
    rows = await record.trajectories(session_id="session_3")
    assert [len(row["messages"]) for row in rows] == [1, 2, 3, 4, 5]
    await record.close()
