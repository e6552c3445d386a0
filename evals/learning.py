"""Curves for experiments: what a method with given settings learns of a preference, seed by seed.

Two ways to run the same thing:

    stack   the whole house as its own processes, through its public API: what is claimed is measured so
    fast    user, rules and trainer in this process (`evals.pupil`): for sweeps. Several conversations of the same person are open
            at once, so that sampling is batched.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evals.client import House
from evals.loop import Checkpoint, Interaction, RunPlan, run_user
from evals.measure import Measurement, judge_replies, plan_probes
from evals.pupil import Pupil, Said
from evals.stack import Stack
from evals.users import Habits, SimulatedUser, check_preferences
from store.settings import Settings, read_settings
from store.values import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One run of an experiment.

    Attributes:
        overrides: settings by name, as text or value.
        tabs: fast only: conversations that are open at once.
    """

    mode: str
    method: str
    preferences: tuple[str, ...]
    seed: int
    interactions: int = 72
    measure_every: int = 24
    questions: int = 96
    opposites: int = 48
    tabs: int = 4
    habits: Habits = field(default_factory=Habits)
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def key(self) -> Json:
        """What makes two runs the same run."""
        return {
            "mode": self.mode,
            "method": self.method,
            "preferences": list(self.preferences),
            "seed": self.seed,
            "interactions": self.interactions,
            "questions": self.questions,
            "habits": asdict(self.habits),
            "overrides": dict(self.overrides),
        }

    def settings(self, home: Path) -> Settings:
        """Return the settings of this run.

        Raises:
            ConfigError: an override that is no setting, or a wrong value.
        """
        return read_settings({**self.overrides, "method": self.method, "seed": self.seed, "home": home})


def grid(
    *,
    mode: str,
    methods: Sequence[str],
    preferences: Sequence[str],
    seeds: Sequence[int],
    overrides: Mapping[str, Sequence[str]],
    **rest: Any,
) -> list[Spec]:
    """Return every combination, seeds innermost, so that whole cells come out early.

    Args:
        preferences: each a comma-separated list: one user.
        overrides: values to try by setting.

    Raises:
        ConfigError: an unknown preference, or ones that exclude each other.
    """
    combinations = [
        dict(zip(overrides, values, strict=True)) for values in itertools.product(*overrides.values())
    ]
    return [
        Spec(
            mode=mode,
            method=method,
            preferences=check_preferences(wanted.split(",")),
            seed=seed,
            overrides=chosen,
            **rest,
        )
        for method in methods
        for wanted in preferences
        for chosen in combinations
        for seed in seeds
    ]


def run_spec(spec: Spec, log: Callable[[str], None]) -> Json:
    """Run one spec; returns its row: the key, the curve and the sums."""
    started = time.monotonic()
    found = _Fast(spec, log).run() if spec.mode == "fast" else _run_stack(spec, log)
    checkpoints: list[Checkpoint] = found.pop("checkpoints")
    before, after = checkpoints[0].measurement, checkpoints[-1].measurement
    return {
        **spec.key(),
        "curve": [
            {"interactions": c.interactions, "version": c.version, **_brief(c.measurement)}
            for c in checkpoints
        ],
        "facts": [before.facts, after.facts],
        "opposite": [before.opposite_obeyed, after.opposite_obeyed],
        "samples": [list(pair) for pair in after.samples],
        **found,
        "wall_s": round(time.monotonic() - started, 1),
    }


def _brief(found: Measurement) -> Json:
    return {
        "compliance": round(found.compliance, 4),
        "by_preference": {name: round(share, 4) for name, share in found.by_preference.items()},
        "facts": round(found.facts, 4),
        "opposite": None if found.opposite_obeyed is None else round(found.opposite_obeyed, 4),
        "words": round(found.mean_words, 1),
        "distinct": round(found.distinct, 4),
    }


# ----------------------------------------------------------------------- stack


