"""`run.py eval`: how fast and at what cost a system learns, against baselines. And `run.py eval compare A B`.

Runs every combination of methods, users, preferences and seeds, adds each finished run to `runs.jsonl` in the output folder, and
writes the report from what is there. The same command again goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.console import PlainConsole, table_console
from lab.evals.client import stored_key, with_v1
from lab.evals.experiment import (
    RUNS_FILE,
    Case,
    ReactionModel,
    RunEnvironment,
    append_run,
    cases,
    find_run,
    parse_tried,
    read_runs,
    run_in,
)
from lab.evals.llm_user import LlmUser
from lab.evals.methods import parse_methods
from lab.evals.metrics import EvalMeasures
from lab.evals.preferences import expand_preferences
from lab.evals.report import compare, print_summary, write_report
from lab.evals.simulated_user import Interaction, scenario
from scorers.provider import Provider
from store.errors import ConfigError
from store.settings import Settings
from store.values import Json
from store.version import COMMAND

#: `--smoke`: least gain in compliance of a method that learns, and largest change of the control.
SMOKE_GAIN, SMOKE_CONTROL = 0.3, 0.15
_SMOKE = {
    "methods": "combine,none",
    "preferences": ["concise"],
    "users": "steady",
    "interactions": 36,
    "seeds": 1,
    "measure_every": 0,
    "questions": 48,
}
#: `--full`: every method with five seeds, on two wishes at once and on each of the six alone.
_FULL = {
    "methods": "all",
    "preferences": ["concise,no_emoji", "all"],
    "users": "steady",
    "interactions": 40,
    "seeds": 5,
    "measure_every": 20,
    "questions": 48,
}


def run_eval(settings: Settings, given: Mapping[str, Any], arguments: argparse.Namespace) -> int:
    """Run `run.py eval`; returns its exit code: 1 when ``--smoke`` finds that nothing, or the control, was learnt.

    Args:
        given: the settings named on the command line; each method's own are put over them.

    Raises:
        ConfigError: wrong arguments, or an own Patina does not start.
        UpstreamError: the Patina under test failed.
    """
    words: list[str] = arguments.action
    if words[:1] == ["compare"] and len(words) == 3:
        return compare(Path(words[1]), Path(words[2]), table_console())
    if words[:1] == ["report"] and len(words) == 2:
        return _report(Path(words[1]))
    if words:
        raise ConfigError(
            f"{COMMAND} eval takes options, or: {COMMAND} eval compare A B, or: {COMMAND} eval report FOLDER"
        )
    if arguments.smoke:
        vars(arguments).update(_SMOKE)
        arguments.output = arguments.output / "smoke"
    if arguments.full:
        vars(arguments).update(_FULL)
    wanted = _plan(settings, arguments)
    folder: Path = arguments.output
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if arguments.smoke:  # what was learnt last week says nothing about the code of today
            (folder / RUNS_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"--output {folder}: {error.strerror or error}") from error
    environment = RunEnvironment(
        settings=settings,
        given={name: value for name, value in given.items() if name not in ("home", "seed", "method")},
        base_url=with_v1(arguments.base_url) if arguments.base_url else "",
        key=stored_key(settings) if arguments.base_url else "",
    )
    rows = asyncio.run(_run(wanted, environment, folder, arguments))
    write_report(folder, rows)
    print_summary(rows, table_console())
    print(f"report: {folder / 'report.html'}")
    return _smoke_verdict(rows) if arguments.smoke else 0


def _plan(settings: Settings, arguments: argparse.Namespace) -> list[Case]:
    methods = parse_methods(arguments.methods)
    users = tuple(dict.fromkeys(word.strip() for word in arguments.users.split(",") if word.strip()))
    wants = expand_preferences(arguments.preferences)
    for user in users or ("",):
        for preferences in wants:
            scenario(user, preferences)
    for name, least in (
        ("interactions", 1),
        ("unrelated", 0),
        ("seeds", 1),
        ("first_seed", 0),
        ("questions", 1),
        ("opposites", 1),
        ("tool_requests", 1),
        ("again", 0),
        ("elsewhere", 0),
        ("scope", 0),
        ("small_talk", 0),
        ("measure_every", 0),
    ):
        if (value := getattr(arguments, name)) is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}")
    if min(arguments.tabs) < 1:
        raise ConfigError("--tabs must be at least 1")
    if arguments.user_model and (
        arguments.unrelated or {"mixed", "free", "unrelated", "retained", "month"} & {*users}
    ):
        raise ConfigError(
            "a --user-model speaks of the wishes alone: leave out --unrelated and users who do not"
        )
    if arguments.base_url and sum(method.kind == "learn" for method in methods) > 1:
        raise ConfigError(
            "one running Patina has one method: give --methods with one that learns (none and memory may stand beside it)"
        )
    if arguments.base_url and arguments.seeds > 1:
        raise ConfigError("one running Patina learns once: give --seeds 1, or leave --base-url out")
    mode = "url" if arguments.base_url else "stack"
    return cases(
        # One running Patina learns for good, so methods that do not learn come first.
        sorted(methods, key=lambda method: mode == "url" and method.kind == "learn"),
        users,
        wants,
        range(arguments.first_seed, arguments.first_seed + arguments.seeds),
        parse_tried(arguments.sweep),
        interactions=arguments.interactions,
        mode=mode,
        user_model=arguments.user_model,
        measure_every=arguments.measure_every,
        questions=arguments.questions,
        undos=arguments.opposites,
        tools=arguments.tool_requests,
        again=arguments.again,
        elsewhere=arguments.elsewhere,
        scope=arguments.scope,
        small_talk=arguments.small_talk,
        thorough=arguments.thorough,
        tabs=dict.fromkeys(arguments.tabs),
        unrelated=arguments.unrelated,
    )


async def _run(
    wanted: Sequence[Case], environment: RunEnvironment, folder: Path, arguments: argparse.Namespace
) -> list[Json]:
    async with AsyncExitStack() as stack:
        llm_user = None
        if arguments.user_model:
            provider = Provider(
                arguments.user_model,
                api_base=arguments.user_model_base,
                api_key=environment.settings.judge_api_key,
                flag="--user-model",
            )
            await provider.start()
            stack.push_async_callback(provider.close)
            llm_user = LlmUser(provider)
        return await run_sequentially(wanted, environment, folder, llm_user=llm_user)


async def run_sequentially(
    wanted: Sequence[Case],
    environment: RunEnvironment,
    folder: Path,
    *,
    llm_user: ReactionModel | None = None,
) -> list[Json]:
    """Run what is not in the folder yet, one after the other; rows in the order of ``wanted``."""
    known = read_runs(folder)
    rows: list[Json] = []
    with ProgressReporter(len(wanted)) as watch:
        for case in wanted:
            row = find_run(known, case)
            if row is None:
                watch.begin(case)
                row = await run_in(environment, case, watch, llm_user=llm_user)
                append_run(folder, row)
            watch.end(row)
            rows.append(row)
    return rows


def _report(folder: Path) -> int:
    rows = read_runs(folder)
    if not rows:
        raise ConfigError(f"there are no runs in {folder}")
    write_report(folder, rows)
    print_summary(rows, table_console())
    print(f"report: {folder / 'report.html'}")
    return 0


def _smoke_verdict(rows: Sequence[Json]) -> int:
    code = 0
    for row in rows:
        gain = row["points"][-1]["compliance"] - row["points"][0]["compliance"]
        is_control = row["method"] == "none"
        if abs(gain) > SMOKE_CONTROL if is_control else gain < SMOKE_GAIN:
            code = 1
        sign = "the control moved" if is_control else "learnt"
        print(f"{row['method']}: {gain:+.2f} compliance ({sign} by that much)")
    print("smoke: failed" if code else "smoke: passed")
    return code


class ProgressReporter:
    """Progress bars on a terminal, plain lines anywhere else; an `lab.evals.experiment.Observer`."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        self._console = console or PlainConsole(highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._runs = self._progress.add_task("runs", total=total)
        self._talk = self._progress.add_task("", total=1, visible=False)
        self._total, self._done, self._name, self._began = total, 0, "", time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def begin(self, case: Case) -> None:
        self._name = f"{case.method} · {case.user} · {','.join(case.preferences)} · seed {case.seed}"
        self._progress.reset(
            self._talk,
            description=self._name,
            total=case.interactions + case.unrelated,
            visible=True,
            start=True,
        )
        self._line(f"[{self._done + 1}/{self._total}] {self._name}")

    def interaction(self, count: int, interaction: Interaction, version: int) -> None:
        self._progress.update(self._talk, completed=count)

    def measured(self, count: int, version: int, measures: EvalMeasures) -> None:
        rest = "" if measures.undone is None else f" opposite {measures.undone:.2f}"
        rest += "" if measures.tools is None else f" tools {measures.tools:.2f}"
        rest += "" if measures.elsewhere is None else f" elsewhere {measures.elsewhere:.2f}"
        rest += "" if measures.small_talk is None else f" small talk {measures.small_talk:.2f}"
        rest += "" if measures.follow_ups is None else f" follow-ups {measures.follow_ups:.2f}"
        rest += "" if measures.kl_to_base is None else f" KL {measures.kl_to_base:.3f}"
        self._line(
            f"  {count:4d} v{version:<3d} compliance {measures.compliance:.2f} facts {measures.facts:.2f}{rest}"
        )

    def add_row(self, row: Json) -> None:
        """Print one line about a run of a worker process."""
        first, last = row["points"][0]["compliance"], row["points"][-1]["compliance"]
        self._line(
            f"[{self._done + 1}/{self._total}] {row['method']} · {row['user']} · {','.join(row['preferences'])} · "
            f"seed {row['seed']}: compliance {first:.2f} → {last:.2f}, {row['wall_s']:.0f} s"
        )

    def end(self, row: Json) -> None:
        self._done += 1
        self._progress.update(self._runs, completed=self._done)

    def _line(self, text: str) -> None:
        # soft_wrap: on a terminal the bars stay below.
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
