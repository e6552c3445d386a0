"""`run.py forget`: delete turns and all that was made from them, and sign a receipt.

1. The record: one transaction deletes the closure (`store.queries.closure`) and makes clean versions live; gateways follow within a second.
   A version under way that was made of it is refused, and the trainer builds the next one from what the record holds then.
2. The journal: segments that may hold the words are closed and waited for until the recorder has removed them.
3. Copies of record and journal, exports, and the folders of tainted versions are removed or rewritten; the database's file is written anew.
4. The home's files are searched for the words, and the receipt says what was found.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import fcntl
import json
import os
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from cli.console import table_console
from cli.home_files import (
    byte_pattern,
    clean_exports,
    existing,
    files_holding,
    remove_copies,
)
from cli.opened_record import open_record
from store.catch_up import is_recorder_silent, read_recorder_state
from store.errors import ConfigError, PatinaError
from store.heartbeats import SILENT_S
from store.journal import request_rotation
from store.policies import policies_of
from store.processes import is_alive
from store.receipts import read_receipt, receipt_key, sign, write_receipt
from store.record import Record
from store.settings import Settings, child_environment
from store.texts import counted
from store.values import AdapterState, Closure, Forgotten, Json, Selection
from store.version_folders import leftovers, version_folders
from trainer.removal import remove_folders

#: So long segments of the journal are waited for, and a trainer that is amid a step.
_JOURNAL_WAIT_S, _STEP_WAIT_S = 60.0, 600.0
_POLL_S = 0.05
#: Beginning of the names of the database's files: it keeps the ids, so that a journal cannot bring the turns back.
_DATABASE = "patina.db"
#: Ids of each kind that a listing shows.
_SHOWN = 5


def forget(settings: Settings, arguments: argparse.Namespace) -> int:
    """Forget what the arguments name. Returns 1 when something of it is left, which the receipt names.

    Raises:
        ConfigError: the arguments do not say what, or a file cannot be changed.
        RecordError: there is no such turn, or the record cannot be changed.
    """
    selection = _selection(arguments)
    return asyncio.run(_forget(settings, arguments, selection))


def _selection(arguments: argparse.Namespace) -> Selection:
    named = [arguments.turn, arguments.session, arguments.match]
    if sum(one is not None for one in named) > 1 or (arguments.key and (arguments.turn or arguments.session)):
        raise ConfigError("name one of TURN, --session, --key and --match; only --match goes with --key")
    if arguments.key is None and all(one is None for one in named):
        raise ConfigError("what is to be forgotten? TURN, --session S, --key NAME or --match TEXT")
    if arguments.match is not None and len(arguments.match.strip()) < 3:
        raise ConfigError("--match needs three characters at least")
    since = None
    if arguments.since is not None:
        try:
            since = datetime.datetime.fromisoformat(arguments.since).timestamp()
        except ValueError:
            raise ConfigError(
                f"--since {arguments.since!r}: a date such as 2026-11-24 or 2026-11-24T18:30"
            ) from None
    return Selection(
        turn=arguments.turn,
        session=arguments.session,
        key_name=arguments.key,
        match=arguments.match,
        since=since,
    )


async def _forget(settings: Settings, arguments: argparse.Namespace, selection: Selection) -> int:
    async with open_record(settings) as record:
        with_replies = not arguments.keep_replies
        if arguments.dry_run:
            closure = await record.find_closure(selection, with_replies=with_replies)
            preview = {**_closure_json(closure), "live": dict(closure.live)}
            _print(preview, _closure_lines(closure), arguments.json)
            return 0
        key = receipt_key(settings.home)
        # Each rewrites the exports, so they run one after the other.
        with await asyncio.to_thread(_take_lock, settings.home):
            done = await record.forget(selection, with_replies=with_replies, key=key)
            receipt = await _clean_up(record, settings, selection, done)
        signed = sign(receipt, key)
        path = write_receipt(settings.home, signed)
        lines = [*_closure_lines(done.closure), *_outcome_lines(receipt), f"Receipt: {path}"]
        _print(signed, lines, arguments.json)
        return 0 if receipt["complete"] else 1


def _take_lock(home: Path) -> BinaryIO:
    """Return the file whose lock only one process that forgets holds; closing it releases the lock."""
    folder = home / "run"
    folder.mkdir(exist_ok=True, mode=0o700)
    file = open(os.open(folder / "forget.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600), "rb")  # noqa: SIM115
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


async def _clean_up(record: Record, settings: Settings, selection: Selection, done: Forgotten) -> Json:
    """Remove what is beside the record's rows, and say in a receipt what was done."""
    closure = done.closure
    journal = await _empty_journal(settings)
    words = byte_pattern(closure.lines)
    pattern = byte_pattern([*closure.lines, *closure.turns])
    assert pattern is not None  # at least one turn
    copies = remove_copies(settings.home, pattern)
    gone = {*closure.turns, *closure.reactions}
    exports = clean_exports(settings.home, gone, byte_pattern([*closure.lines, *gone]) or pattern)
    not_removed = await _remove_versions(record, settings, done)
    await record.scrub()
    found = files_holding(settings.home, words)
    found += files_holding(settings.home, byte_pattern(closure.turns), skip=[_DATABASE])
    remaining = [*found, *journal, *not_removed]
    remaining += [one["path"] for one in exports if one["holds_more"]]
    is_file = settings.database_url.startswith("sqlite")
    return {
        "id": f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(done.at))}-{uuid4().hex[:8]}",
        "at": done.at,
        "asked": selection.describe(),
        "turns": dict(done.turns),
        **_closure_json(closure),
        "messages": list(done.messages),
        "nodes": done.nodes,
        "live_before": dict(closure.live),
        "folders": list(done.folders),
        "copies": copies,
        "exports": exports,
        "database": "secure delete, written anew, log emptied"
        if is_file
        else "deleted and VACUUM FULL; backups and the archived log of the server are its owner's",
        "remaining": remaining,
        "complete": not remaining,
    }


