"""How long does the web page take over a large record? `python -m bench.dashboard [--turns 1000000]`.

A record is filled by bulk SQL: turns, verdicts, dropped and trained turns, versions, steps, a key with few, old turns, and a key with all others. Then every page
is asked for in this process: once on a fresh page process, then again and again. Measured: server time, without a network, by the clock and in CPU time, which a busy machine does not change.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from bench.backend import MODEL
from bench.growth import fill
from dashboard.app import Dashboard, create_app
from dashboard.sign_in import SignIn
from store.journal import JournalWriter
from store.keys import KeyFile, Keyring
from store.record import Record
from store.record_handle import RecordHandle
from store.settings import read_settings

OWNER_KEY = "patina-bench"
#: A key with this many turns, among the oldest, and its own policy with half of them; and a key with all others, of the shared policy.
PERSON, PERSON_TURNS, BUSY = "ann", 400, "bulk"
LIMIT_MS = 100.0
_VERSIONS, _TURNS_OF_A_VERSION = 200, 12
_PATHS = (
    "/dashboard", "/dashboard/versions", "/dashboard/versions/{version}", "/dashboard/unused", "/dashboard/conversations",
    "/dashboard/conversations?session={session}", "/dashboard/turns/{turn}", "/dashboard/steps", "/dashboard/steps?page=99999",
    "/dashboard/people", "/dashboard/live", "/dashboard/try", "/dashboard/settings",
)  # fmt: skip
_OWNER_ONLY = ("/dashboard/try", "/dashboard/settings")


def add_learning(home: Path) -> None:
    """Judge two of five turns of a filled record, drop one, and make versions of the newest complaints."""
    with closing(sqlite3.connect(home / "patina.db")) as database:
        database.execute("PRAGMA synchronous=OFF")
        database.execute(
            "INSERT INTO verdicts (turn_id, value, hint, hint_is_reaction, source, confidence, detail, created_at) "
            "SELECT turn_id, (turn_index % 3) - 1, 'Shorter, please.', 1, 'patterns', 1.0, '{}', created_at FROM turns "
            "WHERE turn_index < 2 ORDER BY created_at"
        )
        database.execute(
            "UPDATE turn_states SET stage = 'dropped', drop_reason = 'no_signal' WHERE turn_id IN (SELECT turn_id FROM turns WHERE turn_index = 1)"
        )
        newest = database.execute(
            "SELECT turn_id FROM turns WHERE turn_index = 0 ORDER BY created_at DESC LIMIT ?",
            (_VERSIONS * _TURNS_OF_A_VERSION,),
        ).fetchall()
        metrics = json.dumps({"turns": _TURNS_OF_A_VERSION, "loss": 0.5, "teach_s": 1.0, "train_s": 2.0})
        for version in range(1, _VERSIONS + 1):
            first = (_VERSIONS - version) * _TURNS_OF_A_VERSION
            database.executemany(
                "UPDATE turn_states SET stage = 'trained', trained_in_version = ? WHERE turn_id = ?",
                [(version, turn_id) for (turn_id,) in newest[first : first + _TURNS_OF_A_VERSION]],
            )
            at = 1.7e9 + version
            database.execute(
                "INSERT INTO adapters (policy, version, path, content_hash, parent_version, state, reason, method, metrics, created_at) "
                "VALUES (?, ?, '/nowhere', '0', ?, 'published', 'complaints', 'combine', ?, ?)",
                (MODEL, version, version - 1, metrics, at),
            )
            database.execute(
                "INSERT INTO steps (step_id, policy, method, started_at, finished_at, version, metrics) VALUES (?, ?, 'combine', ?, ?, ?, ?)",
                (f"step{version}", MODEL, at, at + 5, version, metrics),
            )
            database.execute(
                "INSERT INTO alias_moves (policy, version, moved_at, actor) VALUES (?, ?, ?, 'trainer')",
                (MODEL, version, at),
            )
        oldest = "SELECT turn_id FROM turns ORDER BY created_at LIMIT ?"
        database.execute(f"UPDATE turns SET key_name = ? WHERE turn_id IN ({oldest})", (PERSON, PERSON_TURNS))
        half = (f"{MODEL}.{PERSON}", PERSON_TURNS // 2)
        database.execute(f"UPDATE turns SET policy = ? WHERE turn_id IN ({oldest})", half)
        database.execute(f"UPDATE turn_states SET policy = ? WHERE turn_id IN ({oldest})", half)
        database.commit()


def _some(home: Path, key_name: str) -> dict[str, str]:
    """Return a turn and a session of a key, and the newest version."""
    with closing(sqlite3.connect(home / "patina.db")) as database:
        turn, session = database.execute(
            "SELECT turn_id, session_id FROM turns WHERE key_name = ? ORDER BY created_at DESC LIMIT 1",
            (key_name,),
        ).fetchone()
    return {"turn": turn, "session": session, "version": str(_VERSIONS)}


async def measure(
    home: Path, key: str, paths: Sequence[str], repeats: int
) -> list[tuple[str, float, float, float]]:
    """Return (path, first ms, median ms, first CPU ms) of each page, of a page process that has just started."""
    settings = read_settings({"home": home})
    found = []
    for path in paths:
        dashboard = Dashboard(
            settings=settings,
            record=RecordHandle(lambda: Record.open(settings.database_url)),
            keys=Keyring(OWNER_KEY, named=KeyFile(settings.keys_file)),
            sign_in=SignIn(settings.sign_in_folder),
            journal=JournalWriter(settings.journal_folder, "dashboard"),
            gateway_url="http://127.0.0.1:9",
            first_key=OWNER_KEY,
            settings_file=home / "settings.json",
        )
        transport = httpx.ASGITransport(create_app(dashboard))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", headers={"x-patina-key": key}
        ) as client:
            await client.get("/dashboard/people")  # opens the record and reads the templates
            times, used = [], []
            for _ in range(1 + repeats):
                began, cpu = time.perf_counter(), time.process_time()
                reply = await client.get(path)
                times.append((time.perf_counter() - began) * 1e3)
                used.append((time.process_time() - cpu) * 1e3)
                if reply.status_code != 200:
                    raise SystemExit(f"{path} answered {reply.status_code}")
        await dashboard.close()
        found.append((path, times[0], statistics.median(times[1:]), used[0]))
    return found


def main() -> int:
    """Print the table; returns 1 when a first view takes more than `LIMIT_MS` of CPU time."""
    parser = argparse.ArgumentParser(description="The web page over a large record.")
    parser.add_argument("--turns", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--home", type=Path, help="a home to fill, or one that this bench has filled")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = arguments.home or Path(temporary)
        keys = KeyFile(read_settings({"home": home}).keys_file)
        for one in keys.read():
            if one.revoked_at is None:
                keys.revoke(one.name)
        if not (home / "patina.db").exists():
            fill(home, arguments.turns)
            add_learning(home)
        people = {"owner": OWNER_KEY, PERSON: keys.add(PERSON), BUSY: keys.add(BUSY, adapter="")}
        table = Table(
            "who",
            "page",
            "first ms",
            "median ms",
            "first CPU ms",
            title=f"Pages over {arguments.turns:,} turns",
        )
        slowest = 0.0
        for who, key in people.items():
            names = _some(home, PERSON if who == PERSON else BUSY)
            paths = [
                path.format(**names)
                for path in _PATHS
                if who == "owner" or (path not in _OWNER_ONLY and not (who == PERSON and "{version}" in path))
            ]
            for path, first, median, used in asyncio.run(measure(home, key, paths, arguments.repeats)):
                table.add_row(who, path, f"{first:.1f}", f"{median:.1f}", f"{used:.1f}")
                slowest = max(slowest, used)
    Console().print(table)
    return int(slowest > LIMIT_MS)


if __name__ == "__main__":
    raise SystemExit(main())
