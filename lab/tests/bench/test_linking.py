"""The bench fills a record with conversations that are really there, and every kind of request is linked in it."""

from __future__ import annotations

import asyncio

from lab.bench.linking import CaptureSource, filled, measure
from store.record import Record


def test_a_filled_record_is_one_and_requests_are_linked_in_it() -> None:
    with filled(400) as url:
        found = asyncio.run(measure(url, CaptureSource(), conversations=3))

        async def read() -> tuple[list[str], list[str]]:
            record = await Record.open(url)
            rows = await record.trajectories()
            await record.close()
            mine = [row for row in rows if row["session_id"].startswith("session_0")]
            return [row["relation"] for row in mine], [row["session_id"] for row in rows]

        relations, sessions = asyncio.run(read())
    assert set(found) == {"start", "opening", "next", "next, after a restart", "beginning dropped"}
    assert len(set(sessions)) == 4 + 3  # the stored ones, and one for each conversation held
    assert sorted(set(relations)) == ["compaction", "first", "next"]
