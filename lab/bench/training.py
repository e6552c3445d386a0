"""Are replies slower while a version is trained? `python -m lab.bench.training [--rounds 5] [--idle-s 25]`.

A Patina on the test model, as `run.py` starts it. A round: four conversations with a complaint; then one client sends requests one after the other,
with a pause between two, first for a while in which nothing is trained, then until the step ends that `run.py train --now` begins. Both halves are
served by the same version. A request counts as `training` when it lies within a step, by the record.

Printed: p50 and p95 of replies, milliseconds a token, and the ratio training / idle, round by round, with the range that holds 95 % of its bootstrap.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from lab.bench.client import Client
from lab.bench.soak import WISHES
from lab.evals.client import PatinaClient
from lab.evals.question_splits import USER_QUESTIONS
from lab.evals.stack import Stack
from lab.models import toy_settings
from store.record import Record
from store.settings import REPOSITORY, child_environment, read_settings
from store.values import StepReport

_PAUSE_S = 0.3
_MAX_TOKENS = 64
_PROBES = ("What is the capital of France?", "How many legs has a spider?", "What is 2 plus 3?")
_STEP_S = 300.0


@dataclass(frozen=True)
class TimedRequest:
    """One request: Unix times of its beginning and end, and the tokens of its reply."""

    began: float
    ended: float
    tokens: int

    @property
    def ms(self) -> float:
        return 1e3 * (self.ended - self.began)


async def probe(client: Client, number: int) -> TimedRequest:
    """Send one greedy request, which is not trained on."""
    body = {
        "model": "patina-tiny", "temperature": 0, "max_tokens": _MAX_TOKENS, "metadata": {"patina_train": "off"},
        "messages": [{"role": "user", "content": _PROBES[number % len(_PROBES)]}],
    }  # fmt: skip
    began = time.time()
    reply = await client.post("/v1/chat/completions", body)
    if not reply.is_ok:
        raise SystemExit(f"a request failed: {reply.head}")
    return TimedRequest(began, time.time(), json.loads(reply.body)["usage"]["completion_tokens"])


async def complain(stack: Stack, wish: str, questions: Sequence[str]) -> None:
    """Have conversations with a complaint, and wait until it is scored."""
    async with PatinaClient(stack.base_url, stack.key) as client:
        for question in questions:
            messages = [{"role": "user", "content": question}]
            reply = await client.chat(messages)
            messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": wish}]
            await client.chat(messages)
    for _ in range(300):
        if stack.status()["stages"].get("scored", 0) >= len(questions):
            return
        await asyncio.sleep(0.2)
    raise SystemExit("the complaints were not scored")


async def probe_round(stack: Stack, idle_s: float) -> tuple[list[TimedRequest], StepReport]:
    """Send requests without training, then until a step ends."""
    client = Client(stack.port, stack.key)
    found: list[TimedRequest] = []
    record = await Record.open(read_settings({"home": stack.home}).database_url)
    try:
        asked_at, deadline = 0.0, time.time() + idle_s + _STEP_S
        while time.time() < deadline:
            found.append(await probe(client, len(found)))
            await asyncio.sleep(_PAUSE_S)
            if not asked_at and time.time() > deadline - _STEP_S:
                asked_at = time.time()
                command = [sys.executable, "run.py", "train", "--now", "--home", str(stack.home)]
                asked = await asyncio.create_subprocess_exec(
                    *command, cwd=REPOSITORY, env=child_environment(), stdout=asyncio.subprocess.DEVNULL
                )
                if await asked.wait():
                    raise SystemExit("train --now failed")
            if asked_at and (steps := await record.steps_finished_after(asked_at)):
                return found, steps[0]
    finally:
        await record.close()
        await client.close()
    raise SystemExit("no step ended")


def ratio_with_range(rounds: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the median of (with / without) over rounds, and the bounds of 95 % of its bootstrap."""
    ratios = [after / before for before, after in rounds]
    draw = random.Random(0)
    drawn = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2_000))
    return statistics.median(ratios), drawn[50], drawn[1_950]


def split(probes: Sequence[TimedRequest], step: StepReport) -> tuple[list[TimedRequest], list[TimedRequest]]:
    """Return the requests before a step and those within it."""
    assert step.finished_at is not None
    before = [one for one in probes if one.ended < step.started_at]
    within = [one for one in probes if step.started_at <= one.began and one.ended <= step.finished_at]
    return before, within


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * len(values))]


def show(rounds: Sequence[tuple[list[TimedRequest], list[TimedRequest]]]) -> Table:
    table = Table("", "requests", "p50 ms", "p95 ms", "ms a token")
    for at, name in enumerate(("idle", "training")):
        every = [one for halves in rounds for one in halves[at]]
        times = [one.ms for one in every]
        a_token = sum(times) / sum(one.tokens for one in every)
        table.add_row(
            name,
            str(len(every)),
            f"{percentile(times, 0.5):.0f}",
            f"{percentile(times, 0.95):.0f}",
            f"{a_token:.1f}",
        )
    cells = []
    for share in (0.5, 0.95):
        pairs = [
            (
                percentile([one.ms for one in before], share),
                percentile([one.ms for one in within], share),
            )
            for before, within in rounds
        ]
        cells.append("{:.2f} [{:.2f}, {:.2f}]".format(*ratio_with_range(pairs)))
    pairs = [
        (
            statistics.mean(one.ms / one.tokens for one in before),
            statistics.mean(one.ms / one.tokens for one in within),
        )
        for before, within in rounds
    ]
    table.add_row("training / idle", "", *cells, "{:.2f} [{:.2f}, {:.2f}]".format(*ratio_with_range(pairs)))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description="Replies while a version is trained, and otherwise.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle-s", type=float, default=25.0)
    arguments = parser.parse_args()
    rounds, seconds = [], []
    with Stack(toy_settings({"train_when": "manual"})) as stack:
        for number in range(arguments.rounds):
            questions = [one.text for one in USER_QUESTIONS[4 * number : 4 * number + 4]]
            asyncio.run(complain(stack, WISHES[number % len(WISHES)], questions))
            probes, step = asyncio.run(probe_round(stack, arguments.idle_s))
            before, within = split(probes, step)
            if before and within:
                rounds.append((before, within))
                seconds.append((step.finished_at or 0.0) - step.started_at)
    Console(width=120).print(show(rounds))
    print(f"steps took {', '.join(f'{one:.0f}' for one in seconds)} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
