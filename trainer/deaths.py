"""Turns that a trainer died with: counted in a small file of the home, since a killed process reports nothing.

A turn may kill the trainer in the middle of a step; the claim runs out, the next trainer takes the same turns and dies with them, for ever.
So the turns of a step are written down before it and crossed out after it. Those that are still there at the next start are the ones that
the trainer died with. After `PATIENCE` deaths a batch is attempted in halves, then in quarters, and so on; a turn that the trainer died
with alone is dropped: as `out_of_memory` where the kernel's count of out-of-memory kills rose since the step began, else as `trainer_died`.

Neither a requested stop nor a reboot counts as a death.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from store.errors import ConfigError
from store.lifecycle import DropReason

#: Deaths with a batch before it is attempted in smaller ones.
PATIENCE = 2
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDecision:
    """What becomes of claimed turns: each id is in exactly one."""

    attempt: tuple[str, ...]
    later: tuple[str, ...]
    drop: Mapping[str, DropReason]


def choose(
    turn_ids: Sequence[str], deaths: Mapping[str, int], fatal: Mapping[str, DropReason]
) -> RetryDecision:
    """Decide which of the claimed turns to attempt now.

    Args:
        deaths: how often a trainer died with a turn in its batch.
        fatal: turns that one died with while they were alone.
    """
    rest = [one for one in turn_ids if one not in fatal]
    worst = max((deaths.get(one, 0) for one in rest), default=0)
    count = max(1, len(rest) >> max(0, worst - PATIENCE + 1)) if rest else 0
    return RetryDecision(
        attempt=tuple(rest[:count]),
        later=tuple(rest[count:]),
        drop={one: fatal[one] for one in turn_ids if one in fatal},
    )


def oom_kills() -> dict[str, int]:
    """Return the kernel's counts of processes killed for memory: of this process's control group, then of the machine since its start.

    A key names one counter: a group that is made anew has another key. A counter that this system lacks is left out.
    """
    found: dict[str, int] = {}
    for line in _lines(Path("/proc/self/cgroup")):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            folder, file = _CGROUPS / path.lstrip("/"), "memory.events"
        elif "memory" in controllers.split(","):
            folder, file = _CGROUPS / "memory" / path.lstrip("/"), "memory.oom_control"
        else:
            continue
        for count in _counts(folder / file):
            found[f"{folder}:{folder.stat().st_ino}"] = count
    for count in _counts(Path("/proc/vmstat")):
        found["vmstat"] = count
    return found


def boot_id() -> str:
    """Return what names this run of the machine, or "" where the system does not say."""
    return "".join(_lines(Path("/proc/sys/kernel/random/boot_id")))


def _counts(path: Path) -> list[int]:
    return [int(line.split()[1]) for line in _lines(path) if line.startswith("oom_kill ")]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:  # another system than Linux, or a group that is not visible here
        return []


def killed_for_memory(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Whether the narrowest counter that both have rose."""
    common = [name for name in before if name in after]
    return bool(common) and after[common[0]] > before[common[0]]


class Deaths:
    """The file. What it says is read once, when this is made.

    Raises:
        ConfigError: it is there and cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._deaths: dict[str, int] = {}
        self._fatal: dict[str, DropReason] = {}
        self._is_stopping = False
        if not path.exists():
            return
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            if "boot_id" not in saved:  # of an earlier release, which did not know why a trainer died
                return
            self._deaths = {str(one): int(count) for one, count in saved["deaths"].items()}
            self._fatal = {str(one): DropReason(reason) for one, reason in saved["fatal"].items()}
            under_way = [str(one) for one in saved["under_way"]]
            boot, kills = str(saved["boot_id"]), {str(k): int(n) for k, n in saved["oom_kills"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} cannot be read ({error}); remove it") from error
        if boot == boot_id():
            self._count(under_way, killed_for_memory(kills, oom_kills()))
        self._write(())

    def _count(self, turn_ids: Sequence[str], is_for_memory: bool) -> None:
        for one in turn_ids:
            self._deaths[one] = self._deaths.get(one, 0) + 1
        if len(turn_ids) == 1 and self._deaths[turn_ids[0]] > PATIENCE:
            self._fatal[turn_ids[0]] = DropReason.OUT_OF_MEMORY if is_for_memory else DropReason.TRAINER_DIED

    def choose(self, turn_ids: Sequence[str]) -> RetryDecision:
        """See `choose`."""
        return choose(turn_ids, self._deaths, self._fatal)

    def begin(self, turn_ids: Sequence[str]) -> None:
        """A step with these turns begins."""
        self._write(() if self._is_stopping else turn_ids)

    def end(self, turn_ids: Sequence[str]) -> None:
        """It ended, however it ended: the trainer is alive."""
        for one in turn_ids:
            self._deaths.pop(one, None)
            self._fatal.pop(one, None)
        self._write(())

    def stopping(self) -> None:
        """The trainer was asked to stop: if it is killed because its step takes too long, that is no death."""
        self._is_stopping = True
        self._write(())

    def _write(self, under_way: Sequence[str]) -> None:
        state = {
            "under_way": list(under_way),
            "deaths": self._deaths,
            "fatal": self._fatal,
            "boot_id": boot_id(),
            "oom_kills": oom_kills(),
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".new")
        with beside.open("w", encoding="utf-8") as file:
            file.write(json.dumps(state))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
