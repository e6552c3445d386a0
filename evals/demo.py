"""`run.py demo`: a simulated user complains, and you watch the model change.

Exit code 0 when the preference was learnt, 1 when it was not; the last line gives the numbers either way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from evals.client import PatinaClient, live_version, stored_key, with_v1
from evals.console import PlainConsole
from evals.curves import check_output, draw_run
from evals.experiment import Case, run_case
from evals.preferences import parse_preferences
from evals.progress import View, percent, wanted
from evals.stack import Stack
from evals.systems import LiveSystem
from store.errors import ConfigError
from store.settings import Settings, to_json
from store.values import Json

#: The preference counts as learnt when it holds at least this often on unseen questions ...
LEARNT = 0.8
#: ... and no more than this share of facts was lost.
FACTS_LOST = 0.05
#: Seconds after which the user stops, so that the demo takes less than five minutes on two cores.
BUDGET_S = 215.0
#: Plain probes before and after, and in between; interactions between measurements.
QUESTIONS, QUESTIONS_BETWEEN, MEASURE_EVERY = 96, 48, 24
#: Probes before and after that ask for the opposite of a preference.
OPPOSITES = 48
#: Longest wait for the trainer, in seconds.
PAUSE_S = 20.0


def sentence(preferences: tuple[str, ...], interactions: int, before: Json, after: Json) -> str:
    """Return the result of a run from its first and last measurement (`evals.metrics.EvalMeasures` as JSON)."""
    text = (
        f"after {interactions} interactions '{wanted(preferences)}' holds on {percent(after['compliance'])} of unseen "
        f"questions (before: {percent(before['compliance'])}), facts {percent(after['facts'])} "
        f"(before: {percent(before['facts'])})"
    )
    if after["undone"] is not None and before["undone"] is not None:
        text += (
            f"; asked for the opposite it obeys {percent(after['undone'])} of the time "
            f"(before: {percent(before['undone'])})"
        )
    return text


def shortcomings(before: Json, after: Json) -> list[str]:
    """Return why this does not count as learnt; nothing when it does."""
    found = []
    if after["compliance"] < LEARNT:
        found.append(f"the preference holds on less than {percent(LEARNT)}")
    if after["compliance"] <= before["compliance"]:
        found.append("it holds no more often than before")
    if after["facts"] < before["facts"] - FACTS_LOST:
        found.append(f"more than {round(100 * FACTS_LOST)} points of facts were lost")
    return found


def run_demo(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run the demo; returns its exit code.

    Raises:
        ConfigError: wrong arguments, or the own Patina does not start.
        UpstreamError: the Patina under test failed.
    """
    case = Case(
        method=settings.method,
        user="steady",
        preferences=parse_preferences(arguments.preferences),
        seed=settings.seed,
        interactions=arguments.interactions,
        mode="url" if arguments.base_url else "stack",
        measure_every=MEASURE_EVERY,
        questions=QUESTIONS,
        undos=OPPOSITES,
        tools=0,
        again=0,
        elsewhere=0,
        scope=0,
        small_talk=0,
    )
    if case.interactions < 1:
        raise ConfigError(f"--interactions {case.interactions}: must be at least 1")
    check_output(arguments.output)
    if settings.upstream and not arguments.base_url:
        raise ConfigError("the demo shows learning, and an --upstream alone does not learn")
    console = PlainConsole(highlight=False)
    with ExitStack() as stack:
        if arguments.base_url:
            base_url, key = with_v1(arguments.base_url), stored_key(settings)
        else:
            if not console.is_terminal:
                console.print("starting an own Patina in a fresh folder")
            with console.status("starting an own Patina in a fresh folder"):
                own = stack.enter_context(Stack(settings))
            base_url, key = own.base_url, own.key
        run = asyncio.run(_run(case, base_url, key, settings.batch_size, console))
    before, after = run["points"][0], run["points"][-1]
    result = sentence(case.preferences, len(run["readings"]), before, after)
    wrong = shortcomings(before, after)
    draw_run(run, run["went_live"], arguments.output, title=result)
    if arguments.json is not None:
        _write(
            arguments.json,
            {"sentence": result, "learnt": not wrong, "settings": to_json(settings), **run},
        )
    if run["late_pauses"]:
        console.print(f"({run['late_pauses']} pauses ended before all feedback was trained)", markup=False)
    console.print(f"plot: {arguments.output}", markup=False, soft_wrap=True)
    console.print(
        result if not wrong else f"not learnt: {result}: {', and '.join(wrong)}", markup=False, soft_wrap=True
    )
    return 1 if wrong else 0


async def _run(case: Case, base_url: str, key: str, batch_size: int, console: Console) -> Json:
    """Run the case; returns its row with what is seen of it from outside.

    Returns:
        went_live: (interactions so far, version), each time another version was seen live. seen: ids of all turns, probes included.
        status: of the Patina at the end.
    """
    async with PatinaClient(base_url, key) as client:
        version = live_version(await client.status())
        system = LiveSystem(client, learns=True, batch_size=batch_size, pause_s=PAUSE_S, version=version)
        with View(
            case.preferences,
            case.interactions,
            measure_every=case.measure_every,
            version=version,
            console=console,
        ) as view:
            row = await run_case(case, system, view, budget_s=BUDGET_S, questions_between=QUESTIONS_BETWEEN)
        return {
            **row,
            "went_live": [list(pair) for pair in view.went_live],
            "seen": list(client.seen),
            "status": dict(await client.status()),
        }


def _write(path: Path, value: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
