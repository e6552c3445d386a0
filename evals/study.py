"""One run of one person with one method, from the first measurement to the last; and all runs of a comparison.

A run is a line of `runs.jsonl`. What is in the file is not run again, so a comparison that was interrupted goes on where it was.
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

from evals.client import House
from evals.methods import METHODS, Method
from evals.metrics import Measures, Numbers, Probe, judge, plan_probes
from evals.people import Person, Reaction, Reading, Request, Scenario, scenario, until_satisfied
from evals.stack import Stack
from evals.subjects import Ask, LiveSubject, Remembering, Subject
from store.errors import ConfigError
from store.settings import Settings, read_settings
from store.values import Json

RUNS_FILE = "runs.jsonl"
#: A preference that was never held this often cannot be retained.
_LEAST_PEAK = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run.

    Attributes:
        user: kind of person (`evals.people.USERS`).
        mode: stack: a house of our own; url: one that runs already; fast: in this process.
        voice: the model that plays the person, "" for the rules.
        measure_every: interactions between measurements.
        questions, undos, tools: probes at the first and last measurement; in between only the questions.
        thorough: every probe at every measurement.
        tabs: conversations that are open at once.
        overrides: settings over those of the method.
    """

    method: str
    user: str
    preferences: tuple[str, ...]
    seed: int
    interactions: int
    mode: str
    voice: str = ""
    measure_every: int = 10
    questions: int = 48
    undos: int = 24
    tools: int = 18
    tabs: int = 1
    thorough: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def key(self) -> Json:
        """What makes two runs the same run, as JSON reads it back."""
        found: Json = json.loads(self.key_text())
        return found

    def key_text(self) -> str:
        """The same as text, to look a run up by."""
        named = asdict(self)
        # Rows from before there was such a thing do not name it; and a thorough run has all that another has.
        if not self.thorough:
            del named["thorough"]
        return json.dumps(named, sort_keys=True)


class Voice(Protocol):
    """Who finds a person's words, where rules do not."""

    async def react(self, wishes: Sequence[str], request: Request, reply: str) -> Reaction: ...


class Watcher(Protocol):
    """Told as it happens."""

    def reading(self, count: int, reading: Reading, version: int) -> None: ...
    def measured(self, count: int, version: int, measures: Measures) -> None: ...


