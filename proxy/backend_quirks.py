"""Observed quirks of a backend: request fields it refuses, and how it writes fields that were not requested.

Quirks of a remote endpoint are kept in a small file, so that a restart need not observe them again. A refused field is tried again after a
week, because endpoints change.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from wire.reply_strip import NullFieldStyle

log = logging.getLogger(__name__)

_REFUSAL_TTL_S = 7 * 24 * 3600.0
#: A 5xx that names a field may be a temporary fault.
_UNSURE_REFUSAL_TTL_S = 600.0
_MAX_MODELS = 1000


class BackendQuirks:
    """The quirks of one backend.

    Args:
        address: of the backend, without credentials.
        path: file that keeps the quirks of all addresses; None: in memory only.
    """

    def __init__(self, address: str, path: Path | None = None) -> None:
        self._address = address
        self._path = path
        self.null_style = NullFieldStyle()
        self._accepted: frozenset[str] = frozenset()
        self._refused: dict[str, float] = {}
        self._refused_for: dict[str, dict[str, float]] = {}
        if path is not None:
            self._read(path)

    @property
    def refused(self) -> list[str]:
        """Return refused fields for `status`; those refused for one model as ``field (model)``."""
        everywhere = self._unexpired(self._refused)
        single = [
            f"{name} ({model})"
            for model, names in self._refused_for.items()
            for name in self._unexpired(names) - everywhere
        ]
        return sorted(everywhere) + sorted(single)

    def accepted_fields(self, fields: frozenset[str], model: str | None) -> frozenset[str]:
        """Return those of ``fields`` that may be sent for ``model``."""
        if not self._refused and not self._refused_for:
            return fields
        return (
            fields - self._unexpired(self._refused) - self._unexpired(self._refused_for.get(model or "", {}))
        )

    def has_accepted(self, fields: Iterable[str]) -> bool:
        """Whether the backend has answered a request with these fields before: an error then has another cause."""
        return self._accepted.issuperset(fields)

    def record_accepted(self, fields: Iterable[str]) -> None:
        """Note that a request with these fields was answered."""
        if not self._accepted.issuperset(fields):
            self._accepted |= frozenset(fields)
            self._write()

    def record_refused(self, fields: Iterable[str], model: str | None, *, is_certain: bool = True) -> None:
        """Note that a request was answered only without these fields. A field that another model accepts is refused for this model only."""
        until = time.time() + (_REFUSAL_TTL_S if is_certain else _UNSURE_REFUSAL_TTL_S)
        for name in fields:
            log.warning("%s does not accept %s", self._address, name)
            if name not in self._accepted:
                self._refused[name] = until
            elif len(self._refused_for) < _MAX_MODELS:
                self._refused_for.setdefault((model or "")[:200], {})[name] = until
        self._write()

    def record_null_style(self, null_style: NullFieldStyle) -> None:
        if null_style != self.null_style:
            self.null_style = null_style
            self._write()

    @staticmethod
    def _unexpired(names: dict[str, float]) -> frozenset[str]:
        now = time.time()
        return frozenset(name for name, until in names.items() if now < until)

    # ---- the file

    def _read(self, path: Path) -> None:
        try:
            entry = orjson.loads(path.read_bytes()).get(self._address) or {}
            self.null_style = NullFieldStyle(**entry.get("habits", {}))
            self._accepted = frozenset(entry.get("proven", []))
            self._refused = dict(entry.get("refused", {}))
            self._refused_for = dict(entry.get("refused_for", {}))
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, AttributeError) as exc:
            # The quirks are observed again: at worst a request is sent twice.
            log.warning("%s cannot be read and is replaced: %s", path, exc)

    def _write(self) -> None:
        if self._path is None:
            return
        entry = {
            "habits": {"logprobs": self.null_style.logprobs, "token_ids": self.null_style.token_ids},
            "proven": sorted(self._accepted),
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
                file.write(orjson.dumps({**known, self._address: entry}))
            temporary.replace(self._path)
        except OSError as exc:
            log.warning("the quirks of %s cannot be saved: %s", self._address, exc)
