"""Who writes the hint: the person, or a judge? `python -m bench.hints --preferences concise,no_emoji spanish --seeds 2 --output hints`.

The same people talk to the same policy (`run.py eval --fast`), and the hint in a complaint's verdict is

- words: what the person said, as it is by default;
- ideal: what a judge would say who is never wrong: the wish complained about, as a general instruction, in the place where hints of
  judges stand. It bounds from above what a judge can be worth where the words are clear; a real one costs calls and errs.

A folder for each source; a run that is in it already is not run again.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console

from evals.command import run_in_turn
from evals.methods import METHODS
from evals.preferences import PREFERENCES, parse_preferences
from evals.report import print_summary
from evals.study import Case, Place, cases
from models.styles import STYLES
from scorers.base import compose
from store.errors import PatinaError
from store.lifecycle import DropReason
from store.settings import read_settings
from store.values import Verdict

SOURCES = ("words", "ideal")


def ideal_hint(words: str, rng: random.Random) -> str:
    """Return what these words complain about as general instructions; "" when no preference is complained about in them."""
    meant = [name for name, wanted in PREFERENCES.items() if any(said in words for said in wanted.complaints)]
    return " ".join(
        rng.choice(STYLES[name].heldout_instructions) if name in STYLES else PREFERENCES[name].wish
        for name in meant
    )


@contextmanager
def ideal_judge(seed: int) -> Iterator[list[tuple[str, str]]]:
    """Inside, hints of complaints are written by an ideal judge; yields (words, hint) as they come."""
    rng = random.Random(f"judge/{seed}")
    written: list[tuple[str, str]] = []

    def judged(*given: Any, **named: Any) -> tuple[Verdict, DropReason | None]:
        verdict, drop = compose(*given, **named)
        hint = ideal_hint(verdict.hint or "", rng)
        if not hint:
            return verdict, drop
        written.append((verdict.hint or "", hint))
        return replace(verdict, hint=hint, hint_is_reaction=False), drop

    with patch("evals.pupil.compose", judged):
        yield written


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.hints", description=__doc__)
    parser.add_argument("--sources", nargs="+", default=list(SOURCES), choices=SOURCES)
    parser.add_argument("--preferences", nargs="+", default=["concise,no_emoji"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--interactions", type=int, default=40)
    parser.add_argument("--measure-every", type=int, default=20)
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--output", type=Path, default=Path("hints"), help="folder of a folder for each source"
    )
    given = parser.parse_args(argv)
    torch.set_num_threads(given.threads)
    try:
        wanted = cases(
            [METHODS["combine"]],
            ["steady"],
            [parse_preferences(text) for text in given.preferences],
            range(given.seeds),
            interactions=given.interactions,
            mode="fast",
            measure_every=given.measure_every,
            questions=given.questions,
            tabs=4,
        )
        place = Place(settings=read_settings({}), given={})
        judges: dict[str, Callable[[Case], AbstractContextManager[object]]] = {
            "words": nullcontext,
            "ideal": lambda case: ideal_judge(case.seed),
        }
        for source in given.sources:
            folder = given.output / source
            folder.mkdir(parents=True, exist_ok=True)
            rows = asyncio.run(run_in_turn(wanted, place, folder, around=judges[source]))
            console = Console(width=160)
            console.print(f"hints: {source}")
            print_summary(rows, console)
    except PatinaError as error:
        print(f"patina: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
