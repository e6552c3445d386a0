"""Does anything get lost when any process of a whole Patina is killed? `python -m lab.bench.kill_all [--kills 50] [--pause 2.5]`.

A Patina with two gateways, recorder, scorer, trainer and supervisor, on the built-in engine with a scripted backend in front (`lab.bench.soak`),
learns under load while processes drawn at random are killed with -9: any of these, the engine, or the scripted backend. A killed supervisor, engine or
backend is started again here; the supervisor starts the others. With `--rest N`, every Nth kill waits for a new version, so that kills
and training alternate, and hits the trainer within its next step.
In the end every turn whose end a client saw must be in the record once, every version must have been trained on as many turns as carry its
number, no turn in two published versions' batches, all accepted feedback must be recorded, and `verify` must find nothing. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console

from lab.bench.proxy import Server
from lab.bench.soak import (
    Clients,
    Wrong,
    scripted,
    scripted_engine,
    teaching,
    unwritten,
    verified,
    with_tools,
)
from lab.evals.stack import Stack
from lab.models import toy_settings
from recorder.worker import REJECTED
from store.errors import ConfigError, RecordUnavailable
from store.journal import segments
from store.settings import read_settings

_TALKERS, _TEACHERS = 8, 4
_SUPERVISED = ("proxy", "proxy-2", "recorder", "scorer", "trainer")
_PAUSE_S = 0.2
_NAMES = (*_SUPERVISED, "engine", "scripted backend", "supervisor")
_ANSWERS_WITHIN_S, _RECORDED_WITHIN_S = 90.0, 600.0
#: A dead trainer's claims run out after 120 s.
_TRAINED_WITHIN_S = 200.0
#: A version must take seconds: this bench is about deaths, not about what is learned.
_LEARNING = {"passes": 1, "anchors": 0}


def until(holds: Callable[[], bool], timeout_s: float) -> None:
    """Wait for something to come true, for a bounded time."""
    deadline = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)


def children(pid: int) -> dict[str, int]:
    """Return the process ids of a supervisor's children by name."""
    found = {}
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in task.read_text().split():
                words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
                module = words[words.index("-m") + 1] if "-m" in words else words[0]
                worker = words[words.index("--worker") + 1] if "--worker" in words else "1"
                name = {"scorers": "scorer"}.get(module, module)
                found[name if worker == "1" else f"{name}-{worker}"] = int(child)
    return found


async def talk(clients: Clients, kind: Any, rng: random.Random, stop: asyncio.Event) -> None:
    """Hold one conversation after the other; one that breaks off is given up."""
    while not stop.is_set():
        try:
            async with asyncio.timeout(60.0):
                await kind(clients, rng)
        except (Wrong, OSError, ValueError, KeyError) as exc:
            clients.seen.errors[type(exc).__name__] += 1
        await asyncio.sleep(_PAUSE_S)


async def kill_at_random(
    stack: Stack, servers: dict[str, Server], names: Sequence[str], kills: int, pause_s: float, rest: int
) -> Counter[str]:
    """Kill processes of these names; returns how often each was killed."""
    killed: Counter[str] = Counter()
    database = stack.home / "patina.db"
    while killed.total() < kills:
        await asyncio.sleep(random.uniform(0.1, 2 * pause_s))
        name = random.choice(names)
        if rest and killed.total() % rest == rest - 1:
            before = len(versions(database))
            await wait_for_any(lambda n=before: len(versions(database)) > n)  # type: ignore[misc]  # a loop's lambda
            await wait_for_any(lambda: count(database, "turn_states WHERE stage = 'claimed'") > 0)
            name = "trainer" if "trainer" in names else name
        if name in servers:
            server = servers[name]
            server.process.kill()
            await asyncio.to_thread(server.process.wait)
            server.start()
        elif name == "supervisor":
            await asyncio.to_thread(restart_killed, stack)
        else:
            pid = children(stack.pid).get(name)
            if pid is None:
                continue  # it is being restarted
            stack.kill(pid)
        killed[name] += 1
        print(f"{killed.total()}: {name}", file=sys.stderr, flush=True)
    return killed


async def wait_for_any(holds: Callable[[], bool]) -> None:
    """Wait until something holds, for a bounded time: what was killed may not come so far."""
    deadline = time.monotonic() + _TRAINED_WITHIN_S
    while not holds() and time.monotonic() < deadline:  # noqa: ASYNC110 - read from a database
        await asyncio.sleep(0.2)


def restart_killed(stack: Stack) -> None:
    """Kill the supervisor and start it again, as a service manager does: until it runs."""
    stack.kill(stack.pid)
    until(lambda: not stack.is_running, 10.0)
    stack.launch()
    deadline = time.monotonic() + _ANSWERS_WITHIN_S
    while time.monotonic() < deadline:
        time.sleep(1.0)
        if stack.is_running and "proxy" in children(stack.pid):
            return
        if not stack.is_running:  # the processes of before still hold the port or the journal
            stack.launch()
    raise RuntimeError("the supervisor did not start again")


