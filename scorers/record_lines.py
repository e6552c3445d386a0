"""``--record-jsonl DIR``: each turn and each verdict becomes a line of a file as soon as the record has it.

A task of the scorer, which reads the record anyway: recorder and gateway know nothing of it. What is in the files tells a restart where to go
on: a file begins with a line ``start``, which names the newest verdict before it. After an error, a full disk for one, what could not be
written is written later.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from store.errors import RecordError
from store.record import Record
from store.record_lines import append_lines, hold_lines, line_files
from store.values import Json

log = logging.getLogger(__name__)

#: A turn is dated by its request and recorded after its reply: one that is recorded so much later than a newer turn is not missed.
LOOKBACK_S = 3_600.0
#: Shortest time between two looks, and between two attempts after an error.
_EVERY_S, _AGAIN_S = 1.0, 10.0
#: Turns and verdicts of one look.
_PAGE = 200


@dataclass(slots=True)
class _Written:
    """What the files have."""

    turns: dict[str, float] = field(default_factory=dict)  #: turn id -> when it was asked
    since: float = 0.0  #: turns asked before are not looked for
    verdict: int | None = None


class RecordLines:
    """Follows the record.

    Args:
        on_problem: called with a sentence when lines cannot be written, and with None when they can again.
    """

    def __init__(
        self, record: Record, home: Path, folder: Path, on_problem: Callable[[str | None], None]
    ) -> None:
        self._record, self._home, self._folder, self._on_problem = record, home, folder, on_problem
        self._written: _Written | None = None
        self._began = time.time()

    async def run(self) -> None:
        """Follow until cancelled."""
        changes = self._record.change_notice(min_interval_s=_EVERY_S)
        last: str | None = None
        try:
            while True:
                problem = None
                try:
                    while await self.write_new():
                        pass
                except (OSError, ValueError, RecordError) as exc:
                    problem = f"lines cannot be written to {self._folder}: {exc}"
                if problem != last:
                    self._on_problem(problem)
                    log.warning("%s", problem or f"lines are written to {self._folder} again")
                last = problem
                if problem:
                    await asyncio.sleep(_AGAIN_S)
                else:
                    await changes.wait(LOOKBACK_S)
        finally:
            changes.close()

    async def write_new(self) -> bool:
        """Write up to a page of what is new; returns whether there may be more.

        Raises:
            OSError: nothing of it was written.
            ValueError: a line of an earlier file is no JSON.
            RecordError: the record cannot be read.
        """
        lock = hold_lines(self._home)
        await asyncio.to_thread(lock.__enter__)
        try:
            return await self._write_new()
        finally:
            lock.__exit__(None, None, None)

    async def _write_new(self) -> bool:
        done = self._written
        if done is None:
            done = await asyncio.to_thread(_read_back, self._folder, self._began)
        if done.verdict is None:  # what was judged before the first start is not new
            done.verdict = max((one.verdict_id for one in await self._record.verdicts_after(None)), default=0)
        found = [one for one in await self._record.turns_since(done.since) if one[0] not in done.turns]
        new = dict(found[:_PAGE])
        verdicts = await self._record.verdicts_after(done.verdict, limit=_PAGE)
        rows: list[Json] = [
            {"type": "turn", **row} for row in await self._record.trajectories(turn_ids=list(new))
        ]
        rows += [{"type": "verdict", **asdict(one)} for one in verdicts]
        if rows or self._written is None:
            await asyncio.to_thread(self._append, rows, done.verdict)
        self._written = done
        done.turns |= new
        done.verdict = max((one.verdict_id for one in verdicts), default=done.verdict)
        done.since = max(done.since, max(done.turns.values(), default=0.0) - LOOKBACK_S)
        done.turns = {turn: at for turn, at in done.turns.items() if at >= done.since}
        return len(found) > len(new) or len(verdicts) == _PAGE

    def _append(self, rows: list[Json], verdict: int) -> None:
        now = time.time()
        path = self._folder / time.strftime("%Y-%m-%d.jsonl", time.gmtime(now))
        if not path.exists() or not path.stat().st_size:
            rows = [{"type": "start", "created_at": now, "verdict_id": verdict}, *rows]
        append_lines(path, [orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows])


def _read_back(folder: Path, began: float) -> _Written:
    """Read where an earlier process ended from the newest two files; nothing before this start is new where there is none.

    Raises:
        OSError, ValueError: a file cannot be read.
    """
    done = _Written(since=began)
    starts = []
    for path in line_files(folder)[-2:]:
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break  # torn; the next line replaces it
                row = json.loads(line)
                if row["type"] == "turn":
                    done.turns[row["turn_id"]] = row["created_at"]
                else:
                    done.verdict = max(done.verdict or 0, row["verdict_id"])
                if row["type"] == "start":
                    starts.append(row["created_at"])
    if starts:
        done.since = max(min(starts), max(done.turns.values(), default=0.0) - LOOKBACK_S)
    return done