class _Log:
    """Turns what happens into lines."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log

    def phase(self, text: str) -> None:
        pass

    def interaction(self, interaction: Interaction) -> None:
        pass

    def version(self, interactions: int, version: int) -> None:
        pass

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        self._log(
            f"  {checkpoint.interactions:4d} v{checkpoint.version:<3d} {_brief(checkpoint.measurement)}"
        )


def _run_stack(spec: Spec, log: Callable[[str], None]) -> Json:
    import asyncio

    with tempfile.TemporaryDirectory(prefix="patina-") as folder:
        settings = spec.settings(Path(folder) / "home")
        plan = RunPlan(
            interactions=spec.interactions,
            measure_every=spec.measure_every,
            questions=spec.questions,
            questions_between=spec.questions,
            opposites=spec.opposites,
            pause_every=settings.batch_size,
            batch_size=settings.batch_size,
            seed=spec.seed,
        )
        with Stack(settings, home=settings.home) as stack:

            async def talk() -> Json:
                async with House(stack.base_url, stack.key) as house:
                    run = await run_user(
                        house, SimulatedUser(spec.preferences, spec.seed, habits=spec.habits), plan, _Log(log)
                    )
                last = (run.status.get("last_step") or {}).get("metrics") or {}
                return {
                    "checkpoints": list(run.checkpoints),
                    "versions": run.status.get("versions", {}).get("published", 0),
                    "rejected": run.status.get("versions", {}).get("rejected", 0),
                    "dropped": dict(run.status.get("drop_reasons", {})),
                    "kl_to_base": last.get("kl_to_base"),
                    "late_pauses": run.late_pauses,
                }

            return asyncio.run(talk())


# ------------------------------------------------------------------------ fast


@dataclass(slots=True)
class _Tab:
    """One open conversation of the person."""

    number: int
    user: SimulatedUser
    said: Said | None = None


class _Fast:
    def __init__(self, spec: Spec, log: Callable[[str], None]) -> None:
        self._spec = spec
        self._log = log
        self._dropped: Counter[str] = Counter()
        self._published = self._rejected = self._round = 0
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._metrics: Json = {}

    def run(self) -> Json:
        with tempfile.TemporaryDirectory(prefix="patina-") as folder:
            return self._run(self._spec.settings(Path(folder)))

    def _run(self, settings: Settings) -> Json:
        spec = self._spec
        self._pupil = Pupil(settings)
        self._policy = self._pupil.policy
        tabs = [
            _Tab(
                number=number,
                user=SimulatedUser(spec.preferences, 1_000 * spec.seed + number, habits=spec.habits),
            )
            for number in range(spec.tabs)
        ]
        checkpoints = [self._check(0, spec.opposites)]
        count, due = 0, spec.measure_every
        while count < spec.interactions:
            self._talk(tabs)
            count = sum(tab.user.interactions for tab in tabs)
            while self._train():
                pass
            if due and due <= count < spec.interactions:
                checkpoints.append(self._check(count, 0))
                due += spec.measure_every * (1 + (count - due) // spec.measure_every)
        self._talk(tabs)  # the last judgements are still unsaid
        while self._train():
            pass
        checkpoints.append(self._check(count, spec.opposites))
        return {
            "checkpoints": checkpoints,
            "versions": self._published,
            "rejected": self._rejected,
            "dropped": dict(self._dropped),
            "kl_to_base": self._metrics.get("kl_to_base"),
            "gate": self._metrics.get("gate"),
            "seconds": {name: round(value, 1) for name, value in self._seconds.items()},
        }

    def _check(self, interactions: int, opposites: int) -> Checkpoint:
        started = time.monotonic()
        spec = self._spec
        probes = plan_probes(spec.preferences, questions=spec.questions, opposites=opposites, seed=spec.seed)
        replies = self._pupil.sample(
            [self._policy.render(probe.messages) for probe in probes], seed=spec.seed
        )
        found = judge_replies(
            spec.preferences,
            probes,
            [self._policy.decode(reply.token_ids) for reply in replies],
            seconds=time.monotonic() - started,
        )
        self._seconds["measuring"] += found.seconds
        checkpoint = Checkpoint(interactions=interactions, version=self._pupil.version, measurement=found)
        self._log(f"  {interactions:4d} v{checkpoint.version:<3d} {_brief(found)}")
        return checkpoint

    def _talk(self, tabs: Sequence[_Tab]) -> None:
        """One request of every open conversation. What it says is the feedback on the reply before."""
        started = time.monotonic()
        requests = [tab.user.request() for tab in tabs]
        prompts = [self._policy.render(request.messages) for request in requests]
        self._round += 1
        replies = self._pupil.sample(prompts, seed=100_003 * self._spec.seed + self._round)
        for tab, request, prompt, reply in zip(tabs, requests, prompts, replies, strict=True):
            if tab.said is not None:
                drop = self._pupil.hear(tab.said, str(request.messages[-1]["content"]))
                self._dropped.update([drop.value] if drop is not None else [])
                tab.said = None
            if tab.user.read(self._policy.decode(reply.token_ids)) is None:
                continue
            tab.said = self._pupil.say(
                session=f"{tab.number}/{request.conversation}",
                messages=request.messages,
                prompt_ids=prompt,
                reply=reply,
            )
        self._seconds["talking"] += time.monotonic() - started

    def _train(self) -> bool:
        """Take a step if there is a batch; returns whether there was."""
        started = time.monotonic()
        lesson = self._pupil.learn()
        if lesson is None:
            return False
        outcome = lesson.outcome
        self._dropped.update(refusal.reason.value for refusal in outcome.refused.values())
        if outcome.written is not None:
            self._metrics = dict(outcome.metrics)
            if outcome.rejected:
                self._rejected += 1
                self._log(f"       version {lesson.number} rejected: {'; '.join(outcome.rejected)}")
            else:
                self._published += 1
            self._seconds["gate"] += float(outcome.metrics.get("gate_s", 0.0))
        self._seconds["steps"] += time.monotonic() - started
        return True
