"""`run.py retrain`: compute recorded versions again as a branch, with other settings or without some turns, and compare its tip with the live version."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cli.arguments import given_settings
from cli.console import table_console
from cli.forget import run_replay
from cli.opened_record import open_record
from scorers.registry import build_scorer_chain
from store.errors import ConfigError, RecordError
from store.learning import parse_learning
from store.policies import find_policy
from store.record import Record
from store.settings import Settings, read_settings, training_settings
from store.values import BASE_VERSION, Json, LineageStep, StepRole
from store.version import COMMAND


def retrain(settings: Settings, arguments: argparse.Namespace) -> int:
    """Train the branch; returns 1 when no version of it passed the gate.

    Raises:
        ConfigError: there is no such lineage, or the settings cannot be.
        RecordError: a turn that is to be left out is not in the record.
    """
    return asyncio.run(_retrain(settings, arguments))


async def _retrain(settings: Settings, arguments: argparse.Namespace) -> int:
    policy = find_policy(settings.policy, arguments.policy or settings.policy)
    changes = changed_settings(given_settings(arguments))
    async with open_record(settings) as record:
        moves = await record.aliases()
        live = moves[policy].version if policy in moves else BASE_VERSION
        end = live if arguments.to is None else arguments.to
        steps = await record.lineage(policy, end, arguments.start)
        if not steps:
            raise ConfigError(f"{policy} has no version {end} that was made from version {arguments.start}")
        without = await _turn_ids(record, arguments.without)
        verdicts = await _score_again(record, settings, steps) if arguments.rescore else {}
        job = {
            "policy": policy,
            "start": arguments.start,
            "end": end,
            "without": without,
            "changes": changes,
            "verdicts": verdicts,
            "publish": arguments.publish,
        }
        was_paused = await record.is_paused()
        await record.set_paused(True)
        try:
            (report,) = (await run_replay(settings, {"jobs": [job]}))["replays"]
        finally:
            await record.set_paused(was_paused)
    if "error" in report:
        raise ConfigError(report["error"])
    if arguments.json:
        print(json.dumps({**report, "changes": changes, "without": without, "live_before": live}, indent=2))
    else:
        _print(report, policy, live)
    return 0 if report["versions"] else 1


def changed_settings(given: Mapping[str, Any]) -> Json:
    """Return the settings of training that the command line names: of learning settings only those, not their defaults.

    Raises:
        ConfigError: a value cannot be.
    """
    names = set(training_settings(read_settings(dict(given))))
    changes = {name: value for name, value in given.items() if name in names and name != "learning"}
    if "learning" in given:
        changes["learning"] = parse_learning(str(given["learning"]))
    return changes


async def _turn_ids(record: Record, references: Sequence[str]) -> list[str]:
    found = []
    for reference in references:
        story = await record.story(reference)
        if story is None:
            raise RecordError(f"the record has no turn {reference}")
        found.append(str(story["turn_id"]))
    return found


async def _score_again(record: Record, settings: Settings, steps: Sequence[LineageStep]) -> dict[str, Json]:
    """Let the configured scorers decide again; the record keeps its verdicts."""
    roles = (StepRole.BATCH, StepRole.REPLAY, StepRole.REMEMBERED)
    ids = dict.fromkeys(turn_id for step in steps for role in roles for turn_id, _ in step.inputs.turns[role])
    chain = build_scorer_chain(settings)
    await chain.start()
    try:
        await chain.recall_test()
        while chain.candidate is not None:
            await chain.test_candidate()
        turns = await record.answered_turns(list(ids))
        verdicts = [(await chain.decide(turn, now=time.time()))[0] for turn in turns]
    finally:
        await chain.close()
    return {
        verdict.turn_id: {
            "value": verdict.value,
            "hint": verdict.hint,
            "hint_is_reaction": verdict.hint_is_reaction,
            "wish": asdict(verdict.wish) if verdict.wish else None,
            "source": verdict.source,
            "confidence": verdict.confidence,
            "share": verdict.share,
        }
        for verdict in verdicts
    }


def _print(report: Json, policy: str, live: int) -> None:
    console = table_console(soft_wrap=True)
    lines = [f"{policy}: version {old} again is version {new}" for old, new in report["versions"]]
    lines += [
        f"version {old} again, version {new}, was rejected: see `versions`" for old, new in report["rejected"]
    ]
    lines += [f"version {version} was left out: {why}" for version, why in report["skipped"].items()]
    for line in lines:
        console.print(line, markup=False)
    if report["versions"]:
        tip = report["versions"][-1][1]
        state = "is live" if report["live"] == tip else f"is not live; `{COMMAND} rollback {tip}` makes it so"
        console.print(f"Version {tip} {state}. Compare: `{COMMAND} compare {live} {tip}`", markup=False)