async def drive(
    stack: Stack, servers: dict[str, Server], names: Sequence[str], kills: int, pause_s: float, rest: int
) -> dict[str, Any]:
    """Let clients talk while processes are killed; returns what they saw."""
    clients = Clients(stack.port, stack.key, stack.settings.policy)
    stop = asyncio.Event()
    rng = random.Random()
    kinds = [scripted, with_tools] * (_TALKERS // 2) + [teaching] * _TEACHERS
    talkers = [asyncio.create_task(talk(clients, kind, rng, stop)) for kind in kinds]
    killed = await kill_at_random(stack, servers, names, kills, pause_s, rest)
    ended, began = len(clients.seen.ended), time.monotonic()
    while len(clients.seen.ended) == ended and time.monotonic() - began < _ANSWERS_WITHIN_S:  # noqa: ASYNC110 - counted by many tasks
        await asyncio.sleep(0.1)
    answers_after_s = time.monotonic() - began
    made = len(versions(stack.home / "patina.db"))
    if rest:
        await wait_for_any(lambda: len(versions(stack.home / "patina.db")) > made)
    await asyncio.sleep(5.0)
    stop.set()
    await asyncio.gather(*talkers)
    await clients.close()
    return {
        "killed": dict(killed),
        "ended": clients.seen.ended,
        "broken": clients.seen.errors.total(),
        "feedback": clients.seen.feedback,
        "answers_after_s": round(answers_after_s, 1),
        "versions_during_kills": made,
    }


def count(database: Path, what: str) -> int:
    """Return the number of rows of a table, with the condition behind its name."""
    with closing(sqlite3.connect(database, timeout=30.0)) as connection:
        found: int = connection.execute(f"SELECT count(*) FROM {what}").fetchone()[0]
    return found


def versions(database: Path) -> dict[int, int]:
    """Return how many turns each version that passed its gate says it was trained on."""
    with closing(sqlite3.connect(database, timeout=30.0)) as connection:
        return {
            version: json.loads(metrics)["turns"]
            for version, metrics in connection.execute(
                "SELECT version, metrics FROM adapters WHERE state != 'rejected'"
            )
        }


def trained(database: Path) -> tuple[int, list[int], list[str]]:
    """Return (turns that were trained on, versions that say another number than carry their number, turns trained on twice)."""
    with closing(sqlite3.connect(database)) as connection:
        marked = dict(
            connection.execute(
                "SELECT trained_in_version, count(*) FROM trajectories WHERE trained_in_version IS NOT NULL GROUP BY 1"
            )
        )
        twice = [
            turn
            for (turn,) in connection.execute(
                "SELECT turn_id FROM step_turns JOIN steps USING (step_id) JOIN adapters USING (policy, version)"
                " JOIN turn_states USING (turn_id)"
                " WHERE role = 'batch' AND adapters.state != 'rejected' AND trained_in_version IS NOT NULL"
                " GROUP BY turn_id HAVING count(DISTINCT steps.version) > 1"
            )
        ]
    steps = versions(database)
    return sum(marked.values()), [v for v in marked.keys() | steps if steps.get(v) != marked.get(v, 0)], twice


def run(names: Sequence[str], kills: int, pause_s: float, home: Path, rest: int = 0) -> dict[str, Any]:
    """Return what was seen and what is missing; `wrong` lists what must not be."""
    with ExitStack() as exits:
        servers = exits.enter_context(scripted_engine(home))
        upstream = f"http://127.0.0.1:{servers['scripted backend'].port}"
        settings = toy_settings(
            {
                "backend": "vllm", "upstream": upstream, "threads": 1, "judge": "none", "workers": 2,
                "batch_size": 4, "max_wait_s": 2.0, "learning": _LEARNING,
            }
        )  # fmt: skip
        stack = exits.enter_context(Stack(settings, home=home / "stack"))
        found = uvloop.run(drive(stack, servers, names, kills, pause_s, rest))
        database, journal = stack.home / "patina.db", stack.home / "journal"
        ended = found.pop("ended")
        until(lambda: not segments(journal), _RECORDED_WITHIN_S)
        missing = unwritten(database, ended, 1.0)
        with suppress(RecordUnavailable):
            found["store"] = stack.status()["store"]
    turns, feedback = count(database, "turns"), count(database, "feedback")
    trained_turns, unequal, twice = trained(database)
    found |= {
        "ended": len(ended),
        "ended_twice": len(ended) - len(set(ended)),
        "missing": len(missing),
        "turns": turns,
        "trained": trained_turns,
        "versions": len(versions(database)),
        "versions_with_other_turns": unequal,
        "trained_twice": twice,
        "nothing_trained": rest > 0 and not trained_turns,
        "feedback_missing": max(0, found["feedback"] - feedback),
        "segments_left": len(segments(journal)),
        "rejected": len(list((journal / REJECTED).glob("*"))),
        "verify": asyncio.run(verified(read_settings({"home": stack.home}))),
    }
    wrong = (
        "ended_twice",
        "missing",
        "versions_with_other_turns",
        "trained_twice",
        "nothing_trained",
        "feedback_missing",
        "segments_left",
        "rejected",
        "verify",
    )
    return {**found, "wrong": [name for name in wrong if found[name]]}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.kill_all", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument(
        "--pause", type=float, default=2.5, help="mean seconds between two kills (default: %(default)s)"
    )
    parser.add_argument(
        "--rest", type=int, default=0, help="every so many kills, wait for a new version; 0: never (default)"
    )
    parser.add_argument("--only", nargs="+", choices=_NAMES, default=_NAMES, help="what is killed")
    parser.add_argument("--home", type=Path, help="folder to leave everything in; default: none is left")
    arguments = parser.parse_args()
    with ExitStack() as exits:
        home = arguments.home or Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="patina-kill-")))
        home.mkdir(parents=True, exist_ok=True)
        try:
            found = run(arguments.only, arguments.kills, arguments.pause, home, arguments.rest)
        except ConfigError as exc:
            print(f"lab.bench.kill_all: {exc}", file=sys.stderr)
            return 1
    Console().print_json(json.dumps(found))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
