"""One simulated user and one running house: talk, pause, measure.

What a run is a measure of: how many interactions (see `evals.users`) it takes. So the user pauses after every few of them until
the house has made of them what it will (bounded: a stuck house is reported, not waited for), and measures only then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from evals.client import House, live_version
from evals.measure import Measurement, measure
from evals.users import Judgement, SimulatedUser


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """How long to talk and when to measure.

    Attributes:
        interactions: most interactions.
        measure_every: interactions between measurements; 0: only before and after.
        questions: probe questions before and after.
        questions_between: probe questions in between (the first of the same ones).
        opposites: probes that ask for the opposite, before and after only.
        pause_every: interactions between pauses.
        pause_s: longest pause.
        batch_size: turns the house trains at a time: fewer than so many may wait after a pause.
        budget_s: stop talking after so many seconds from the start of the run.
        seed: of user and probes.
    """

    interactions: int = 72
    measure_every: int = 24
    questions: int = 96
    questions_between: int = 48
    opposites: int = 48
    pause_every: int = 4
    pause_s: float = 20.0
    batch_size: int = 4
    budget_s: float = float("inf")
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """`version` was live when the reply had been given."""

    judgement: Judgement
    version: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A measurement, after so many interactions."""

    interactions: int
    version: int
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What happened, oldest first. `checkpoints` begins with before and ends with after.

    Attributes:
        went_live: (interactions so far, version), each time another version was seen live.
        late_pauses: pauses that ended before the house was done.
        seen: turns whose end the user saw, probes included.
    """

    preferences: tuple[str, ...]
    interactions: tuple[Interaction, ...]
    went_live: tuple[tuple[int, int], ...]
    checkpoints: tuple[Checkpoint, ...]
    late_pauses: int
    seen: tuple[str, ...]
    seconds: float
    status: Mapping[str, Any]

    @property
    def before(self) -> Measurement:
        return self.checkpoints[0].measurement

    @property
    def after(self) -> Measurement:
        return self.checkpoints[-1].measurement

    def to_json(self) -> dict[str, Any]:
        return {
            "preferences": list(self.preferences),
            "interactions": [
                {
                    "interaction": i.judgement.interaction,
                    "conversation": i.judgement.conversation,
                    "question": i.judgement.question.text,
                    "reply": i.judgement.reply,
                    "is_redo": i.judgement.is_redo,
                    "violated": list(i.judgement.violated),
                    "words": i.judgement.words,
                    "score": score(i.judgement, self.preferences),
                    "version": i.version,
                    "seconds": round(i.seconds, 3),
                }
                for i in self.interactions
            ],
            "went_live": [list(pair) for pair in self.went_live],
            "checkpoints": [{**asdict(c), "measurement": c.measurement.to_json()} for c in self.checkpoints],
            "late_pauses": self.late_pauses,
            "seen": list(self.seen),
            "seconds": round(self.seconds, 1),
            "status": dict(self.status),
        }


class Observer(Protocol):
    """Told as it happens."""

    def phase(self, text: str) -> None: ...
    def interaction(self, interaction: Interaction) -> None: ...
    def version(self, interactions: int, version: int) -> None: ...
    def checkpoint(self, checkpoint: Checkpoint) -> None: ...


def score(judgement: Judgement, preferences: tuple[str, ...]) -> float:
    """Return the share of preferences that the reply meets."""
    return 1.0 - len(judgement.violated) / len(preferences)


async def run_user(house: House, user: SimulatedUser, plan: RunPlan, observer: Observer) -> Run:
    """Let ``user`` talk to ``house`` as planned.

    Raises:
        UpstreamError: the house failed, or learnt from probes.
    """
    started = time.monotonic()
    interactions: list[Interaction] = []
    went_live: list[tuple[int, int]] = []
    checkpoints: list[Checkpoint] = []
    late = 0
    live = live_version(await house.status())

    async def look() -> None:
        nonlocal live
        now = live_version(await house.status())
        if now != live:
            live = now
            went_live.append((len(interactions), now))
            observer.version(len(interactions), now)

    async def pause() -> None:
        nonlocal late
        done = await house.settle(batch_size=plan.batch_size, timeout_s=plan.pause_s)
        late += not done
        await look()

    async def check(questions: int, opposites: int) -> None:
        observer.phase("measuring on unseen questions")
        found = await measure(
            house, user.preferences, questions=questions, opposites=opposites, seed=plan.seed
        )
        checkpoints.append(Checkpoint(interactions=len(interactions), version=live, measurement=found))
        observer.checkpoint(checkpoints[-1])
        observer.phase("talking")

    await check(plan.questions, plan.opposites)
    while len(interactions) < plan.interactions and time.monotonic() - started < plan.budget_s:
        request = user.request()
        reply = await house.chat(request.messages)
        judgement = user.read(reply.text)
        await look()
        if judgement is None:
            continue
        interactions.append(Interaction(judgement=judgement, version=live, seconds=reply.seconds))
        observer.interaction(interactions[-1])
        count = len(interactions)
        if count == plan.interactions:
            break
        if count % plan.pause_every == 0:
            await pause()
        if plan.measure_every and count % plan.measure_every == 0:
            await check(plan.questions_between, 0)
    # The last judgement is still unsaid: it belongs to the interactions that are counted.
    if interactions and user.interactions == len(interactions):
        user.read((await house.chat(user.request().messages)).text)
    await pause()
    await check(plan.questions, plan.opposites)
    return Run(
        preferences=user.preferences,
        interactions=tuple(interactions),
        went_live=tuple(went_live),
        checkpoints=tuple(checkpoints),
        late_pauses=late,
        seen=tuple(house.seen),
        seconds=time.monotonic() - started,
        status=await house.status(),
    )
