"""`run.py forget`: ask for turns, and all that was made from them, to be forgotten; wait for it, and show the receipt (`cli.forgetting`)."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
from collections.abc import Sequence
from pathlib import Path

from cli.console import table_console
from cli.forgetting import DATABASE, Forgetter
from cli.home_files import byte_pattern, files_holding
from cli.opened_record import open_record
from store.errors import ConfigError
from store.receipts import read_receipt, receipt_key, receipt_path
from store.record import Record
from store.settings import Settings
from store.signing import read_signing_key
from store.texts import counted
from store.values import AdapterState, ForgetJob, ForgetStage, Json, Selection
from store.version import COMMAND
from store.version_folders import version_folders

#: So long the command waits for what keeps a forget from its end.
_PATIENCE_S = 60.0
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


def _selection(arguments: argparse.Namespace) -> Selection | None:
    """Return what is asked for; None: nothing, so that what was asked for before goes on."""
    named = [arguments.turn, arguments.session, arguments.match]
    if sum(one is not None for one in named) > 1 or (arguments.key and (arguments.turn or arguments.session)):
        raise ConfigError("name one of TURN, --session, --key and --match; only --match goes with --key")
    if arguments.key is None and all(one is None for one in named):
        return None
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


async def _forget(settings: Settings, arguments: argparse.Namespace, selection: Selection | None) -> int:
    async with open_record(settings) as record:
        with_replies = not arguments.keep_replies
        if selection is None:
            return await _go_on(record, settings, arguments)
        if arguments.dry_run:
            closure = await record.find_closure(selection, with_replies=with_replies)
            preview = {**closure.to_json(), "live": dict(closure.live)}
            _print(preview, _closure_lines(preview), arguments.json)
            return 0
        # Before anything is asked: they cannot be made where the home cannot be written.
        receipt_key(settings.home)
        read_signing_key(settings.home)
        known = await _known(record, selection)
        if known is None:
            # Later "last" and the end of an id may name another turn.
            whole = (await record.find_closure(selection, with_replies=with_replies)).selection
            job_id = await record.ask_to_forget(whole, with_replies=with_replies)
        else:
            job_id = known
        await Forgetter(record, settings).run(job_id, _PATIENCE_S)
        job = await record.forget_job(job_id)
        assert job is not None  # asked for above
        return _show(settings, job, arguments.json)


async def _known(record: Record, selection: Selection) -> str | None:
    """Return the job that forgets, or has forgotten, the turn or session that is asked for again."""
    asked = selection.describe()
    for job in await record.forget_jobs():
        if job.asked == asked and selection.match is None and selection.key_name is None:
            return job.job_id
    return None


async def _go_on(record: Record, settings: Settings, arguments: argparse.Namespace) -> int:
    """Go on with what was asked for before."""
    jobs = await record.open_forget_jobs()
    if not jobs:
        raise ConfigError("what is to be forgotten? TURN, --session S, --key NAME or --match TEXT")
    await Forgetter(record, settings).run(patience_s=_PATIENCE_S)
    found = [await record.forget_job(job.job_id) for job in jobs]
    return max(_show(settings, job, arguments.json) for job in found if job is not None)


def _show(settings: Settings, job: ForgetJob, as_json: bool) -> int:
    """Print how far a job is, with its receipt; returns 1 while something is left."""
    path = receipt_path(settings.home, job.job_id)
    if job.stage is not ForgetStage.DONE:
        line = f"not forgotten yet: {job.sentence}; a running Patina goes on by itself, or call `{COMMAND} forget` again"
        _print(
            {"id": job.job_id, "stage": job.stage.value, "waits": job.waits, "complete": False},
            [line],
            as_json,
        )
        return 1
    if "nothing" in job.detail:
        _print(
            {"id": job.job_id, **job.detail}, [f"nothing is left to forget: {job.detail['nothing']}"], as_json
        )
        return 0
    receipt = read_receipt(settings.home, path)
    lines = [*_closure_lines(receipt), *_outcome_lines(receipt), f"Receipt: {path}"]
    _print(receipt, lines, as_json)
    return 0 if receipt["complete"] else 1


def _closure_lines(closure: Json) -> list[str]:
    kept = "" if closure["replies_removed"] else " (kept)"
    lines = [
        f"{len(turns)} {what}: {', '.join(turns[:_SHOWN])}{', …' if len(turns) > _SHOWN else ''}"
        for turns, what in (
            (closure["selected"], "turns that you named"),
            (closure["continuations"], "turns that continue them"),
            (closure["quotes"], "turns that repeat their words"),
            (closure["replies"], f"turns that a version trained on them answered{kept}"),
            (closure.get("files", ()), "training files that were named or hold the words"),
            (closure["reactions"], "turns that stay, without the reaction to them and what it taught"),
            (
                [item or name for name, item in closure["items"]],
                "items of conversations that clients created",
            ),
        )
        if turns
    ]
    for policy, versions in closure["tainted"].items():
        line = f"{policy}: versions {', '.join(map(str, versions))} were trained on this"
        if policy in closure["clean"]:
            line += f"; version {closure['clean'][policy]} goes live, and the next one is built without it"
        lines.append(line)
    if closure["not_searched"]:
        short = counted(closure["not_searched"], "short line")
        lines.append(f"{short} not searched for elsewhere, since many people write them: use --match for one")
    return lines or ["nothing"]


def _outcome_lines(receipt: Json) -> list[str]:
    lines = [
        f"{counted(len(receipt['turns']), 'turn')} and {counted(len(receipt['messages']), 'message')} deleted"
    ]
    lines += [f"removed: {path}" for path in receipt["copies"]]
    lines += [
        f"export {one['path']}: {counted(one['removed'], 'line')} removed" for one in receipt["exports"]
    ]
    lines += [f"OUT OF REACH: {path}" for path in receipt["out_of_reach"]]
    lines += [f"the same words, not from this: {path}" for path in receipt["same_words"]]
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
    receipt = read_receipt(settings.home, path)
    key = receipt_key(settings.home, makes_one=False)
    wrong = await record.found_again([*receipt["turns"]], receipt["messages"], key)
    for one in version_folders(settings.adapters_folder):
        if one.version in receipt["tainted"].get(one.policy, ()):
            wrong.append(f"{one.path} is there again")
    for policy, versions in receipt["tainted"].items():
        for adapter in await record.adapters(policy):
            if adapter.version in versions and adapter.state is not AdapterState.FORGOTTEN:
                wrong.append(f"{adapter.name} is {adapter.state.value}")
    ids = byte_pattern(receipt["turns"])
    wrong += [f"{file} names a forgotten turn" for file in files_holding(settings.home, ids, skip=[DATABASE])]
    for line in wrong:
        print(line)
    count = len(receipt["turns"])
    print(
        f"the signature is right; {counted(count, 'turn')} forgotten: "
        + (f"{counted(len(wrong), 'thing')} found again" if wrong else "nothing is found again")
    )
    return 1 if wrong else 0
