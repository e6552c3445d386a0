"""One device, engine and trainer by turns: when requests are held, when the engine sleeps, when a step has to yield. Sans-IO.

The engine sleeps at level 1 (its weights go to main memory, its cache is dropped) for the duration of a step. Nobody is thrown out for it:
requests in flight end first. Whoever arrives meanwhile waits at most `max_hold_s`: then the trainer is asked to yield at its next step
boundary, and the engine wakes. A trainer that was made to yield gets the device again only after those who waited were served.

Events in, actions out; whoever drives this does the actions and tells of their end:

    wants      -> Action.SLEEP once nobody is in flight       (POST /sleep?level=1)
    slept      -> Action.GRANT                                  the trainer may use the device
    tick       -> Action.YIELD when somebody waited too long    the trainer is asked to stop at a boundary
    released   -> Action.WAKE                                   (POST /wake_up)
    woken      -> Action.ADMIT                                  all who wait go on
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: POST these; both answer 200 when it is done. They exist with VLLM_SERVER_DEV_MODE=1, and sleep with --enable-sleep-mode only.
SLEEP_PATH, WAKE_PATH = "/sleep?level=1&mode=wait", "/wake_up"


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

    def wants(self) -> list[Action]:
        """Tell that the trainer has a step to do."""
        self._is_wanted = True
        return self._next()

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

    def woken(self, now: float) -> list[Action]:
        """Tell that the engine serves again."""
        self.phase = Phase.SERVING
        self._in_flight += len(self._waiting)
        self._owed = set(self._waiting)
        for since in self._waiting.values():
            self._note(now - since)
        self._waiting.clear()
        return [Action.ADMIT, *self._next()]

    def tick(self, now: float) -> list[Action]:
        """Return what time has made due. While requests drain nothing is: what holds then is other requests, not the trainer."""
        if self.phase is not Phase.TRAINING or self._asked_to_yield or not self._waiting:
            return []
        if now - min(self._waiting.values()) < self._max_hold_s:
            return []
        self._asked_to_yield = True
        return [Action.YIELD]

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
