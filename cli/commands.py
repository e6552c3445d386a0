"""The commands that look at the record or steer it. Each works while Patina runs and while it does not.

They read the database, after a bounded wait for what is in the journal (`cli.opened_record`). `status` also shows what the running proxy
reports about journal and recorder, which is available when the record is not. Tables go to stdout through rich; `--json` prints the same facts for programs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.console import table_console
from cli.home_files import note_export
from cli.live import ask_proxy, is_in_trouble, store_line, traffic_lines, version_lines
from cli.opened_record import open_record
from cli.policies import chosen_policy, given_policy
from cli.preferences import preferences
from cli.text import LONG
from cli.unused import DAYS, lines_of
from cli.unused import to_json as unused_json
from serving.model_digests import digest_served_model
from store import client_warnings, releases
from store.drop_reasons import sentence_of
from store.errors import AdapterError, ConfigError, RecordError
from store.heartbeats import SILENT_S, is_running
from store.integrity import check_adapter, readmit_version
from store.lifecycle import DropReason, Stage
from store.manifest import is_signed
from store.policies import group_of, policies_of
from store.processes import is_alive
from store.record import Record
from store.settings import Settings
from store.texts import clip, counted, last_user_text, three_digits
from store.values import (
    BASE_VERSION,
    AdapterState,
    AdapterVersion,
    CanaryRelease,
    ClientTraffic,
    Heartbeat,
    Json,
    PreviewReply,
    RecordStatus,
    ReleaseStage,
    ScoredTurn,
    UnusedComplaint,
    adapter_name,
)
from store.version import COMMAND
from store.version_folders import KEPT, folder_of, leftovers
from store.version_signature import check_signature
from store.wish_states import learnt_rows

#: In fewer columns `versions` leaves out what a person asks for least, so that the reasons can be read.
_NARROW = 120
#: Turns whose verdicts are read at once.
_PAGE = 500
#: How long `rollback` waits to see the earlier version serve.
_SWAP_WAIT_S = 60.0

Command = Callable[[Settings, argparse.Namespace], int]


def _command(run: Callable[[Record, Settings, argparse.Namespace], Awaitable[int]]) -> Command:
    async def opened(settings: Settings, arguments: argparse.Namespace) -> int:
        async with open_record(settings, waits=not getattr(arguments, "no_wait", True)) as record:
            return await run(record, settings, arguments)

    return lambda settings, arguments: asyncio.run(opened(settings, arguments))


# ---------------------------------------------------------------------- status


def _status(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print what is stored and what the running proxy says. 1 when it cannot write, or the record cannot be read here."""
    live = ask_proxy(settings)
    try:
        status: RecordStatus | None
        status, unused, traffic, tried, refused = asyncio.run(_read_status(settings, arguments))
        problem = None
    except RecordError as exc:
        if live is None:
            raise
        status, unused, traffic, tried, refused, problem = None, [], [], [], [], str(exc)
    store = live["store"] if live is not None else None
    if arguments.json:
        found = {**status.to_json(), "sentence": sentence(status)} if status is not None else {}
        found |= {"releases": [releases.to_json(one) for one in tried]}
        found |= {"unused_complaints": [unused_json(complaint) for complaint in unused]}
        found |= {"refused_versions": {adapter.name: adapter.reason for adapter in refused}}
        found |= {"client_warnings": [warning.to_json() for warning in client_warnings.warnings_of(traffic)]}
        found |= {"store": store, "proxy": live["proxy"] if live else None, "record_error": problem}
        print(json.dumps(found, default=str, indent=2))
    else:
        console = table_console(soft_wrap=True)
        if status is not None:
            _print_status(console, status)
            for line in [
                *releases.status_lines(tried),
                *lines_of(unused),
                *client_warnings.status_lines(client_warnings.warnings_of(traffic)),
                *version_lines(live["proxy"] if live is not None else None, refused),
            ]:
                console.print(escape(line))
        else:
            console.print(f"[red]the record cannot be read: {escape(problem or '')}[/]")
        if live is not None and store is not None:
            style = "red" if is_in_trouble(store) else "default"
            console.print(f"[{style}]{escape(store_line(store, live['proxy'].get('not_captured')))}[/]")
            for line in traffic_lines(live["proxy"]):
                console.print(escape(line))
    return 1 if problem or (store is not None and is_in_trouble(store)) else 0


