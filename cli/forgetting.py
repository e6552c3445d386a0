"""Carries out what people asked to forget (`store.queries.forget_jobs`): one process at a time, from whatever stage a job was left at.

    asked      one transaction deletes the rows; clean versions go live, gateways follow within a second
    deleted    the folders of tainted versions, of the database alone, are removed, once no step runs that began before
    unlearnt   replies in flight, the journal, copies of the record, exports and logs
    cleaned    the words leave the job; the database's file is written anew, its log emptied; the receipt is written
    done

Each step may be repeated. What keeps one waiting is written to the job, for `status` and the page, and looked at again. The supervisor starts
``python -m cli.forgetting --settings PATH`` while a job is open; `run.py forget` does the same work itself.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from cli.home_files import (
    byte_pattern,
    clean_exports,
    copies_elsewhere,
    files_holding,
    homes_aside,
    mask,
    remove_copies,
    sqlite_path,
)
from cli.processes import run_process
from store.catch_up import is_recorder_silent, read_recorder_state
from store.disk import write_whole
from store.errors import ConfigError, PatinaError, RecordError
from store.heartbeats import is_running
from store.journal import request_rotation
from store.policies import policies_of
from store.receipts import receipt_key, sign, write_receipt
from store.record import Record
from store.settings import Settings
from store.signing import read_signing_key
from store.texts import counted
from store.turn_tree import prove_removal, turn_digest
from store.values import ForgetJob, ForgetStage, Json, gateway_name
from store.version_folders import leftovers, version_folders
from trainer.removal import remove_folders

#: Between two looks at what a job waits for, at first and at most.
_POLL_S, _MOST_POLL_S = 0.05, 5.0
#: Beginning of the names of the database's files: it keeps the ids, so that a journal cannot bring the turns back.
DATABASE = "patina.db"


class Waits(Exception):
    """A job cannot go on now; the text says why."""


class Forgetter:
    """Carries out the open jobs of a record."""

    def __init__(self, record: Record, settings: Settings) -> None:
        self._record = record
        self._settings = settings
        self._segments: dict[str, list[Path]] = {}  # of the journal, that a job waits for

    async def run(self, job_id: str | None = None, patience_s: float = float("inf")) -> bool:
        """Go on until one job, or every one, is done; returns whether that is so when the patience ends.

        Where another process has the work, it is waited for.

        Raises:
            RecordError: the record cannot be read.
        """
        deadline, pause = time.monotonic() + patience_s, _POLL_S
        while True:
            async with _only_one(self._settings.home) as is_ours:
                for job in await self._record.open_forget_jobs() if is_ours else ():
                    await self.advance(job)
                left = [one.job_id for one in await self._record.open_forget_jobs()]
                if is_ours:
                    self._remove_lists_but({self._list_of(one) for one in left})
            if not left or (job_id is not None and job_id not in left):
                return True
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MOST_POLL_S)

    async def advance(self, job: ForgetJob) -> None:
        """Take a job as far as it can go now, and note for what it waits."""
        steps = {
            ForgetStage.ASKED: self._delete,
            ForgetStage.DELETED: self._remove_versions,
            ForgetStage.UNLEARNT: self._clean_files,
            ForgetStage.CLEANED: self._finish,
        }
        try:
            while job.stage is not ForgetStage.DONE:
                await steps[job.stage](job)
                found = await self._record.forget_job(job.job_id)
                if found is None:
                    return  # the record was replaced
                job = found
        except (Waits, PatinaError, OSError) as exc:
            why = str(exc)
            if why != job.waits:
                # The disk may be full, or the record locked: then it is said by who asks.
                with suppress(RecordError):
                    await self._record.change_forget_job(job.job_id, stage=job.stage, waits=why)

    async def _delete(self, job: ForgetJob) -> None:
        def note(turn_ids: Sequence[str]) -> None:
            # Digests, so that the file names no forgotten turn. Its trees are computed after the transaction.
            write_whole(self._list_of(job.job_id), b"".join(map(turn_digest, turn_ids)))

        await self._record.delete_asked(job.job_id, key=receipt_key(self._settings.home), note_turns=note)

    def _list_of(self, job_id: str) -> Path:
        """Return where the digests of all turns before a job's deletion lie while the job is open."""
        return self._settings.home / "run" / f"forget-{job_id}.turns"

    def _remove_lists_but(self, needed: set[Path]) -> None:
        for path in set(self._list_of("").parent.glob("*forget-*.turns*")) - needed:
            path.unlink(missing_ok=True)

    async def _remove_versions(self, job: ForgetJob) -> None:
        """Remove the folders of tainted versions, and those that the record does not have.

        What a step under way makes of forgotten turns is refused, and the trainer removes it; none begins while the job is at this stage.
        """
        beat = await self._record.beat_of("trainer")
        if beat is not None and is_running(beat, time.time()):
            if beat.state.startswith("training"):
                raise Waits("a training step that began before it")
            if beat.at <= _deleted_at(job):
                raise Waits("the trainer to report")
        versions = await self._record.adapters()
        there = (one.policy for one in version_folders(self._settings.adapters_folder))
        ours = {one.policy for one in versions}.union(policies_of(self._settings.policy, there))
        folders = leftovers(self._settings.adapters_folder, versions, policies=ours)
        kept = await asyncio.to_thread(remove_folders, folders, self._settings)
        detail = {**job.detail, "kept": kept, "folders": [str(one) for one in folders]}
        await self._move(job, ForgetStage.UNLEARNT, detail)

    async def _clean_files(self, job: ForgetJob) -> None:
        """Wait for what is in flight, then clean what is beside the database."""
        await self._wait_for_replies(_deleted_at(job))
        await self._wait_for_journal(job)
        detail = job.detail
        outcome = await asyncio.to_thread(self._clean, detail, detail["keys"] if job.key_name else None)
        receipt = {**detail["receipt"], "folders": detail["folders"], **outcome}
        receipt["remaining"] += detail["kept"]
        left = {"receipt": receipt, **_kept_for_later(detail)}
        await self._move(job, ForgetStage.CLEANED, left)

    def _clean(self, detail: Json, keys: list[str] | None) -> Json:
        """Clean copies, exports and logs of the words, and look through the home; blocking.

        Args:
            keys: of the person who asked; None: the owner, whose home it is.
        """
        home, gone = self._settings.home, [*detail["receipt"]["turns"], *detail["reactions"]]
        lines, turns = detail["lines"], list(detail["receipt"]["turns"])
        words, ids = byte_pattern(lines), byte_pattern(turns)
        whole = byte_pattern([*lines, *turns])
        folders = {home, sqlite_path(self._settings).parent}
        copies, remaining = remove_copies(folders, ids, words, keys)
        exports, problems, elsewhere = clean_exports(home, gone, byte_pattern([*lines, *gone]) or whole)
        mask(home, whole)
        remaining += problems
        remaining += [f"{path} names a forgotten turn" for path in files_holding(home, ids, skip=[DATABASE])]
        aside, same_aside = homes_aside(home, ids, words if keys is None else None)
        remaining += aside
        others = (
            [] if words is None else files_holding(home, words, skip=[DATABASE], folders=["journal", "run"])
        )
        return {
            "copies": copies,
            "exports": exports,
            "remaining": remaining,
            # Of other people, or of versions that were not made of it: they say the same by themselves.
            "same_words": others,
            "out_of_reach": [*elsewhere, *copies_elsewhere(home), *same_aside],
        }

    async def _wait_for_replies(self, at: float) -> None:
        """Let the replies end whose requests came before then, and reach the journal."""
        for beat in await self._record.heartbeats():
            is_gateway = beat.process.startswith(gateway_name(1))
            if not (is_gateway or beat.process == "dashboard") or not is_running(beat, time.time()):
                continue
            if beat.at <= at:
                raise Waits(f"the {beat.process} to report")
            if (beat.detail.get("journal") or {}).get("waiting"):
                raise Waits(f"entries of the journal that the {beat.process} cannot write yet")
            oldest = beat.detail.get("oldest_request_at")
            if oldest is not None and oldest <= at:
                raise Waits("a reply that began before it")

    async def _wait_for_journal(self, job: ForgetJob) -> None:
        """Let the journal's present segments be recorded and removed."""
        folder = self._settings.journal_folder
        if not folder.is_dir():
            return
        if job.job_id not in self._segments:
            self._segments[job.job_id] = request_rotation(folder)
        left = [path for path in self._segments[job.job_id] if path.exists()]
        if left and is_recorder_silent(read_recorder_state(folder)):
            await run_process(self._settings, ["-m", "recorder", "--once"], "recorder")
            left = [path for path in left if path.exists()]
        if left:
            raise Waits(f"the recorder: {counted(len(left), 'segment')} of the journal")

    async def _finish(self, job: ForgetJob) -> None:
        await self._record.scrub()
        is_file = self._settings.database_url.startswith("sqlite")
        found: Json = job.detail["receipt"]
        turns = self._list_of(job.job_id)
        proof = (
            await asyncio.to_thread(lambda: prove_removal(turns.read_bytes(), found["turns"]))
            if turns.exists()
            else None  # the deletion was by an earlier Patina, or the folder `run` was removed or is of another home
        )
        receipt = {
            "id": job.job_id,
            "at": job.deleted_at,
            "asked": job.asked,
            **found,
            "database": "secure delete, written anew, log emptied"
            if is_file
            else "deleted and VACUUM FULL; backups and the archived log of the server are its owner's",
            "complete": not found["remaining"],
            "proof": proof,
        }
        write_receipt(self._settings.home, sign(receipt, read_signing_key(self._settings.home)))
        left = {
            "complete": receipt["complete"],
            "remaining": found["remaining"],
            "turns": len(found["turns"]),
            **_kept_for_later(job.detail),
        }
        await self._move(job, ForgetStage.DONE, left)

    async def _move(self, job: ForgetJob, to: ForgetStage, detail: Json) -> None:
        await self._record.change_forget_job(job.job_id, stage=job.stage, to=to, detail=detail)


