"""One device, engine and trainer by turns: when requests are held, when the engine sleeps, when a step has to yield. Sans-IO.

The engine sleeps at level 1 (its weights go to main memory, its cache is dropped) for the duration of a step. Nobody is thrown out for it:
requests in flight end first. Whoever arrives meanwhile waits at most `max_hold_s`: then the trainer is asked to yield at its next step
boundary, and the engine wakes; if it is other requests that have not ended by then, all go on and the trainer waits. A trainer that was
made to yield gets the device again only after those who waited were served.

Events in, actions out; whoever drives this does the actions and tells of their end:

    wants      -> Action.SLEEP once nobody is in flight       (POST /sleep?level=1)
    slept      -> Action.GRANT                                  the trainer may use the device
    tick       -> Action.YIELD when somebody waited too long    the trainer is asked to stop at a boundary
    lost       -> Action.YIELD                                  the engine died while it slept: it needs the device to come back
    released   -> Action.WAKE                                   (POST /wake_up)
    failed     -> Action.WAKE                                   it would not fall asleep
    woken      -> Action.ADMIT                                  all who wait go on
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: POST these; both answer 200 when it is done. They exist with VLLM_SERVER_DEV_MODE=1; on a GPU sleep needs --enable-sleep-mode.
#: What is in flight there all the same (a judge asks it directly) is kept, and goes on when it wakes (measured: the same tokens).
SLEEP_PATH, WAKE_PATH = "/sleep?level=1&mode=keep", "/wake_up"


class Action(StrEnum):
    SLEEP = "sleep"
    GRANT = "grant"
    YIELD = "yield"
    WAKE = "wake"
    ADMIT = "admit"


class Phase(StrEnum):
    SERVING = "serving"
    DRAINING = "draining"  #: the trainer wants the device; requests in flight end, new ones are held
    SLEEPING = "sleeping"  #: the engine is being put to sleep
    TRAINING = "training"
    WAKING = "waking"


@dataclass(slots=True, kw_only=True)
class Held:
    """What being held cost, for `status`: requests that waited, their seconds together, and the longest wait."""

    requests: int = 0
    seconds: float = 0.0
    longest: float = 0.0


class Hold:
    """Who has the device.

    Args:
        max_hold_s: longest wait of a request before the trainer is asked to yield.
    """

    def __init__(self, max_hold_s: float) -> None:
        self._max_hold_s = max_hold_s
        self.phase = Phase.SERVING
        self.held = Held()
        self._in_flight = 0
        self._waiting: dict[str, float] = {}
        self._owed: set[str] = set()
        self._is_wanted = False
        self._asked_to_yield = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # ---- requests

    def arrived(self, request: str, now: float) -> bool:
        """Whether a request may go on at once; otherwise it waits until `Action.ADMIT`."""
        if self.phase is Phase.SERVING:
            self._in_flight += 1
            return True
        self._waiting[request] = now
        return False

    def left(self, request: str, now: float) -> list[Action]:
        """Tell of a request that ended, or whose client left while it waited."""
        if request in self._waiting:
            self._note(now - self._waiting.pop(request))
            return []
        self._in_flight -= 1
        self._owed.discard(request)
        return self._next()

    # ---- the trainer

    def resume(self) -> None:
        """Begin where an earlier life of ours ended: the trainer has the device."""
        self.phase, self._is_wanted = Phase.TRAINING, True

    def wants(self) -> list[Action]:
        """Tell that the trainer has a step to do."""
        self._is_wanted = True
        return self._next()

    def gave_up(self, now: float) -> list[Action]:
        """Tell that the trainer wants no more, or is gone, before it was granted anything."""
        self._is_wanted = False
        return self._admit(now) if self.phase is Phase.DRAINING else []

    def released(self) -> list[Action]:
        """Tell that the trainer is off the device: it is done, or at a boundary and yields."""
        if self.phase is not Phase.TRAINING:
            return []
        self.phase, self._is_wanted, self._asked_to_yield = Phase.WAKING, False, False
        return [Action.WAKE]

    # ---- the engine

    def slept(self) -> list[Action]:
        """Tell that the engine sleeps."""
        self.phase = Phase.TRAINING
        return [Action.GRANT]

    def failed(self) -> list[Action]:
        """Tell that it would not fall asleep; nobody knows what it is now, so it is woken."""
        self.phase = Phase.WAKING
        return [Action.WAKE]

    def lost(self) -> list[Action]:
        """Tell that it is gone; another one is being started, which needs the device."""
        if self.phase is not Phase.TRAINING or self._asked_to_yield:
            return []
        self._asked_to_yield = True
        return [Action.YIELD]

    def woken(self, now: float) -> list[Action]:
        """Tell that the engine serves again."""
        return [*self._admit(now), *self._next()]

    def tick(self, now: float) -> list[Action]:
        """Return what time has made due."""
        if not self._waiting or now - min(self._waiting.values()) < self._max_hold_s:
            return []
        if self.phase is Phase.DRAINING:
            return self._admit(now)
        if self.phase is not Phase.TRAINING or self._asked_to_yield:
            return []
        self._asked_to_yield = True
        return [Action.YIELD]

    def _admit(self, now: float) -> list[Action]:
        self.phase = Phase.SERVING
        self._in_flight += len(self._waiting)
        # those who waited come before the trainer; it drains again once they are served
        self._owed |= self._waiting.keys()
        for since in self._waiting.values():
            self._note(now - since)
        self._waiting.clear()
        return [Action.ADMIT]

    def _next(self) -> list[Action]:
        if self.phase is Phase.SERVING and self._is_wanted and not self._owed:
            self.phase = Phase.DRAINING
        if self.phase is Phase.DRAINING and not self._in_flight:
            self.phase = Phase.SLEEPING
            return [Action.SLEEP]
        return []

    def _note(self, seconds: float) -> None:
        self.held.requests += 1
        self.held.seconds += seconds
        self.held.longest = max(self.held.longest, seconds)