async def _read_status(
    settings: Settings, arguments: argparse.Namespace
) -> tuple[
    RecordStatus, list[UnusedComplaint], list[ClientTraffic], list[CanaryRelease], list[AdapterVersion]
]:
    given = given_policy(settings, arguments)
    async with open_record(settings, waits=not arguments.no_wait) as record:
        since = time.time() - DAYS * 86_400
        status = await record.status(policy=given)
        policies = [given] if given else policies_of(settings.policy, {settings.policy, *status.live})
        unused = [one for policy in policies for one in await record.unused_complaints(policy, since)]
        tried = await record.canary_releases(given, stages=(ReleaseStage.RUNNING,))
        versions = [one for policy in policies for one in await record.adapters(policy)]
        refused = [one for one in versions if one.state is AdapterState.REFUSED]
        return status, unused, await record.client_traffic(client_warnings.WINDOW), tried, refused


def _print_status(console: Console, status: RecordStatus) -> None:
    console.print(sentence(status))
    table = Table("process", "state", "pid", "last word", "detail", box=None, pad_edge=False)
    now = time.time()
    for beat in status.heartbeats:
        alive = now - beat.at < SILENT_S
        if not alive and beat.process.startswith("proxy-"):
            continue  # one of the gateways of an earlier start with more --workers
        state, style = beat.state if alive else "not running", "green" if alive else "red"
        if not alive and is_running(beat, now):
            state, style = f"{beat.state}; its reports cannot be written", "yellow"
        table.add_row(
            beat.process,
            f"[{style}]{escape(state)}[/]",
            str(beat.pid),
            f"{now - beat.at:.0f} s ago",
            escape(_brief(beat)),
        )
    console.print(table)
    for beat in status.heartbeats:
        if beat.process == "trainer" and now - beat.at < SILENT_S:
            for note in beat.detail.get("notes") or ():
                console.print(f"training: {escape(str(note))}")
    live = ", ".join(f"{policy}@{version}" for policy, version in status.live.items()) or "the bare model"
    console.print(
        f"live: {live} · versions: {_counts(status.versions) or 'none yet'} · training: {status.training}"
    )
    if status.paused:
        console.print(f"paused: {escape(', '.join(status.paused))}")
    for line in status.forgetting:
        console.print(f"forgetting {escape(line)}")
    if status.last_step is not None:
        step = status.last_step
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(step.finished_at or step.started_at))
        outcome = step.error or (f"version {step.version}" if step.version is not None else "under way")
        console.print(f"last step: {when} · {step.method} · {escape(outcome)}")
    if status.last_error is not None:
        console.print(f"last error: {escape(status.last_error)}")


def sentence(status: RecordStatus) -> str:
    """Return the life of all turns in one line, e.g. "312 turns seen · 188 main · … · 61 dropped: 40 no_next_state, …"."""
    reached = {stage: status.stages.get(stage.value, 0) for stage in Stage}
    order = [Stage.ANSWERED, Stage.SCORED, Stage.CLAIMED, Stage.TRAINED]
    parts = [f"{counted(status.turns, 'turn')} seen", f"{status.kinds.get('main', 0)} main"]
    parts.append(f"{reached[Stage.RECORDED]} waiting for what follows")
    parts += [f"{reached[stage]} {stage.value}" for stage in order]
    text = " · ".join(parts) + f" · {reached[Stage.DROPPED]} dropped"
    return text + (f": {_counts(status.drop_reasons)}" if status.drop_reasons else "")


def _counts(counts: Any) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def _brief(beat: Heartbeat) -> str:
    parts = []
    for name, value in beat.detail.items():
        if isinstance(value, dict):
            restarts = value.get("restarts")
            if restarts:
                parts.append(f"{name} restarted {restarts}x")
        elif name != "notes" and value not in (None, "", 0, [], {}):
            parts.append(f"{name}={value}")
    return " ".join(parts)[:160]


