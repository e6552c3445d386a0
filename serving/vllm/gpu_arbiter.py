"""Arbitration of one GPU between engine and trainer: when requests wait, when the engine sleeps, when a step must yield. Sans-IO.

The engine sleeps at level 1 (its weights move to main memory, its cache is dropped) during a training step. Requests in flight end first. Requests that
arrive meanwhile wait at most `max_hold_s`; then the trainer is asked to yield at its next step boundary, and the engine wakes. If instead other requests
have not ended by then, all requests continue and the trainer waits. After a yield, the trainer gets the GPU only once the waiting requests were served.

Events are methods; they return the actions that the caller performs and reports back:

    trainer_requested    -> Action.SLEEP once no request is in flight   (POST /sleep?level=1)
    engine_slept         -> Action.GRANT                                the trainer may use the GPU
    tick                 -> Action.YIELD when a request waited too long the trainer is asked to stop at a boundary
    engine_lost          -> Action.YIELD                                the engine died while asleep; its restart needs the GPU
    trainer_released     -> Action.WAKE                                 (POST /wake_up)
    engine_sleep_failed  -> Action.WAKE                                 the engine did not fall asleep
    engine_woken         -> Action.ADMIT                                all waiting requests continue
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: Both paths answer 200 when done. They exist with VLLM_SERVER_DEV_MODE=1; on a GPU, sleep needs --enable-sleep-mode.
#: Requests that are still in flight (a judge sends them directly) are kept and continue after the wake-up (measured: the same tokens).
SLEEP_PATH, WAKE_PATH = "/sleep?level=1&mode=keep", "/wake_up"


class Action(StrEnum):
    SLEEP = "sleep"
    GRANT = "grant"
    YIELD = "yield"
    WAKE = "wake"
    ADMIT = "admit"


class GpuPhase(StrEnum):
    SERVING = "serving"
    DRAINING = "draining"  #: the trainer wants the GPU; requests in flight end, new ones wait
    SLEEPING = "sleeping"  #: the engine is falling asleep
    TRAINING = "training"
    WAKING = "waking"


@dataclass(slots=True, kw_only=True)
class WaitStatistics:
    """The cost of waiting, for `status`: number of requests, total seconds, longest wait."""

    requests: int = 0
    seconds: float = 0.0
    longest: float = 0.0


class GpuArbiter:
    """Decides who has the GPU.

    Args:
        max_hold_s: longest wait of a request before the trainer is asked to yield.
    """

    def __init__(self, max_hold_s: float) -> None:
        self._max_hold_s = max_hold_s
        self.phase = GpuPhase.SERVING
        self.wait_statistics = WaitStatistics()
        self._in_flight = 0
        self._waiting_since: dict[str, float] = {}
        self._admitted_before_training: set[str] = set()
        self._is_trainer_waiting = False
        self._yield_requested = False

    @property
    def waiting(self) -> int:
        return len(self._waiting_since)

    # ---- requests

    def request_arrived(self, request: str, now: float) -> bool:
        """Return whether a request may continue at once; otherwise it waits until `Action.ADMIT`."""
        if self.phase is GpuPhase.SERVING:
            self._in_flight += 1
            return True
        self._waiting_since[request] = now
        return False

    def request_ended(self, request: str, now: float) -> list[Action]:
        """Report the end of a request, or the disconnect of a waiting client."""
        if request in self._waiting_since:
            self._note(now - self._waiting_since.pop(request))
            return []
        self._in_flight -= 1
        self._admitted_before_training.discard(request)
        return self._next()

    # ---- the trainer

    def resume_training(self) -> None:
        """Continue an earlier process's state: the trainer has the GPU."""
        self.phase, self._is_trainer_waiting = GpuPhase.TRAINING, True

    def trainer_requested(self) -> list[Action]:
        """Report that the trainer has a step to run."""
        self._is_trainer_waiting = True
        return self._next()

    def trainer_withdrew(self, now: float) -> list[Action]:
        """Report that the trainer withdrew its request, or died, before a grant."""
        self._is_trainer_waiting = False
        return self._admit(now) if self.phase is GpuPhase.DRAINING else []

    def trainer_released(self) -> list[Action]:
        """Report that the trainer released the GPU: it is done, or yields at a boundary."""
        if self.phase is not GpuPhase.TRAINING:
            return []
        self.phase, self._is_trainer_waiting, self._yield_requested = GpuPhase.WAKING, False, False
        return [Action.WAKE]

    # ---- the engine

    def engine_slept(self) -> list[Action]:
        """Report that the engine sleeps."""
        self.phase = GpuPhase.TRAINING
        return [Action.GRANT]

    def engine_sleep_failed(self) -> list[Action]:
        """Report that the engine did not fall asleep; its state is unknown, so it is woken."""
        self.phase = GpuPhase.WAKING
        return [Action.WAKE]

    def engine_lost(self) -> list[Action]:
        """Report that the engine died; its replacement needs the GPU."""
        if self.phase is not GpuPhase.TRAINING or self._yield_requested:
            return []
        self._yield_requested = True
        return [Action.YIELD]

    def engine_woken(self, now: float) -> list[Action]:
        """Report that the engine serves again."""
        return [*self._admit(now), *self._next()]

    def tick(self, now: float) -> list[Action]:
        """Return the actions that are due at ``now``."""
        if not self._waiting_since or now - min(self._waiting_since.values()) < self._max_hold_s:
            return []
        if self.phase is GpuPhase.DRAINING:
            return self._admit(now)
        if self.phase is not GpuPhase.TRAINING or self._yield_requested:
            return []
        self._yield_requested = True
        return [Action.YIELD]

    def _admit(self, now: float) -> list[Action]:
        self.phase = GpuPhase.SERVING
        self._in_flight += len(self._waiting_since)
        # Waiting requests precede the trainer; the engine drains again once they are served.
        self._admitted_before_training |= self._waiting_since.keys()
        for since in self._waiting_since.values():
            self._note(now - since)
        self._waiting_since.clear()
        return [Action.ADMIT]

    def _next(self) -> list[Action]:
        if self.phase is GpuPhase.SERVING and self._is_trainer_waiting and not self._admitted_before_training:
            self.phase = GpuPhase.DRAINING
        if self.phase is GpuPhase.DRAINING and not self._in_flight:
            self.phase = GpuPhase.SLEEPING
            return [Action.SLEEP]
        return []

    def _note(self, seconds: float) -> None:
        self.wait_statistics.requests += 1
        self.wait_statistics.seconds += seconds
        self.wait_statistics.longest = max(self.wait_statistics.longest, seconds)
