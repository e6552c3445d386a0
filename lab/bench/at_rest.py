"""What does Patina use while no request comes? `python -m bench.at_rest [--seconds 60] PID`.

PID is a process that runs, such as the one that `make run` prints Ctrl-C for; its children are measured with it. Reads /proc only. CPU time
is that of all threads, a wake-up is a voluntary context switch (a thread that slept and ran again), and memory is the proportional set size, so that
pages that processes share count once.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters of one process since it started.

    Attributes:
        wakeups: voluntary context switches, by thread.
        pss_mb: proportional set size.
    """

    name: str
    cpu_s: float
    wakeups: dict[int, int]
    pss_mb: float


def family(root: int) -> Iterator[int]:
    """Yield a process and all that descend from it."""
    yield root
    for task in (_PROC / str(root) / "task").iterdir():
        for child in (task / "children").read_text().split():
            yield from family(int(child))


def usage(pid: int) -> Usage:
    """Read the counters of a process."""
    folder = _PROC / str(pid)
    fields = (folder / "stat").read_text().rpartition(") ")[2].split()
    wakeups = {
        int(task.name): _number((task / "status").read_text(), "voluntary_ctxt_switches")
        for task in (folder / "task").iterdir()
    }
    pss = _number((folder / "smaps_rollup").read_text(), "Pss") / 1024
    return Usage(_name(folder), (int(fields[11]) + int(fields[12])) / _TICKS, wakeups, pss)


def _name(folder: Path) -> str:
    """Return the module of `python -m MODULE`, else the script."""
    words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return (
        words[words.index("-m") + 1] if "-m" in words else Path(words[1] if len(words) > 1 else words[0]).name
    )


def _number(text: str, field: str) -> int:
    line = next(line for line in text.splitlines() if line.startswith(field + ":"))
    return int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU, wake-ups and memory of a process and its children.")
    parser.add_argument("pid", type=int)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", action="store_true", help="name the threads that wake most")
    args = parser.parse_args()
    before = {pid: usage(pid) for pid in family(args.pid)}
    began = time.monotonic()
    time.sleep(args.seconds)
    after = {pid: usage(pid) for pid in before}
    seconds = time.monotonic() - began
    table = Table("process", "CPU %", "wake-ups/s", "PSS MB")
    total = [0.0, 0.0, 0.0]
    for pid, old in before.items():
        new = after[pid]
        threads = {task: count - old.wakeups.get(task, 0) for task, count in new.wakeups.items()}
        row = [100 * (new.cpu_s - old.cpu_s) / seconds, sum(threads.values()) / seconds, new.pss_mb]
        total = [sum(pair) for pair in zip(total, row, strict=True)]
        table.add_row(new.name, f"{row[0]:.2f}", f"{row[1]:.1f}", f"{row[2]:.0f}")
        if args.threads:
            for task, count in sorted(threads.items(), key=lambda one: -one[1])[:4]:
                name = (_PROC / str(pid) / "task" / str(task) / "comm").read_text().strip()
                table.add_row(f"  {name}", "", f"{count / seconds:.1f}", "")
    table.add_section()
    table.add_row("all", f"{total[0]:.2f}", f"{total[1]:.1f}", f"{total[2]:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
