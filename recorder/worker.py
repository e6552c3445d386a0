"""The recorder's loop: journal entries in, rows out, exactly once.

The offset up to which a segment is recorded is written in the transaction that writes its turns, so a recorder that dies goes on where its
last commit ended. While the record is unavailable, entries stay in the journal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson

from recorder.journal_reader import EntryBatch, JournalReader
from recorder.pacing import POLL_S, Pacing
from recorder.telemetry import RecorderTelemetry
from recorder.turn_recorder import TurnRecorder
from recorder.turns import ClassifiedExchange, classify_exchange
from store.change_notice import ChangeNotice
from store.errors import RecordError
from store.heartbeats import LOOK_S, HeartbeatWriter
from store.journal import STATE_FILE, Entry, EntryKind, is_rewritten, measure_lag
from store.record import Record
from store.values import Feedback, Json
from wire.captured_exchange import load_exchange
from wire.prefix_cache import PrefixCache

log = logging.getLogger(__name__)

#: Shortest time between two looks for recorded segments.
_CLEANING_S = 1.0
#: Longest wait for the journal: of a change that inotify does not see, and while a segment is there that will be removed.
_REST_S, _SEGMENT_S = 10.0, 1.0
#: What this process itself writes into the journal's folder.
_OWN_FILES = (STATE_FILE, Path(STATE_FILE).with_suffix(".new").name)
#: Size of the state's file, padded with blanks: always the same, so that it can be overwritten on a full disk.
_STATE_BYTES = 4096
#: Folder in the journal's: entries that cannot be recorded.
REJECTED = "rejected"


class RecorderWorker:
    """Records what is in a journal folder.

    Args:
        folder: the journal.
        open_record: opens the record; called repeatedly while the record is unavailable.
        telemetry: measures what is written; None: nothing does.
    """

    def __init__(
        self,
        folder: Path,
        open_record: Callable[[], Awaitable[Record]],
        telemetry: RecorderTelemetry | None = None,
    ) -> None:
        self._folder = folder
        self._telemetry = telemetry
        self._turns = TurnRecorder(
            open_record, self._on_unwritable, telemetry.observe if telemetry is not None else None
        )
        self._entries: dict[str, Entry] = {}  # of the batch that is being written, by turn or feedback id
        self._prefix_cache = PrefixCache()
        self._reader: JournalReader | None = None
        self._pacing = Pacing(folder)
        self._changes = ChangeNotice(folders=[folder], ignored=_OWN_FILES, poll_s=POLL_S)
        self._beats = HeartbeatWriter("recorder")
        self._oldest_at = 0.0  # when the oldest entry of the last batch was appended
        self._is_catching_up = (
            True  # the newest entries may be recorded already: the last run may have died between two commits
        )
        self._started = time.time()
        self._beat_error: str | None = None
        self._journal_error: str | None = None
        self.damaged_bytes = 0
        self.rejected = 0
        self.unmatched_feedback = 0
        self.last_rejected: str | None = None

    async def run(self) -> None:
        """Record until cancelled."""
        beats = asyncio.create_task(self._beat())
        try:
            await self._record_forever()
        finally:
            self._changes.close()
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)

    async def stop(self, timeout_s: float) -> None:
        """Record what is in the journal at this moment, as far as the time suffices, and close the record. `run` was cancelled."""
        try:
            async with asyncio.timeout(timeout_s):
                while await self.step():
                    pass
                await self._remove_recorded()
        except TimeoutError:
            log.warning("the journal is not recorded to its end; the next start goes on there")
        if self._reader is not None:
            self._reader.close()
        record = self._turns.record
        if record is not None:
            try:
                await self._beats.write(record, "stopped", self.state())
            except RecordError as exc:
                log.warning("the last heartbeat was not written: %s", exc)
            await record.close()
        if self._telemetry is not None:
            await asyncio.to_thread(self._telemetry.close)

    async def _record_forever(self) -> None:
        cleaned_at = 0.0
        while True:
            try:
                self._pacing.begin()
                taken = await self.step()
                now = time.monotonic()
                if now - cleaned_at > _CLEANING_S:
                    # Also while it is behind: the journal may have reached its limit.
                    cleaned_at = now
                    await self._remove_recorded()
                    self._journal_error = None
            except OSError as exc:
                # The folder is not readable or not writable: what can be recorded is recorded all the same.
                taken = 0
                if self._journal_error is None:
                    log.error("the journal cannot be read or cleaned: %s", exc)
                self._journal_error = f"the journal cannot be read or cleaned: {exc}"[:300]
            if taken:
                await self._pacing.pause(taken, self._oldest_at)
            else:
                has_segments = self._reader is not None and self._reader.has_segments
                await self._changes.wait(_SEGMENT_S if has_segments else _REST_S)

    async def step(self) -> int:
        """Record one batch; returns its number of entries, damaged bytes counted as one."""
        reader = self._reader
        if reader is None:
            reader = self._reader = JournalReader(self._folder, await self._read_offsets())
        batch = reader.poll()
        if not batch.offsets:
            self._is_catching_up = False
            return 0
        self._oldest_at = min((entry.at for _, entry in batch.entries), default=0.0)
        await self._take_in(batch)
        reader.commit(batch)
        return max(1, len(batch.entries))

    async def _read_offsets(self) -> dict[str, int]:
        """Return the recorded offsets; waits until the record can be read."""
        pause = 0.05
        while True:
            try:
                offsets = await (await self._turns.get_record()).journal_offsets()
            except RecordError as exc:
                self._turns.last_error = str(exc)[:300]
                await asyncio.sleep(pause)
                pause = min(1.0, pause * 2)
            else:
                self._turns.last_error = None
                return offsets

    async def _take_in(self, batch: EntryBatch) -> None:
        exchanges: list[ClassifiedExchange] = []
        feedback: list[Feedback] = []
        self._entries.clear()  # a batch that was cancelled is taken again
        for _, entry in batch.entries:
            try:
                if entry.kind == EntryKind.EXCHANGE:
                    captured = load_exchange(entry.payload, self._prefix_cache)
                    if captured.turn_id not in self._entries:
                        exchanges.append(classify_exchange(captured))
                    self._entries[captured.turn_id] = entry
                elif entry.kind == EntryKind.FEEDBACK:
                    given = Feedback(**orjson.loads(entry.payload))
                    if given.feedback_id not in self._entries:
                        feedback.append(given)
                    self._entries[given.feedback_id] = entry
                else:
                    raise ValueError(f"unknown kind of entry: {entry.kind}")
            except Exception as exc:  # noqa: BLE001 - kept aside and reported: one entry must not stop the others
                self._reject(entry, f"{type(exc).__name__}: {exc}")
        if batch.damaged_bytes:
            self.damaged_bytes += batch.damaged_bytes
            log.error("%d bytes of the journal are damaged and were skipped", batch.damaged_bytes)
        may_be_known = self._is_catching_up or any(is_rewritten(name) for name, _ in batch.entries)
        unmatched = await self._turns.write(
            exchanges, feedback=feedback, offsets=batch.offsets, may_be_known=may_be_known
        )
        if unmatched:
            self.unmatched_feedback += len(unmatched)
            log.warning("feedback about %d unknown turns was dropped", len(unmatched))

    def _on_unwritable(self, item: ClassifiedExchange | Feedback, why: str) -> None:
        item_id = item.feedback_id if isinstance(item, Feedback) else item.turn_id
        self._reject(self._entries[item_id], why)

    def _reject(self, entry: Entry, why: str) -> None:
        """Keep an entry that cannot be recorded in a file of its own, for a later version to read."""
        self.rejected += 1
        path = self._folder / REJECTED / f"{round(entry.at * 1e6)}-{secrets.token_hex(4)}-{entry.kind}.entry"
        self.last_rejected = f"{why[:300]} (kept in {path})"
        log.error("an entry of the journal cannot be recorded: %s", self.last_rejected)
        try:
            path.parent.mkdir(exist_ok=True, mode=0o700)
            path.write_bytes(entry.payload)
        except OSError as exc:
            log.error("the entry could not be kept either: %s", exc)

    async def _remove_recorded(self) -> None:
        """Remove recorded segments; their offsets may go once the files are gone.

        Their rows are synced to disk before: a commit alone does not survive a power cut, and its segment would be gone.
        """
        record = self._turns.record
        if self._reader is None or record is None or not self._reader.has_recorded():
            return
        try:
            await record.sync()
        except RecordError as exc:
            log.warning("recorded segments stay in the journal: %s", exc)
            return
        gone = self._reader.remove_recorded()
        try:
            await record.forget_segments(gone)
        except RecordError as exc:
            log.warning("offsets of removed segments stay in the record: %s", exc)

    # ---- state

    async def _beat(self) -> None:
        while True:
            record, state = self._turns.record, self.state()
            is_due = self._beats.is_due("running", state)
            if record is not None:
                try:
                    await self._beats.write(record, "running", state)
                    self._beat_error = None
                except RecordError as exc:
                    self._beat_error = str(exc)[:300]  # noticed here also while nothing is to be recorded
            if is_due:
                self._write_state()
            if self._telemetry is not None:
                await self._telemetry.tick(record)
            await asyncio.sleep(LOOK_S)

    def state(self) -> Json:
        """Return counters for `status`; ``lag_turns`` counts entries of the journal that are not recorded yet."""
        offsets = self._reader.offsets if self._reader is not None else {}
        lag = measure_lag(self._folder, offsets)
        error = self._turns.last_error or self._beat_error or self._journal_error
        return {
            "pid": os.getpid(),
            "at": time.time(),
            "started_at": self._started,
            "available": self._turns.record is not None and error is None,
            "written": self._turns.written,
            "lag_turns": lag.entries,
            "lag_s": 0.0 if lag.oldest_at is None else round(max(0.0, time.time() - lag.oldest_at), 3),
            "lag_bytes": lag.bytes,
            "failed_writes": self._turns.failed_writes,
            "rejected": self.rejected,
            "damaged_bytes": self.damaged_bytes,
            "unmatched_feedback": self.unmatched_feedback,
            "last_error": error,
            "last_rejected": self.last_rejected,
        }

    def _write_state(self) -> None:
        """Write the state to a file as well: `status` must tell about a record that cannot be read."""
        path = self._folder / STATE_FILE
        content = orjson.dumps(self.state()).ljust(_STATE_BYTES)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            beside = path.with_suffix(".new")
            beside.write_bytes(content)
            beside.replace(path)
        except OSError:
            try:
                with path.open("r+b", buffering=0) as file:
                    file.write(content)  # a full disk still takes it where the file's blocks are
            except OSError as exc:
                log.warning("the recorder's state could not be written: %s", exc)
