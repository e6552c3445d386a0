"""What a backend has taught us about itself: fields it refuses, and what it writes where nothing was asked for.

Learnt once and kept: for somebody else's endpoint in a small file, so that a restart does not have to ask again. What was refused is
tried again after a week: endpoints learn, too.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from proxy.wire import Habits

log = logging.getLogger(__name__)

_FORGET_S = 7 * 24 * 3600.0
#: A 5xx that names a field may have been a passing fault.
_FORGET_UNSURE_S = 600.0
_MOST_MODELS = 1000


class Learnt:
    """Memory of one backend.

    Args:
        address: where it is, without credentials.
        path: file to keep it in, shared by all addresses; None: in memory only.
    """

    def __init__(self, address: str, path: Path | None = None) -> None:
        self._address = address
        self._path = path
        self.habits = Habits()
        self._proven: frozenset[str] = frozenset()
        self._refused: dict[str, float] = {}
        self._refused_for: dict[str, dict[str, float]] = {}
        if path is not None:
            self._read(path)

    @property
    def refused(self) -> list[str]:
        """For `status`: fields refused at all, and those refused for one model as ``field (model)``."""
        everywhere = self._alive(self._refused)
        single = [
            f"{name} ({model})"
            for model, names in self._refused_for.items()
            for name in self._alive(names) - everywhere
        ]
        return sorted(everywhere) + sorted(single)

    def takes(self, fields: frozenset[str], model: str | None) -> frozenset[str]:
        """Return those of ``fields`` that are worth sending for ``model``."""
        if not self._refused and not self._refused_for:
            return fields
        return fields - self._alive(self._refused) - self._alive(self._refused_for.get(model or "", {}))

    def is_proven(self, fields: Iterable[str]) -> bool:
        """Whether the backend has answered a request with these fields before: an error is then about something else."""
        return self._proven.issuperset(fields)

    def prove(self, fields: Iterable[str]) -> None:
        """A request with these fields was answered."""
        if not self._proven.issuperset(fields):
            self._proven |= frozenset(fields)
            self._write()

    def refuse(self, fields: Iterable[str], model: str | None, *, is_sure: bool = True) -> None:
        """A request was answered only without these fields. One that was taken for another model is this model's matter alone."""
        until = time.time() + (_FORGET_S if is_sure else _FORGET_UNSURE_S)
        for name in fields:
            log.warning("%s does not take %s", self._address, name)
            if name not in self._proven:
                self._refused[name] = until
            elif len(self._refused_for) < _MOST_MODELS:
                self._refused_for.setdefault((model or "")[:200], {})[name] = until
        self._write()

    def note(self, habits: Habits) -> None:
        if habits != self.habits:
            self.habits = habits
            self._write()

    @staticmethod
    def _alive(names: dict[str, float]) -> frozenset[str]:
        now = time.time()
        return frozenset(name for name, until in names.items() if now < until)

    # ---- the file

    def _read(self, path: Path) -> None:
        try:
            mine = orjson.loads(path.read_bytes()).get(self._address) or {}
            self.habits = Habits(**mine.get("habits", {}))
            self._proven = frozenset(mine.get("proven", []))
            self._refused = dict(mine.get("refused", {}))
            self._refused_for = dict(mine.get("refused_for", {}))
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, AttributeError) as exc:
            # It can be learnt again: at the worst a request is sent twice.
            log.warning("%s cannot be read and is made anew: %s", path, exc)

    def _write(self) -> None:
        if self._path is None:
            return
        mine = {
            "habits": {"logprobs": self.habits.logprobs, "token_ids": self.habits.token_ids},
            "proven": sorted(self._proven),
            "refused": self._refused,
            "refused_for": self._refused_for,
        }
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            found: Any = orjson.loads(self._path.read_bytes()) if self._path.exists() else {}
        except (OSError, ValueError):
            found = {}
        known = found if isinstance(found, dict) else {}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(orjson.dumps({**known, self._address: mine}))
            temporary.replace(self._path)
        except OSError as exc:
            log.warning("what was learnt about %s cannot be kept: %s", self._address, exc)
