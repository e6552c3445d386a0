"""`run.py demo`: a simulated user complains, and you watch the model change. Ends in a sentence that is computed.

Exit code 0 when the preference was learnt, 1 (with the same honest sentence) when it was not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from evals.client import House
from evals.loop import Run, RunPlan, run_user
from evals.measure import Measurement
from evals.plot import check_output, draw
from evals.stack import Stack
from evals.users import LABELS, SimulatedUser, check_preferences
from evals.view import View
from store.errors import ConfigError
from store.settings import Settings, to_json

#: "Learnt" means: at least so often on unseen questions ...
LEARNT = 0.8
#: ... with no more facts lost than this.
FACTS_LOST = 0.05
#: Talking ends after so many seconds, so that the whole stays below five minutes on two cores.
BUDGET_S = 215.0


def sentence(preferences: tuple[str, ...], interactions: int, before: Measurement, after: Measurement) -> str:
    """Return what the run showed."""
    wanted = ", ".join(LABELS[name] for name in preferences)
    text = (
        f"after {interactions} interactions '{wanted}' holds on {_percent(after.compliance)} of unseen questions "
        f"(before: {_percent(before.compliance)}), facts {_percent(after.facts)} (before: {_percent(before.facts)})"
    )
    if after.opposite_obeyed is not None and before.opposite_obeyed is not None:
        text += (
            f"; asked for the opposite it obeys {_percent(after.opposite_obeyed)} of the time "
            f"(before: {_percent(before.opposite_obeyed)})"
        )
    return text


def shortcomings(before: Measurement, after: Measurement) -> list[str]:
    """Return why this does not count as learnt; nothing when it does."""
    found = []
    if after.compliance < LEARNT:
        found.append(f"the preference holds on less than {_percent(LEARNT)}")
    if after.compliance <= before.compliance:
        found.append("it holds no more often than before")
    if after.facts < before.facts - FACTS_LOST:
        found.append(f"more than {round(100 * FACTS_LOST)} points of facts were lost")
    return found


def run_demo(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run the demo; returns its exit code.

    Raises:
        ConfigError: wrong arguments, or the own Patina does not start.
        UpstreamError: the Patina under test failed.
    """
    preferences = check_preferences(arguments.preferences.split(","))
    if arguments.interactions < 1:
        raise ConfigError(f"--interactions {arguments.interactions}: must be at least 1")
    check_output(arguments.output)
    if settings.upstream and not arguments.base_url:
        raise ConfigError("the demo shows learning, and an --upstream alone does not learn")
    console = Console(highlight=False)
    with ExitStack() as stack:
        if arguments.base_url:
            base_url, key = with_v1(arguments.base_url), house_key(settings)
        else:
            if not console.is_terminal:
                console.print("starting an own Patina in a fresh folder")
            with console.status("starting an own Patina in a fresh folder"):
                house = stack.enter_context(Stack(settings))
            base_url, key = house.base_url, house.key
        plan = RunPlan(
            interactions=arguments.interactions,
            batch_size=settings.batch_size,
            pause_every=settings.batch_size,
            budget_s=BUDGET_S,
            seed=settings.seed,
        )
        run = asyncio.run(_run(base_url, key, preferences, plan, console))
    told = sentence(preferences, len(run.interactions), run.before, run.after)
    wrong = shortcomings(run.before, run.after)
    draw(run, arguments.output, title=told)
    if arguments.json is not None:
        _write(
            arguments.json,
            {"sentence": told, "learnt": not wrong, "settings": to_json(settings), **run.to_json()},
        )
    if run.late_pauses:
        console.print(f"({run.late_pauses} pauses ended before all feedback was trained)", markup=False)
    console.print(f"plot: {arguments.output}", markup=False, soft_wrap=True)
    console.print(
        told if not wrong else f"not learnt: {told}: {', and '.join(wrong)}", markup=False, soft_wrap=True
    )
    return 1 if wrong else 0


async def _run(base_url: str, key: str, preferences: tuple[str, ...], plan: RunPlan, console: Console) -> Run:
    user = SimulatedUser(preferences, plan.seed)
    async with House(base_url, key) as house:
        with View(preferences, plan.interactions, console=console) as view:
            return await run_user(house, user, plan, view)


def with_v1(url: str) -> str:
    """Return an address as clients are given it."""
    url = url.rstrip("/")
    return url if url.endswith("/v1") else url + "/v1"


def house_key(settings: Settings) -> str:
    """Return the key of a Patina that runs already.

    Raises:
        ConfigError: none was given, and its home has none.
    """
    if settings.api_key is not None:
        return settings.api_key
    try:
        return settings.key_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(
            f"no key for --base-url: give --api-key, or --home of that Patina ({settings.key_file}: {error.strerror})"
        ) from error


def _write(path: Path, value: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def _percent(share: float) -> str:
    return f"{round(100 * share)} %"