async def run_case(case: Case, subject: Subject, watcher: Watcher, *, voice: Voice | None = None) -> Json:
    """Let the person talk and measure; returns the row: the key, the points of the curve, what was said, the sums.

    Raises:
        ConfigError: an unknown person or preference.
        UpstreamError: the house under test failed, or learnt from probes.
    """
    who = scenario(case.user, case.preferences)
    ever = who.ever_wanted
    persons = [
        Person(
            who,
            1_000 * case.seed + tab,
            planned=math.ceil(case.interactions / case.tabs),
            first=100_000 * tab,
        )
        for tab in range(case.tabs)
    ]
    probes = plan_probes(ever, questions=case.questions, undos=case.undos, tools=case.tools, seed=case.seed)
    between = [probe for probe in probes if case.thorough or probe.kind == "plain"]
    points: list[Json] = []
    readings: list[tuple[Reading, int]] = []
    started = time.monotonic()
    measuring_s = 0.0

    async def check(wants: Sequence[str], some: Sequence[Probe]) -> None:
        nonlocal measuring_s
        began = time.monotonic()
        measures = await examine(subject, wants, ever, some)
        points.append(
            {
                "interactions": len(readings),
                "version": subject.version,
                "wants": list(wants),
                **measures.to_json(),
            }
        )
        watcher.measured(len(readings), subject.version, measures)
        measuring_s += time.monotonic() - began

    async def talk(*, is_last: bool = False) -> None:
        requests = [person.request() for person in persons]
        answers = await subject.converse(
            [Ask(conversation=request.conversation, messages=request.messages) for request in requests]
        )
        if is_last:
            return
        for person, request, answer in zip(persons, requests, answers, strict=True):
            reaction = None
            if voice is not None and request.is_read:
                reaction = await voice.react(person.wants, request, answer.text)
            reading = person.read(answer.text, reaction)
            if reading is not None and len(readings) < case.interactions:
                readings.append((reading, subject.version))
                watcher.reading(len(readings), reading, subject.version)

    await check(who.wants(0.0), probes)
    due = case.measure_every
    while len(readings) < case.interactions:
        await talk()
        await subject.settle()
        if case.measure_every and due <= len(readings) < case.interactions:
            await check(persons[0].wants, between)
            due += case.measure_every * (1 + (len(readings) - due) // case.measure_every)
    await talk(is_last=True)  # the last judgements are still unsaid
    await subject.settle(at_end=True)
    await check(who.wants(1.0), probes)
    bare = None
    if isinstance(subject, Remembering):
        bare = (await examine(subject.without_memory, who.wants(1.0), ever, probes)).to_json()
    versions = await subject.versions()
    return {
        **case.key(),
        "about": METHODS[case.method].about,
        "wants": list(ever),
        "points": points,
        "readings": [_reading_json(reading, version) for reading, version in readings],
        "until_satisfied": until_satisfied([reading for reading, _ in readings]),
        "retention": retention(who, points),
        "without_memory": bare,
        "versions": versions,
        "cost": asdict(subject.cost),
        "late_pauses": subject.late_pauses if isinstance(subject, LiveSubject) else 0,
        "measuring_s": round(measuring_s, 1),
        "wall_s": round(time.monotonic() - started, 1),
    }


async def examine(
    subject: Subject, wants: Sequence[str], ever: Sequence[str], probes: Sequence[Probe]
) -> Measures:
    """Return what a subject does on probes now."""
    answers, numbers = await subject.probe(probes, exact=True)
    return judge(wants, ever, probes, answers, numbers or Numbers())


def retention(who: Scenario, points: Sequence[Json]) -> float | None:
    """Return how much of the earlier wishes is left: the last compliance over the best one before the next wish came, at most 1.

    Only wishes that are still wanted count; None where no wish came later, or none was ever met.
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


def _reading_json(reading: Reading, version: int) -> Json:
    return {
        "conversation": reading.conversation,
        "question": reading.task.text,
        "reply": reading.reply,
        "violated": list(reading.violated),
        "is_redo": reading.is_redo,
        "words": reading.words,
        "version": version,
    }


# ------------------------------------------------------------------ many runs


def cases(
    methods: Sequence[Method],
    users: Sequence[str],
    wants: Sequence[tuple[str, ...]],
    seeds: Iterable[int],
    tried: Mapping[str, Sequence[str]] | None = None,
    **rest: Any,
) -> list[Case]:
    """Return every combination, seeds outermost: an interrupted comparison has whole rounds of all methods.

    Args:
        tried: values by setting; every combination of them is tried with every method that learns.
    """
    tried = tried or {}
    combinations = [dict(zip(tried, values, strict=True)) for values in itertools.product(*tried.values())]
    return [
        Case(method=method.name, user=user, preferences=preferences, seed=seed, overrides=overrides, **rest)
        for seed in seeds
        for user in users
        for preferences in wants
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
        if not equals or name not in Settings.model_fields:
            raise ConfigError(f"--set {pair}: give SETTING=VALUE[,VALUE...] with a setting of run.py")
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
    key = case.key()
    return next((row for row in rows if all(row.get(name) == value for name, value in key.items())), None)


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
class Place:
    """Where a case runs: the settings a person gave, and the Patina at an address if it is not ours."""

    settings: Settings
    given: Mapping[str, Any]
    base_url: str = ""
    key: str = ""


async def run_at(place: Place, case: Case, watcher: Watcher, *, voice: Voice | None = None) -> Json:
    """Run a case where it belongs.

    Raises:
        ConfigError: wrong settings, or the own Patina does not start.
        UpstreamError: the Patina under test failed.
    """
    method = METHODS[case.method]
    wanted = {**place.given, **method.settings, **case.overrides}
    async with AsyncExitStack() as stack:
        subject: Subject
        if case.mode == "fast":
            from evals.fast import FastSubject  # torch: seconds to import, and only this mode needs it

            fast = FastSubject(
                wanted, learns=method.kind == "learn", seed=case.seed, preferences=case.preferences
            )
            subject = stack.enter_context(fast)
        else:
            home = None
            base_url, key = place.base_url, place.key
            settings = place.settings
            if case.mode == "stack":
                settings = read_settings({**wanted, "seed": case.seed})
                own = stack.enter_context(Stack(settings))
                base_url, key, home = own.base_url, own.key, own.home
            house = await stack.enter_async_context(House(base_url, key))
            subject = LiveSubject(
                house, learns=method.kind == "learn", batch_size=settings.batch_size, home=home
            )
        if method.kind == "memory":
            subject = Remembering(subject)
        return await run_case(case, subject, watcher, voice=voice)
