"""One run of a simulated user with a method, from the first measurement to the last, and all runs of a comparison.

A run is a line of `runs.jsonl`. A run that the file has is not run again, so an interrupted comparison continues.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lab.evals.client import PatinaClient
from lab.evals.methods import METHODS, EvalMethod
from lab.evals.metrics import EvalMeasures, Numbers, Probe, judge, plan_claims, plan_probes
from lab.evals.simulated_user import (
    USUAL_INTERACTIONS,
    USUAL_UNRELATED,
    Interaction,
    Request,
    Scenario,
    SimulatedReaction,
    SimulatedUser,
    scenario,
    until_satisfied,
)
from lab.evals.stack import Stack
from lab.evals.systems import LiveSystem, PromptMemory, System, SystemRequest
from lab.models import TOY
from lab.models.wellformed import built_in_words
from store.errors import ConfigError
from store.learning import LearningConfig
from store.settings import Settings, read_settings
from store.values import Json

RUNS_FILE = "runs.jsonl"
#: Retention is defined for preferences whose compliance reached at least this.
_LEAST_PEAK = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run.

    Attributes:
        user: kind of user (`lab.evals.simulated_user.USERS`).
        mode: stack: a Patina of its own; url: a running one.
        user_model: the LLM that plays the user, "" for rules.
        measure_every: interactions between measurements.
        questions, undos, tools, again, elsewhere, scope, small_talk: probes at the first and last measurement; in between only the questions.
        thorough: every probe at every measurement.
        tabs: conversations that are open at once.
        unrelated: further interactions in which the user never mentions a wish (`lab.evals.unrelated`).
        overrides: settings over those of the method.
    """

    method: str
    user: str
    preferences: tuple[str, ...]
    seed: int
    interactions: int
    mode: str
    user_model: str = ""
    measure_every: int = 10
    questions: int = 48
    undos: int = 24
    tools: int = 18
    again: int = 24
    elsewhere: int = 24
    scope: int = 24
    small_talk: int = 24
    tabs: int = 1
    thorough: bool = False
    unrelated: int = 0
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def key(self) -> Json:
        """Return what identifies the run, as JSON reads it back."""
        found: Json = json.loads(self.key_text())
        return found

    def key_text(self) -> str:
        """Return `key` as text, to look up a run."""
        named = asdict(self)
        # Older rows lack these fields; and a thorough run contains what another one does.
        if not self.thorough:
            del named["thorough"]
        if not self.unrelated:
            del named["unrelated"]
        if not self.elsewhere:
            del named["elsewhere"]
        return json.dumps(named, sort_keys=True)


class ReactionModel(Protocol):
    """An LLM that words the reactions of a user in place of the rules."""

    async def react(self, wishes: Sequence[str], request: Request, reply: str) -> SimulatedReaction: ...


class Observer(Protocol):
    """Receives the progress of a run."""

    def interaction(self, count: int, interaction: Interaction, version: int) -> None: ...
    def measured(self, count: int, version: int, measures: EvalMeasures) -> None: ...


async def run_case(
    case: Case,
    system: System,
    observer: Observer,
    *,
    llm_user: ReactionModel | None = None,
    vocabulary: frozenset[str] | None = None,
    budget_s: float = math.inf,
    questions_between: int | None = None,
) -> Json:
    """Run the interactions and the measurements; return the row: the key, the measurements, the interactions, the sums.

    Args:
        vocabulary: the words of well-formed replies; None: unknown.
        budget_s: seconds after which no further interaction starts.
        questions_between: plain probes in between (the first of those at the start); None: all of them.

    Raises:
        ConfigError: an unknown user or preference.
        UpstreamError: the Patina under test failed, or recorded probes for training.
    """
    run = _CaseRun(case, system, observer, llm_user, vocabulary, budget_s, questions_between)
    await run.play()
    return await run.row()