# --------------------------------------------------------------------- clients


async def _clients(record: Record, settings: Settings, arguments: argparse.Namespace) -> int:
    traffic = await record.client_traffic(client_warnings.WINDOW)
    found = client_warnings.warnings_of(traffic)
    if arguments.json:
        shown = {
            "clients": [client_warnings.to_json(one) for one in traffic],
            "warnings": [warning.to_json() for warning in found],
        }
        print(json.dumps(shown, indent=2))
        return 0
    console = table_console(soft_wrap=True)
    if not traffic:
        console.print("no client has sent a request yet")
        return 0
    table = Table("client", "turns", "main", "linked", "continued", "trained", "last seen")
    for one in traffic:
        table.add_row(
            escape(one.client),
            str(one.turns),
            *(f"{share:.0%}" for share in one.shares),
            str(one.trained),
            time.strftime("%m-%d %H:%M", time.localtime(one.last_seen_at)),
        )
    console.print(table)
    for warning in found:
        console.print(f"[red]{escape(warning.sentence)}[/]")
    return 0


# ---------------------------------------------------------------- trajectories


async def _trajectories(record: Record, settings: Settings, arguments: argparse.Namespace) -> int:
    stage = None
    if arguments.stage is not None:
        try:
            stage = Stage(arguments.stage)
        except ValueError:
            raise ConfigError(f"--stage {arguments.stage!r}: one of {', '.join(Stage)}") from None
    if arguments.format == "table":
        rows = await record.trajectories(
            session_id=arguments.session, stage=stage, limit=arguments.limit, newest_first=True
        )
        table_console(soft_wrap=True).print(_trajectory_table(list(reversed(rows))))
        return 0
    wanted = (
        row
        async for row in record.all_turns()
        if (arguments.session is None or row["session_id"] == arguments.session)
        and (stage is None or row["stage"] == stage.value)
    )
    if arguments.format == "preferences":
        code = await _write_jsonl(preferences(wanted), arguments.output)
    elif arguments.format == "jsonl":
        code = await _write_jsonl(_with_judgements(record, wanted), arguments.output)
    else:
        code = await _write_dataset(wanted, arguments.output)
    if arguments.output is not None:
        note_export(settings.home, arguments.output)
    return code


def _trajectory_table(rows: list[Json]) -> Table:
    table = Table("turn", "session", "#", "kind", "asked", "answered", "then", "verdict", "stage", "v")
    for row in rows:
        verdict = {1: "+1", 0: "0", -1: "−1"}.get(row["verdict"], "")
        stage = row["stage"] + (f" ({row['drop_reason']})" if row["drop_reason"] else "")
        trained = row["trained_in_version"]
        table.add_row(
            row["turn_id"][-8:],
            row["session_id"][-8:],
            str(row["turn_index"]),
            f"{row['kind']}/{row['relation']}",
            escape(clip(last_user_text(row["messages"]))),
            escape(clip(row["completion"] or json.dumps(row["tool_calls"]))),
            escape(clip(row["next_text"] or "")),
            verdict,
            stage,
            f"{row['adapter_version']}" + (f"→{trained}" if trained is not None else ""),
        )
    return table


async def _with_judgements(record: Record, rows: AsyncIterator[Json]) -> AsyncIterator[Json]:
    """Yield rows of the view, each with its verdicts (votes and answers of the judge), explicit feedback and drop detail."""
    pending: list[Json] = []
    async for row in rows:
        pending.append(row)
        if len(pending) == _PAGE:
            for one in await _judged(record, pending):
                yield one
            pending = []
    for one in await _judged(record, pending):
        yield one


async def _judged(record: Record, rows: Sequence[Json]) -> list[Json]:
    found = await record.judgements([row["turn_id"] for row in rows])
    return [{**row, **found.get(row["turn_id"], {})} for row in rows]


