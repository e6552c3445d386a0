"""Judged turns as preference data in text: what other trainers read, also where the backend reports no tokens. Pure.

The reply that followed a complaint is chosen over the one complained about, unless it was complained about as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from store.lifecycle import DropReason
from store.values import Json


async def preferences(rows: AsyncIterator[Json]) -> AsyncIterator[Json]:
    """Yield a line for each main turn with a verdict of +1 or -1; rows come oldest first."""
    waiting: dict[str, Json] = {}
    async for row in rows:
        if row["kind"] != "main" or row["drop_reason"] == DropReason.OPTED_OUT or not _reply(row):
            continue
        before = waiting.get(row["parent_turn_id"])
        if before is not None and row["verdict"] != -1:
            del waiting[before["turn_id"]]
            yield _line(before, rejected=before, chosen=row)
        if row["verdict"] == -1:
            waiting[row["turn_id"]] = row
        elif row["verdict"] == 1:
            yield _line(row, chosen=row)
    for row in waiting.values():
        yield _line(row, rejected=row)


def _line(row: Json, *, chosen: Json | None = None, rejected: Json | None = None) -> Json:
    return {
        "turn_id": row["turn_id"],
        "policy": row["policy"],
        "adapter_version": row["adapter_version"],
        "prompt": row["messages"],
        "chosen": None if chosen is None else _reply(chosen),
        "chosen_turn_id": None if chosen is None else chosen["turn_id"],
        "rejected": None if rejected is None else _reply(rejected),
        "verdict": row["verdict"],
        "hint": row["hint"],
        "reaction": row["next_text"],
        "source": row["verdict_source"],
    }


def _reply(row: Json) -> list[Json]:
    """Return a reply as messages; none where it is empty."""
    message: Json = {"role": "assistant", "content": row["completion"]}
    if row["tool_calls"]:
        message["tool_calls"] = row["tool_calls"]
    return [message] if row["completion"] or row["tool_calls"] else []