class _CaseRun:
    """The state of one `run_case`: the interactions and measurements so far."""

    def __init__(
        self,
        case: Case,
        system: System,
        observer: Observer,
        llm_user: ReactionModel | None,
        vocabulary: frozenset[str] | None,
        budget_s: float,
        questions_between: int | None,
    ) -> None:
        self._case, self._system, self._observer = case, system, observer
        self._llm_user, self._vocabulary = llm_user, vocabulary
        self._scenario = scenario(case.user, case.preferences)
        self._ever = self._scenario.ever_wanted
        self._users = _make_users(self._scenario, case, case.interactions)
        self._probes = plan_probes(
            self._ever,
            questions=case.questions,
            undos=case.undos,
            tools=case.tools,
            again=case.again,
            elsewhere=case.elsewhere,
            scope=case.scope,
            small_talk=case.small_talk,
            seed=case.seed,
        )
        self._between = [probe for probe in self._probes if case.thorough or probe.kind == "plain"]
        if questions_between is not None:
            self._between = self._between[:questions_between]
        self._points: list[Json] = []
        self._measured_at: list[float] = []
        self._readings: list[tuple[Interaction, int]] = []
        self._started = time.monotonic()
        self._stop_at = self._started + budget_s
        self._measuring_s = 0.0

    async def play(self) -> None:
        """Measure, run the interactions with measurements in between, and measure again."""
        case = self._case
        await self._check(self._scenario.wants(0.0), self._probes)
        await self._talk_until(self._users, case.interactions, case.measure_every)
        if case.unrelated:
            others = _make_users(
                scenario("unrelated", self._scenario.wants(1.0)), case, case.unrelated, first=50_000
            )
            await self._talk_until(others, case.interactions + case.unrelated, math.ceil(case.unrelated / 3))

    async def row(self) -> Json:
        """Return the run as a line of `runs.jsonl`."""
        case, who, system, points = self._case, self._scenario, self._system, self._points
        bare = None
        if isinstance(system, PromptMemory):
            bare = (
                await examine(
                    system.without_memory, who.wants(1.0), self._ever, self._probes, self._vocabulary
                )
            ).to_json()
        versions = await system.versions()
        return {
            **case.key(),
            "about": METHODS[case.method].about,
            "wants": list(self._ever),
            "points": points,
            "measured_at": self._measured_at,
            "readings": [_interaction_json(reading, version) for reading, version in self._readings],
            "until_satisfied": until_satisfied(
                [reading for reading, _ in self._readings[: case.interactions]]
            ),
            "retention": retention(who, [p for p in points if p["interactions"] <= case.interactions]),
            "held": held(who, points),
            "withdrawn": withdrawn(who, points),
            "unrelated_points": unrelated_points(points, case.interactions) if case.unrelated else None,
            "without_memory": bare,
            "versions": versions,
            "cost": asdict(system.cost),
            "late_pauses": system.late_pauses if isinstance(system, LiveSystem) else 0,
            "measuring_s": round(self._measuring_s, 1),
            "wall_s": round(time.monotonic() - self._started, 1),
        }

    async def _check(self, wants: Sequence[str], probes: Sequence[Probe]) -> None:
        began = time.monotonic()
        self._measured_at.append(time.time())
        measures = await examine(self._system, wants, self._ever, probes, self._vocabulary)
        self._points.append(
            {
                "interactions": len(self._readings),
                "version": self._system.version,
                "wants": list(wants),
                **measures.to_json(),
            }
        )
        self._observer.measured(len(self._readings), self._system.version, measures)
        self._measuring_s += time.monotonic() - began

    async def _exchange(self, users: Sequence[SimulatedUser], until: int, *, is_last: bool = False) -> None:
        requests = [person.request() for person in users]
        answers = await self._system.converse(
            [
                SystemRequest(conversation=request.conversation, messages=request.messages)
                for request in requests
            ]
        )
        if is_last:
            return
        for person, request, answer in zip(users, requests, answers, strict=True):
            reaction = None
            if self._llm_user is not None and request.is_read:
                reaction = await self._llm_user.react(person.wants, request, answer.text)
            reading = person.read(answer.text, reaction)
            if reading is not None and len(self._readings) < until:
                self._readings.append((reading, self._system.version))
                self._observer.interaction(len(self._readings), reading, self._system.version)

    async def _talk_until(self, users: Sequence[SimulatedUser], until: int, every: int) -> None:
        readings = self._readings
        due = len(readings) + every
        while len(readings) < until and time.monotonic() < self._stop_at:
            await self._exchange(users, until)
            await self._system.wait_for_training()
            if every and due <= len(readings) < until:
                await self._check(users[0].wants, self._between)
                due += every * (1 + (len(readings) - due) // every)
        await self._exchange(users, until, is_last=True)  # the last reactions have not been sent yet
        await self._system.wait_for_training(at_end=True)
        claims = [(reading.task, reading.claimed) for reading, _ in readings if reading.claimed]
        await self._check(
            self._scenario.wants(1.0), [*self._probes, *plan_claims(claims, seed=self._case.seed)]
        )


async def examine(
    system: System,
    wants: Sequence[str],
    ever: Sequence[str],
    probes: Sequence[Probe],
    vocabulary: frozenset[str] | None = None,
) -> EvalMeasures:
    """Return the measures of a system's answers to probes."""
    answers, numbers = await system.probe(probes, exact=True)
    return judge(wants, ever, probes, answers, numbers or Numbers(), vocabulary)


def retention(who: Scenario, points: Sequence[Json]) -> float | None:
    """Return the retention of earlier wishes: last compliance over the best one before the next wish arrived, at most 1.

    Counts wishes that are still wanted; None: no wish arrived later, or none was ever met.
    """
    if len(who.phases) < 2:
        return None
    total = points[-1]["interactions"] or 1
    shares = []
    for phase, after in zip(who.phases, who.phases[1:], strict=False):
        for name in set(phase.wants) & set(who.phases[-1].wants):
            until = [p["by_preference"][name] for p in points if p["interactions"] <= after.begins * total]
            if until and max(until) >= _LEAST_PEAK:
                shares.append(min(1.0, points[-1]["by_preference"][name] / max(until)))
    return sum(shares) / len(shares) if shares else None


def held(who: Scenario, points: Sequence[Json]) -> dict[str, float] | None:
    """Return the final compliance with each final wish; None: wishes never changed."""
    if len(who.phases) < 2:
        return None
    return {name: points[-1]["by_preference"][name] for name in who.wants(1.0)}


def withdrawn(who: Scenario, points: Sequence[Json]) -> dict[str, float] | None:
    """Return the compliance with each withdrawn wish, last less first; None: none was withdrawn."""
    first, last = points[0]["by_preference"], points[-1]["by_preference"]
    return {name: round(last[name] - first[name], 4) for name in who.withdrawn} or None


def unrelated_points(points: Sequence[Json], taught: int) -> Json:
    """Return the compliance before and during the unrelated conversations.

    Returns:
        taught: compliance when they began. after: by their number, compliance. kept: the last of these over `taught`, at most 1;
        None where the wishes were hardly ever met.
    """
    reached = [point["compliance"] for point in points if point["interactions"] <= taught][-1]
    after = {
        str(point["interactions"] - taught): point["compliance"]
        for point in points
        if point["interactions"] > taught
    }
    last = points[-1]["compliance"]
    return {
        "taught": reached,
        "after": after,
        "kept": min(1.0, last / reached) if reached >= _LEAST_PEAK else None,
    }


def _make_users(who: Scenario, case: Case, interactions: int, *, first: int = 0) -> list[SimulatedUser]:
    return [
        SimulatedUser(
            who,
            1_000 * case.seed + tab,
            planned=math.ceil(interactions / case.tabs),
            first=first + 100_000 * tab,
            withdraws=tab == 0,
        )
        for tab in range(case.tabs)
    ]


def _interaction_json(reading: Interaction, version: int) -> Json:
    return {
        "conversation": reading.conversation,
        "question": reading.task.text,
        "reply": reading.reply,
        "violated": list(reading.violated),
        "is_redo": reading.is_redo,
        "words": reading.words,
        "about": reading.about,
        "claimed": reading.claimed,
        "version": version,
    }


# ------------------------------------------------------------------ many runs


def cases(
    methods: Sequence[EvalMethod],
    users: Sequence[str],
    wants: Sequence[tuple[str, ...]],
    seeds: Iterable[int],
    tried: Mapping[str, Sequence[str]] | None = None,
    interactions: int | None = None,
    unrelated: int | None = None,
    tabs: Iterable[int] = (1,),
    **rest: Any,
) -> list[Case]:
    """Return every combination, seeds outermost, so that an interrupted comparison has complete rounds of all methods.

    Args:
        tried: values by setting; every combination of them is tried with every method that learns.
        interactions, unrelated: see `Case`; None for the usual number of each kind of user.
    """
    tabs = tuple(tabs)
    tried = tried or {}
    combinations = [dict(zip(tried, values, strict=True)) for values in itertools.product(*tried.values())]
    return [
        Case(
            method=method.name,
            user=user,
            preferences=preferences,
            seed=seed,
            interactions=USUAL_INTERACTIONS.get(user, 40) if interactions is None else interactions,
            unrelated=USUAL_UNRELATED.get(user, 0) if unrelated is None else unrelated,
            tabs=count,
            overrides=overrides,
            **rest,
        )
        for seed in seeds
        for user in users
        for preferences in wants
        for count in tabs
        for method in methods
        for overrides in (combinations if method.kind == "learn" else [{}])
    ]


def parse_tried(pairs: Sequence[str]) -> dict[str, list[str]]:
    """Return the values to try by setting.

    Raises:
        ConfigError: not SETTING=VALUE, or no setting of that name.
    """
    found = {}
    for pair in pairs:
        name, equals, values = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in {*Settings.model_fields, *LearningConfig.model_fields}:
            raise ConfigError(f"--sweep {pair}: give SETTING=VALUE[,VALUE...] with a setting of run.py")
        found[name] = values.split(",")
    return found


def read_runs(folder: Path) -> list[Json]:
    """Return the runs in a folder; a last line that was cut off by a kill is left out."""
    path = folder / RUNS_FILE
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def find_run(rows: Sequence[Json], case: Case) -> Json | None:
    """Return the finished run of a case."""
    key = {"unrelated": case.unrelated, **case.key()}
    return next(
        (
            row
            for row in rows
            if all({"unrelated": 0, **row}.get(name) == value for name, value in key.items())
        ),
        None,
    )


def append_run(folder: Path, row: Json) -> None:
    """Add a finished run.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        path = folder / RUNS_FILE
        torn = path.is_file() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write(("\n" if torn else "") + json.dumps(row, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {folder / RUNS_FILE}: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnvironment:
    """Where a case runs: the settings that the user gave, and the address of a running Patina."""

    settings: Settings
    given: Mapping[str, Any]
    base_url: str = ""
    key: str = ""


async def run_in(
    environment: RunEnvironment, case: Case, observer: Observer, *, llm_user: ReactionModel | None = None
) -> Json:
    """Run a case in its environment.

    Raises:
        ConfigError: wrong settings, or the own Patina does not start.
        UpstreamError: the Patina under test failed.
    """
    method = METHODS[case.method]
    wanted = {**environment.given, **method.settings, **case.overrides}
    async with AsyncExitStack() as stack:
        home = None
        base_url, key = environment.base_url, environment.key
        settings = environment.settings
        if case.mode == "stack":
            settings = read_settings({**wanted, "seed": case.seed})
            own = stack.enter_context(Stack(settings))
            base_url, key, home = own.base_url, own.key, own.home
        client = await stack.enter_async_context(PatinaClient(base_url, key))
        model = await client.model() if case.mode == "url" else settings.model_name
        system: System = LiveSystem(
            client, learns=method.kind == "learn", batch_size=settings.batch_size, home=home
        )
        if method.kind == "memory":
            system = PromptMemory(system)
        vocabulary = built_in_words() if Path(model).name == TOY.name else None
        return await run_case(case, system, observer, llm_user=llm_user, vocabulary=vocabulary)