def _kept_for_later(detail: Json) -> Json:
    """Return what a job keeps for ever: by it the recorder and a restore know what was forgotten (`store.queries.forget_jobs.Guard`)."""
    return {name: detail[name] for name in ("reactions", "keys", "texts") if name in detail}


def _deleted_at(job: ForgetJob) -> float:
    assert job.deleted_at is not None  # set with the stage
    return job.deleted_at


@asynccontextmanager
async def _only_one(home: Path) -> AsyncIterator[bool]:
    """Hold the lock of the process that forgets, where it is free: each rewrites exports and the database."""
    folder = home / "run"
    folder.mkdir(exist_ok=True, mode=0o700)
    file = os.open(folder / "forget.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(file)


async def _run(settings: Settings) -> None:
    record = await Record.open(settings.database_url)
    try:
        await Forgetter(record, settings).run()
    finally:
        await record.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out every open job: ``python -m cli.forgetting --settings PATH``."""
    parser = argparse.ArgumentParser(
        prog="python -m cli.forgetting", description="Forgets what was asked for."
    )
    parser.add_argument("--settings", type=Path, required=True, help="settings file written by run.py")
    try:
        asyncio.run(_run(Settings.load(parser.parse_args(argv).settings)))
    except (ConfigError, RecordError) as exc:
        print(f"forgetting: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