async def _empty_journal(settings: Settings) -> list[str]:
    """Let the journal's present segments be recorded and removed; returns those that are still there."""
    folder = settings.journal_folder
    if not folder.is_dir():
        return []
    segments = request_rotation(folder)
    if is_recorder_silent(read_recorder_state(folder)):
        await _run_process(settings, ["-m", "recorder", "--once"], "recorder")
    deadline = time.monotonic() + _JOURNAL_WAIT_S
    while True:
        left = [str(path) for path in segments if path.exists()]
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(_POLL_S)


async def _remove_versions(record: Record, settings: Settings, done: Forgotten) -> list[str]:
    """Remove the folders of tainted versions, and those that the record does not have; returns what stays, with the reason."""
    await _wait_for_step(record, done.at)
    versions = await record.adapters()
    known = {one.policy for one in versions}
    ours = known.union(
        policies_of(settings.policy, (one.policy for one in version_folders(settings.adapters_folder)))
    )
    folders = leftovers(settings.adapters_folder, versions, policies=ours, before=done.at)
    return await asyncio.to_thread(remove_folders, folders, settings)


async def _wait_for_step(record: Record, before: float) -> None:
    """Wait until no step runs that began before then: what it makes of forgotten turns is refused, and the trainer removes it."""
    deadline = time.monotonic() + _STEP_WAIT_S
    while time.monotonic() < deadline:
        beat = await record.beat_of("trainer")
        if (
            beat is None
            or time.time() - beat.at > SILENT_S
            or not is_alive(beat.pid)
            or not beat.state.startswith("training")
            or beat.detail.get("step_started_at", 0.0) > before
        ):
            return
        await asyncio.sleep(_POLL_S)


async def _run_process(settings: Settings, command: Sequence[str], name: str) -> None:
    """Run a process of ours to its end. Raises: ConfigError: it failed; its last words."""
    file = settings.home / "run" / f"settings-{secrets.token_hex(4)}.json"
    settings.dump(file)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            "--settings",
            str(file),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(),
        )
        _, errors = await process.communicate()
    finally:
        file.unlink(missing_ok=True)
    if process.returncode:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        raise ConfigError(f"the {name} ended with code {process.returncode}: {lines[-1] if lines else ''}")