async def _write_jsonl(rows: AsyncIterator[Json], output: Path | None) -> int:
    count = 0
    if output is None:
        async for row in rows:
            print(json.dumps(row, ensure_ascii=False))
        return 0
    temporary = output.with_name(output.name + ".part")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            async for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                count += 1
        temporary.replace(output)
    except OSError as exc:
        raise ConfigError(f"cannot write {output}: {exc.strerror or exc}") from exc
    print(f"{counted(count, 'line')} written to {output}", file=sys.stderr)
    return 0


async def _write_dataset(rows: AsyncIterator[Json], output: Path | None) -> int:
    if output is None:
        raise ConfigError("--format datasets needs --output FOLDER")
    try:
        import datasets
    except ModuleNotFoundError:
        raise ConfigError("--format datasets needs the extra: pip install 'patina[datasets]'") from None
    # Messages and tool calls differ in shape from row to row, which Arrow's columns cannot hold: they stay JSON text.
    records = [
        {**row, "messages": json.dumps(row["messages"]), "tool_calls": json.dumps(row["tool_calls"])}
        async for row in rows
    ]
    if not records:
        raise RecordError("there are no turns to export")
    datasets.Dataset.from_list(records).save_to_disk(str(output))
    print(f"{counted(len(records), 'turn')} written to {output}", file=sys.stderr)
    return 0


# -------------------------------------------------------------------- versions


async def _versions(record: Record, settings: Settings, arguments: argparse.Namespace) -> int:
    policy = await chosen_policy(record, settings, arguments)
    found = await record.adapters(policy)
    moves = await record.alias_moves(policy)
    live = moves[-1].version if moves else BASE_VERSION
    tried = {one.version: one for one in await record.canary_releases(policy)}
    pinned = await record.pins(policy)
    if arguments.json:
        rows = [
            _version_json(a)
            | {
                "reachable": a.state is AdapterState.PUBLISHED,
                "pinned": a.version in pinned,
                "release": releases.to_json(tried[a.version]) if a.version in tried else None,
            }
            for a in found
        ]
        print(json.dumps({"policy": policy, "live": live, "versions": rows}, indent=2))
        return 0
    console = table_console(soft_wrap=True)
    is_narrow = console.width < _NARROW
    table = Table()
    middle = ("wishes",) if is_narrow else ("method", "loss", "wishes in the weights")
    for name in ("version", "live", "state", "made", "turns", *middle):
        table.add_column(name, no_wrap=True)
    table.add_column("reason")
    table.add_row("0", "●" if live == BASE_VERSION else "", "base model")
    for adapter in found:
        metrics = adapter.metrics
        table.add_row(
            str(adapter.version),
            "●" if adapter.version == live else "",
            adapter.state.value + (" (pinned)" if adapter.version in pinned else ""),
            time.strftime("%m-%d %H:%M", time.localtime(adapter.created_at)),
            str(metrics.get("turns", "")),
            *(() if is_narrow else (adapter.method, three_digits(metrics.get("loss")))),
            _learnt(metrics),
            escape(clip(_reason(adapter, tried.get(adapter.version)), LONG)),
        )
    console.print(table)
    reachable = [a.version for a in found if a.state is AdapterState.PUBLISHED]
    console.print(f"rollback can reach: {ranges([BASE_VERSION, *reachable])}")
    return 0


def _learnt(metrics: Json) -> str:
    """Return how many of the wishes that a version learnt its weights follow alone."""
    rows = learnt_rows(metrics)
    return f"{sum(bool(row['retired']) for row in rows)} of {len(rows)}" if rows else ""


def _reason(adapter: AdapterVersion, release: CanaryRelease | None) -> str:
    return "; ".join(
        part for part in (adapter.reason, "" if release is None else releases.sentence(release)) if part
    )


def ranges(versions: Sequence[int]) -> str:
    """Return ascending numbers in words: "0, 3-8"."""
    runs: list[list[int]] = []
    for version in versions:
        if runs and version == runs[-1][-1] + 1:
            runs[-1].append(version)
        else:
            runs.append([version])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _version_json(adapter: AdapterVersion) -> Json:
    return {
        "version": adapter.version,
        "state": adapter.state.value,
        "reason": adapter.reason,
        "method": adapter.method,
        "parent_version": adapter.parent_version,
        "path": adapter.path,
        "content_hash": adapter.content_hash,
        "created_at": adapter.created_at,
        "metrics": adapter.metrics,
    }


