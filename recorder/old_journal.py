"""Upgrade: the turns that an earlier version left in ``unwritten.jsonl`` when it crashed, taken over into the journal.

The earlier version kept one line of JSON for each exchange that it could not commit in time. Turns that are recorded already are skipped by
the recorder, which looks up what it reads after its start.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

import orjson

from store.journal import EntryKind, JournalWriter, segments
from store.values import Json
from wire.captured_exchange import load_exchange

log = logging.getLogger(__name__)

#: The file, in the home.
OLD_JOURNAL = "unwritten.jsonl"
_WRITER = "upgrade"
_POLL_S = 0.05
_FIELDS = (
    "turn_id", "created_at", "finished_at", "scope", "client", "policy", "adapter_version", "status_code", "streamed",
    "temperature", "size", "reply", "fault", "logprob_mode",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was taken over.

    Attributes:
        kept: the renamed file; it still has every line, the unreadable ones too.
    """

    converted: int
    unreadable: int
    kept: Path


async def convert_old_journal(home: Path, folder: Path) -> Conversion | None:
    """Append the lines of an old journal to the journal in ``folder``, then rename the file. To be called before the folder is read.

    Returns:
        None when there is no old journal.

    Raises:
        OSError: the journal cannot be written. Nothing is taken over then; the next start tries again.
    """
    path = home / OLD_JOURNAL
    if not path.exists():
        return None
    _remove_segments(folder)  # of a start that died here
    writer = JournalWriter(folder, _WRITER)
    converted = unreadable = 0
    try:
        with path.open("rb") as lines:
            for line in lines:
                if not line.strip():
                    continue
                try:
                    payload = convert_line(line)
                except Exception as exc:  # noqa: BLE001 - counted and kept: one line must not stop the others
                    unreadable += 1
                    log.error("a line of %s cannot be read: %s: %s", path, type(exc).__name__, exc)
                    continue
                written = writer.append(EntryKind.EXCHANGE, payload)
                while written is not None and not written.done() and writer.last_error is None:
                    await asyncio.wait((written,), timeout=_POLL_S)  # a slow disk
                if writer.last_error is not None:
                    break
                converted += 1
        has_failed = writer.last_error is not None
        left = await writer.close()
        if has_failed or left or writer.lost:
            raise OSError(f"{path} is not taken over: {writer.last_error}")
    except OSError:
        _remove_segments(folder)
        raise
    kept = _free_name(path)
    path.rename(kept)
    log.info("%d turns of %s are taken over, %d lines are unreadable (kept in %s)", converted, path, unreadable, kept)  # fmt: skip
    return Conversion(converted, unreadable, kept)


def convert_line(line: bytes) -> bytes:
    """Return the payload of the journal entry for one line. Raises: ValueError, KeyError, TypeError, WireError: it is no such line."""
    value: Json = orjson.loads(line)
    head = {**{name: value[name] for name in _FIELDS}, "options": value["wishes"]}
    payload: bytes = orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE) + value["body"].encode()
    load_exchange(payload)
    return payload


def _remove_segments(folder: Path) -> None:
    for path in segments(folder):
        if f"-{_WRITER}-" in path.name:
            path.unlink(missing_ok=True)


def _free_name(path: Path) -> Path:
    """Return ``….done``, or ``….done.1`` and so on: what an earlier upgrade kept stays."""
    name = path.with_name(f"{path.name}.done")
    number = 0
    while name.exists():
        number += 1
        name = path.with_name(f"{path.name}.done.{number}")
    return name