# ---- what is printed


def _closure_json(closure: Closure) -> Json:
    return {
        "selected": list(closure.selected),
        "continuations": list(closure.continuations),
        "quotes": list(closure.quotes),
        "replies": list(closure.replies),
        "replies_removed": closure.with_replies,
        "reactions": list(closure.reactions),
        "tainted": {policy: list(versions) for policy, versions in closure.tainted.items()},
        "clean": dict(closure.clean),
    }


def _closure_lines(closure: Closure) -> list[str]:
    kept = "" if closure.with_replies else " (kept)"
    lines = [
        f"{len(turns)} {what}: {', '.join(turns[:_SHOWN])}{', …' if len(turns) > _SHOWN else ''}"
        for turns, what in (
            (closure.selected, "turns that you named"),
            (closure.continuations, "turns that continue them"),
            (closure.quotes, "turns that repeat their words"),
            (closure.replies, f"turns that a version trained on them answered{kept}"),
            (closure.reactions, "turns that stay, without the reaction to them and what it taught"),
        )
        if turns
    ]
    for policy, versions in closure.tainted.items():
        line = f"{policy}: versions {', '.join(map(str, versions))} were trained on this"
        if policy in closure.clean:
            line += f"; version {closure.clean[policy]} goes live, and the next one is built without it"
        lines.append(line)
    return lines or ["nothing"]


def _outcome_lines(receipt: Json) -> list[str]:
    lines = [
        f"{counted(len(receipt['turns']), 'turn')} and {counted(len(receipt['messages']), 'message')} deleted"
    ]
    lines += [f"removed: {path}" for path in receipt["copies"]]
    lines += [
        f"export {one['path']}: {counted(one['removed'], 'line')} removed" for one in receipt["exports"]
    ]
    return [*lines, *(f"STILL THERE: {path}" for path in receipt["remaining"])]


def _print(value: Json, lines: Sequence[str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(value, indent=2))
        return
    console = table_console(soft_wrap=True)
    for line in lines:
        console.print(line, markup=False)


# ---- verify


async def verify_receipt(record: Record, settings: Settings, path: Path) -> int:
    """Check a receipt's signature, and that nothing of it is found again. Returns 1 when something is.

    Raises:
        ConfigError: the signature is wrong, or it is no receipt.
    """
    key = receipt_key(settings.home, makes_one=False)
    receipt = read_receipt(path, key)
    wrong = await record.found_again([*receipt["turns"]], receipt["messages"], key)
    wrong += [f"{folder} is there again" for folder in existing(receipt["folders"])]
    for policy, versions in receipt["tainted"].items():
        for adapter in await record.adapters(policy):
            if adapter.version in versions and adapter.state is not AdapterState.FORGOTTEN:
                wrong.append(f"{adapter.name} is {adapter.state.value}")
    ids = byte_pattern(receipt["turns"])
    wrong += [
        f"{file} names a forgotten turn" for file in files_holding(settings.home, ids, skip=[_DATABASE])
    ]
    for line in wrong:
        print(line)
    count = len(receipt["turns"])
    print(
        f"the signature is right; {counted(count, 'turn')} forgotten: "
        + (f"{counted(len(wrong), 'thing')} found again" if wrong else "nothing is found again")
    )
    return 1 if wrong else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Forget one turn for the web page, which starts this as a process: ``python -m cli.forget --settings PATH --turn ID``."""
    parser = argparse.ArgumentParser(prog="python -m cli.forget", description="Forgets one turn.")
    parser.add_argument("--settings", type=Path, required=True, help="settings file written by run.py")
    parser.add_argument("--turn", required=True, help="id of the turn")
    given = parser.parse_args(argv)
    arguments = argparse.Namespace(
        turn=given.turn, session=None, key=None, match=None, since=None, dry_run=False, keep_replies=False, json=True
    )  # fmt: skip
    try:
        return forget(Settings.load(given.settings), arguments)
    except PatinaError as exc:
        print(f"forget: {exc}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