async def _why(record: Record, settings: Settings, arguments: argparse.Namespace) -> int:
    policy = await chosen_policy(record, settings, arguments)
    adapter = await record.adapter(policy, arguments.version)
    if adapter is None:
        raise RecordError(f"{policy} has no version {arguments.version}")
    turns = list(reversed(await record.trained_turns(policy, version=arguments.version)))
    unused = await _unused_turns(record, adapter)
    tried = [one for one in await record.canary_releases(policy) if one.version == adapter.version]
    if arguments.json:
        shown = {
            **_version_json(adapter),
            "release": releases.to_json(tried[0]) if tried else None,
            "preview": [
                {"question": question, **asdict(one)}
                for question, one in await record.preview_replies(policy, adapter.version)
            ],
            "turns": [_turn_json(t) for t in turns],
            "unused_turns": [
                {**_turn_json(turn), "drop_reason": reason.value, "sentence": sentence}
                for turn, reason, sentence in unused
            ],
        }
        print(json.dumps(shown, indent=2))
        return 0
    console = table_console(soft_wrap=True)
    console.print(
        f"{adapter.name}: {adapter.state.value}, made by {adapter.method} from "
        f"{f'version {adapter.parent_version}' if adapter.parent_version else 'the base model'} and {len(turns)} of your turns"
    )
    if adapter.reason:
        console.print(f"because: {escape(adapter.reason)}")
    for release in tried:
        console.print(escape(releases.sentence(release)))
        for line in releases.number_lines(release):
            console.print(f"  {line}")
    errors = releases.prediction_errors(await record.adapters(policy), await record.canary_releases(policy))
    for line in (
        *releases.preview_lines(adapter.metrics, tried[0] if tried else None),
        releases.calibration_line(errors),
    ):
        if line:
            console.print(escape(line))
    _print_preview(console, await record.preview_replies(policy, adapter.version))
    texts = {wish.wish_id: wish.text for wish in await record.wishes(policy)}
    for row in learnt_rows(adapter.metrics):
        where = "in the weights" if row["retired"] else "still in the prompt"
        followed = f"{row['weights']:.0%} of the replies follow it (asked {row['told']:.0%}, base model {row['base']:.0%})"
        console.print(
            f"wish {row['wish_id']}, {where}: {escape(clip(texts.get(row['wish_id'], '(removed)')))}: {followed}"
        )
    table = Table("turn", "your request", "reply", "your reaction", "verdict", "hint", "source")
    for turn in turns:
        table.add_row(
            turn.turn_id[-8:],
            escape(clip(last_user_text(turn.messages))),
            escape(clip(turn.completion.text)),
            escape(clip(turn.next_text)),
            f"{turn.verdict.value:+d}" if turn.verdict.value else "0",
            escape(clip(turn.verdict.hint or "")),
            turn.verdict.source,
        )
    console.print(table)
    _print_unused(console, unused)
    return 0


def _print_preview(console: Console, replies: Sequence[tuple[str, PreviewReply]]) -> None:
    """Show the past questions that two versions answer most differently."""
    if not replies:
        return
    table = Table("your request", "the live version", "this version")
    for question, one in replies:
        table.add_row(escape(clip(question)), escape(clip(one.live, LONG)), escape(clip(one.new, LONG)))
    console.print(table)


async def _unused_turns(record: Record, adapter: AdapterVersion) -> list[tuple[ScoredTurn, DropReason, str]]:
    """Return the turns of a version's batch that did not train, those still in the record: turn, code, sentence."""
    codes = {turn_id: DropReason(code) for turn_id, code in adapter.metrics.get("unused_turns", {}).items()}
    fates = await record.fates(list(codes))
    found = []
    for turn in await record.scored_turns(list(codes)):
        reason, fate = codes[turn.turn_id], fates[turn.turn_id]
        # Feedback that came later may have brought the turn to another fate, with a detail of its own.
        detail = fate.detail if fate.drop_reason is reason else ""
        found.append((turn, reason, sentence_of(reason, detail)))
    return found


