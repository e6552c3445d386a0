"""What a policy's attempts at versions depend on beside the weights: learning rate, playbook, past turns, rejections in a row.

All of it is in the newest version's folder, but for what rejected versions, which have no successor, have changed (`_Progress`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from store.settings import Settings
from store.values import BASE_VERSION, Json, ScoredTurn
from trainer.protocol import AttemptPhase, Edit
from trainer.replay import Reservoir
from trainer.step import StepPlan
from trainer.wish_state import WishState

#: After a rejection the learning rate is halved, down to this share of what was asked for; every published version wins
#: back a quarter.
_RATE_FLOOR, RATE_CUT, RATE_GAIN = 1 / 64, 0.5, 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """What a policy's attempts have changed that is in no version's folder."""

    version: int
    rate: float
    rejected_in_a_row: int


class PolicyProgress:
    """The state of one policy between steps, without its weights."""

    def __init__(self, settings: Settings, plan: StepPlan, wishes: WishState) -> None:
        self._settings = settings
        self._plan = plan
        self._wishes = wishes
        self.name = settings.policy
        self.version = BASE_VERSION
        self._progress: dict[str, _Progress] = {}
        self._age_version: int | None = None  # in a replay: by which the age of turns is counted
        self._steps = 0
        self._rate = settings.resolved_learning_rate
        self._reservoir = Reservoir(seed=settings.seed)
        self._rejected_in_a_row = 0
        self._is_intact = False  # the gate found nothing lost in this version
        self.phase = AttemptPhase()

    def _enter(self, phase: str) -> None:
        self.phase = AttemptPhase(phase, time.time())

    def _keep_progress(self) -> None:
        self._progress[self.name] = _Progress(
            version=self.version, rate=self._rate, rejected_in_a_row=self._rejected_in_a_row
        )

    def _resume(self, name: str, version: int) -> None:
        """Go on as this version of a policy, with what rejections since then have changed."""
        is_other = name != self.name
        self.name, self.version = name, version
        kept = self._progress.get(name)
        if is_other and kept is not None and kept.version == version:
            self._rejected_in_a_row = kept.rejected_in_a_row
            self._set_rate(kept.rate)

    def _take_state(self, state: Mapping[str, Any]) -> None:
        self._steps = int(state.get("steps", 0))
        self._set_rate(float(state.get("learning_rate", self._settings.resolved_learning_rate)))
        saved = state.get("reservoir")
        self._reservoir = Reservoir.from_json(saved) if saved else Reservoir(seed=self._settings.seed)
        self._wishes.load(state.get("playbook"))
        self._is_intact = bool(state.get("intact"))
        self._rejected_in_a_row = 0

    def _set_rate(self, rate: float) -> None:
        asked = self._settings.resolved_learning_rate
        self._rate = min(asked, max(asked * _RATE_FLOOR, rate))

    def state(self) -> Json:
        """What the next attempt depends on beside the version it starts from, its turns and the settings."""
        return {
            "version": self._counted_version,
            "learning_rate": self._rate,
            "rejected_in_a_row": self._rejected_in_a_row,
        }

    def count_rejections(self, count: int) -> None:
        """So many attempts from this version were rejected before this process: go on as after them."""
        self._rejected_in_a_row = count
        self._set_rate(self._rate * RATE_CUT**count)

    def resume(self, state: Json) -> None:
        """Let the next attempt be as it was when `state` returned this. Turns count as old as they were then."""
        self._set_rate(float(state["learning_rate"]))
        self._rejected_in_a_row = int(state["rejected_in_a_row"])
        self._age_version = int(state["version"])

    @property
    def _counted_version(self) -> int:
        return self.version if self._age_version is None else self._age_version

    @property
    def _seed_number(self) -> int:
        """Number of the attempt among those that led to these weights: the seed of what it samples.

        The version number is none: in a replay it is another, and what is trained must be the same.
        """
        return self._steps + self._rejected_in_a_row + 1

    def draw_replay(self, turns: Sequence[ScoredTurn]) -> tuple[str, ...]:
        """Ids of past turns to repeat beside these: as many as these lack to the number of teaching ones a step is to have.

        Where hints are read, a batch of thanks teaches nothing against its anchors, and what was learnt wears away until the
        person complains again. A batch that is full of complaints needs no others, and is only slowed down by them. Where a playbook
        is kept, its turns are repeated (`WishTraining.rehearsal`).
        """
        if self._plan.selects_hints:
            return ()
        teaching = sum(bool(turn.verdict.hint) or not self._plan.reads_hints for turn in turns)
        missing = self._settings.learning.replay - teaching
        if missing <= 0:
            return ()
        return self._reservoir.draw(missing, self._steps, exclude={turn.turn_id for turn in turns})

    @property
    def remembered(self) -> tuple[str, ...]:
        """Ids of past turns whose words the playbook is made of."""
        return self._wishes.turn_ids if self._plan.selects_hints else ()

    def is_due(self, edits: Sequence[Edit] = ()) -> bool:
        """Whether a version is to be made although no turn asks for one: a withdrawn wish is to be unlearnt."""
        return self._plan.selects_hints and self._wishes.is_unlearning(edits)