def _print_unused(console: Console, unused: list[tuple[ScoredTurn, DropReason, str]]) -> None:
    """Show what was stated and taught nothing, each with its reason; of neutral turns the number."""
    stated = [one for one in unused if one[0].verdict.value or one[0].verdict.hint]
    if stated:
        console.print(f"{len(stated)} of its turns taught nothing:")
        table = Table("turn", "your request", "your reaction", "verdict", "why not")
        for turn, reason, why in stated:
            table.add_row(
                turn.turn_id[-8:],
                escape(clip(last_user_text(turn.messages))),
                escape(clip(turn.next_text)),
                f"{turn.verdict.value:+d}" if turn.verdict.value else "0",
                escape(f"{reason.value}: {why}"),
            )
        console.print(table)
    if neutral := len(unused) - len(stated):
        console.print(f"{neutral} neutral turns came along, without a verdict or a hint")


def _turn_json(turn: ScoredTurn) -> Json:
    return {
        "turn_id": turn.turn_id,
        "asked": last_user_text(turn.messages),
        "completion": turn.completion.text,
        "next_text": turn.next_text,
        "verdict": turn.verdict.value,
        "hint": turn.verdict.hint,
        "verdict_source": turn.verdict.source,
    }


async def _rollback(record: Record, settings: Settings, arguments: argparse.Namespace) -> int:
    start = time.monotonic()
    policy = await chosen_policy(record, settings, arguments)
    adapter = await record.adapter(policy, arguments.version)
    if adapter is not None and adapter.state is AdapterState.REFUSED:
        await readmit_version(record, adapter)  # its files may have been restored
    await record.rollback(policy, arguments.version)
    name = adapter_name(policy, arguments.version) if arguments.version else f"{policy} without adapter"
    while (serving := await _serving(record, settings, policy)) is not None and serving != arguments.version:
        newest = (await record.aliases())[policy].version
        if newest != arguments.version:
            # A step that began after the rollback may be done before the proxy is asked again.
            print(f"{name} was set, and version {newest} has been made live after it")
            return 0
        if time.monotonic() - start > _SWAP_WAIT_S:
            print(f"{name} is set, but the proxy does not serve it yet: see `{COMMAND} status`")
            return 1
        await asyncio.sleep(0.02)
    took = time.monotonic() - start
    if serving is not None:
        print(f"{name} is live ({took:.2f} s)")
    elif await _running_gateway(record) is None:
        print(f"{name} is live when Patina runs; it is not running now")
    else:
        print(f"{name} is set; the endpoint behind --upstream serves its own model")
    return 0


async def _running_gateway(record: Record) -> Heartbeat | None:
    """Return the newest heartbeat of the first proxy; None when no proxy runs."""
    for beat in await record.heartbeats():
        if beat.process == "proxy" and time.time() - beat.at < SILENT_S and is_alive(beat.pid):
            return beat
    return None


async def _serving(record: Record, settings: Settings, policy: str) -> int | None:
    """Return the version the running proxy says it serves; None when no proxy runs, or it serves none of ours."""
    beat = await _running_gateway(record)
    backend = beat.detail.get("backend", {}) if beat is not None else {}
    shown = backend if policy == settings.policy else backend.get("policies", {}).get(policy, {})
    version = shown.get("live")
    return int(version) if version is not None else None


async def _pin(record: Record, settings: Settings, arguments: argparse.Namespace) -> int:
    policy = await chosen_policy(record, settings, arguments)
    await record.pin(policy, arguments.version, stays=not arguments.remove)
    name = adapter_name(policy, arguments.version)
    print(
        f"{name} is no longer pinned"
        if arguments.remove
        else f"the files of {name} stay until it is unpinned"
    )
    return 0


async def _pause(record: Record, settings: Settings, arguments: argparse.Namespace) -> int:
    policy = given_policy(settings, arguments)
    await record.set_paused(True, policy=policy)
    print(
        f"training{f' of {policy}' if policy else ''} is paused; serving, recording and scoring go on (`{COMMAND} resume` ends it)"
    )
    return 0


async def _resume(record: Record, settings: Settings, arguments: argparse.Namespace) -> int:
    policy = given_policy(settings, arguments)
    await record.set_paused(False, policy=policy)
    print(f"training{f' of {policy}' if policy else ''} goes on")
    if policy and await record.is_paused():
        print(f"all training is paused: `{COMMAND} resume` ends that")
    return 0


async def _train(record: Record, settings: Settings, arguments: argparse.Namespace) -> int:
    waiting = sum(one.scored for one in (await record.waiting()).values())
    await record.ask_to_train()
    if not waiting:
        print(f"nothing is scored and waits to be trained; `{COMMAND} status` shows where turns are")
        return 0
    print(
        f"asked to train {waiting} turn{'s' if waiting > 1 else ''} now; `{COMMAND} status` shows the progress"
    )
    if await record.is_paused():
        print(f"all training is paused: `{COMMAND} resume` ends that")
    return 0


async def _export(record: Record, settings: Settings, arguments: argparse.Namespace) -> int:
    from cli.export import export

    return await export(record, settings, arguments)


async def _verify(record: Record, settings: Settings, arguments: argparse.Namespace) -> int:
    if arguments.receipt is not None:
        from cli.forget import verify_receipt

        return await verify_receipt(record, settings, arguments.receipt)
    wrong = await record.verify()
    adapters, without, unsigned = await check_versions(record, settings)
    wrong += adapters
    for line in wrong:
        print(line)
    if without:
        print(
            f"without a manifest, made by an earlier Patina, checked by their content hash: {', '.join(without)}"
        )
    if unsigned:
        print(f"without a signature for others, made by an earlier Patina: {', '.join(unsigned)}")
    status = await record.status()
    print(
        f"{counted(status.turns, 'turn')} checked: "
        + (f"{counted(len(wrong), 'thing')} wrong" if wrong else "all is well")
    )
    return 1 if wrong else 0


async def check_versions(record: Record, settings: Settings) -> tuple[list[str], list[str], list[str]]:
    """Check the files of all versions; returns what is wrong, and the names of the versions that have no manifest, and no signature.

    Wrong is what should be there and is not as it was published, and what should be gone and is there.
    """
    wrong, without, unsigned = [], [], []
    model = await asyncio.to_thread(digest_served_model, settings.model_path)
    versions, beat = await record.adapters(), await record.beat_of("trainer")
    for adapter in [one for one in versions if one.state in KEPT]:
        place = replace(adapter, path=str(folder_of(settings.adapters_folder, adapter)))
        # Of another base model the digests are not known here.
        own = model if group_of(settings.policy, adapter.policy) is not None else None
        try:
            if not await asyncio.to_thread(check_adapter, place, own):
                without.append(adapter.name)
            if is_signed(Path(place.path)):
                await asyncio.to_thread(check_signature, Path(place.path), settings.home)
            else:
                unsigned.append(adapter.name)
        except (AdapterError, ConfigError) as exc:
            wrong.append(f"{adapter.name}: {exc}")
    current = beat.detail if beat is not None and time.time() - beat.at < SILENT_S else {}
    before = current.get("step_started_at", float("inf"))
    for folder in leftovers(settings.adapters_folder, versions, before=before):
        wrong.append(f"{folder} is of no version that the record keeps")
    return wrong, without, unsigned


COMMANDS: dict[str, Command] = {
    "status": _status,
    "clients": _command(_clients),
    "trajectories": _command(_trajectories),
    "versions": _command(_versions),
    "why": _command(_why),
    "rollback": _command(_rollback),
    "pin": _command(_pin),
    "pause": _command(_pause),
    "resume": _command(_resume),
    "train": _command(_train),
    "verify": _command(_verify),
    "export": _command(_export),
}
