"""Engine and trainer alternate on one device: no request is aborted, none waits longer than the bound plus one step boundary, none starves."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.vllm.gpu_arbiter import Action, GpuArbiter, GpuPhase
from tests.examples import examples


def test_requests_in_flight_end_before_the_engine_sleeps() -> None:
    arbiter = GpuArbiter(10.0)
    assert arbiter.request_arrived("a", 0.0)
    assert arbiter.trainer_requested() == []
    assert not arbiter.request_arrived("b", 1.0)
    assert arbiter.request_ended("a", 2.0) == [Action.SLEEP]
    assert arbiter.engine_slept() == [Action.GRANT]
    assert arbiter.trainer_released() == [Action.WAKE]
    assert arbiter.engine_woken(5.0) == [Action.ADMIT]
    assert (
        arbiter.wait_statistics.requests,
        arbiter.wait_statistics.seconds,
        arbiter.wait_statistics.longest,
    ) == (1, 4.0, 4.0)


def test_a_wait_beyond_the_bound_asks_the_step_to_yield_once() -> None:
    arbiter = GpuArbiter(10.0)
    assert arbiter.trainer_requested() == [Action.SLEEP]
    arbiter.engine_slept()
    assert arbiter.tick(100.0) == []  # no request waits: a step has no time limit
    arbiter.request_arrived("a", 100.0)
    assert arbiter.tick(109.9) == []
    assert arbiter.tick(110.0) == [Action.YIELD]
    assert arbiter.tick(111.0) == []
    assert arbiter.trainer_released() == [Action.WAKE]


def test_a_trainer_that_yielded_comes_after_those_who_waited() -> None:
    arbiter = GpuArbiter(1.0)
    arbiter.trainer_requested()
    arbiter.engine_slept()
    arbiter.request_arrived("a", 0.0)
    arbiter.tick(1.0)
    arbiter.trainer_released()
    arbiter.trainer_requested()  # it is not done
    assert arbiter.engine_woken(2.0) == [Action.ADMIT]
    assert arbiter.request_arrived("b", 2.5)  # others flow meanwhile
    assert arbiter.phase is GpuPhase.SERVING
    assert (
        arbiter.request_ended("a", 3.0) == []
    )  # the trainer holds the device: b ends, no new request starts
    assert not arbiter.request_arrived("c", 3.5)
    assert arbiter.request_ended("b", 4.0) == [Action.SLEEP]


def test_requests_that_do_not_end_do_not_hold_others_beyond_the_bound() -> None:
    arbiter = GpuArbiter(10.0)
    arbiter.request_arrived("long", 0.0)
    arbiter.trainer_requested()
    assert not arbiter.request_arrived("b", 1.0)
    assert arbiter.tick(10.9) == []
    assert arbiter.tick(11.0) == [Action.ADMIT]
    assert arbiter.request_arrived("c", 12.0)
    assert arbiter.request_ended("b", 13.0) == []  # those who waited are served: it drains again
    assert not arbiter.request_arrived("d", 13.5)
    assert arbiter.request_ended("c", 14.0) == []
    assert arbiter.request_ended("long", 15.0) == [Action.SLEEP]


def test_an_engine_that_dies_asleep_gets_the_device_back_and_one_that_stays_awake_too() -> None:
    arbiter = GpuArbiter(10.0)
    arbiter.trainer_requested()
    arbiter.engine_slept()
    assert arbiter.engine_lost() == [Action.YIELD]
    assert arbiter.engine_lost() == []
    assert arbiter.trainer_released() == [Action.WAKE]
    arbiter.engine_woken(1.0)
    assert arbiter.trainer_requested() == [Action.SLEEP]
    assert arbiter.engine_sleep_failed() == [Action.WAKE]
    assert arbiter.phase is GpuPhase.WAKING


def test_a_trainer_that_gives_up_while_requests_drain_lets_those_go_on_that_wait() -> None:
    arbiter = GpuArbiter(10.0)
    arbiter.request_arrived("a", 0.0)
    arbiter.trainer_requested()
    arbiter.request_arrived("b", 1.0)
    assert arbiter.trainer_withdrew(2.0) == [Action.ADMIT]
    assert arbiter.request_ended("a", 3.0) == []
    assert arbiter.request_ended("b", 3.0) == []
    assert arbiter.phase is GpuPhase.SERVING


def test_a_client_that_leaves_while_it_waits_is_counted_and_forgotten() -> None:
    arbiter = GpuArbiter(1.0)
    arbiter.trainer_requested()
    arbiter.engine_slept()
    arbiter.request_arrived("a", 0.0)
    assert arbiter.request_ended("a", 0.5) == []
    assert (arbiter.waiting, arbiter.wait_statistics.longest) == (0, 0.5)
    assert arbiter.tick(9.0) == []


MOVES = ["arrive", "leave", "want", "release", "tick", "lost", "give up"]


class DeviceModel:
    """Requests and a trainer that obey the arbiter's actions, in an order that a seed decides."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.arbiter = GpuArbiter(5.0)
        self.now, self.count = 0.0, 0
        self.running: set[str] = set()
        self.waiting: set[str] = set()
        self.due: list[Action] = []
        self.is_training = False

    def admit(self) -> None:
        self.running |= self.waiting
        self.waiting.clear()

    def release(self) -> None:
        self.is_training = False
        self.due += self.arbiter.trainer_released()

    def perform(self, action: Action) -> None:
        if action is Action.SLEEP:
            assert not self.running  # no running request is aborted
            self.due += self.arbiter.engine_slept()
        elif action is Action.GRANT:
            self.is_training = True
        elif action is Action.YIELD:
            if self.is_training:  # else it finished before the notice arrived
                self.release()
        elif action is Action.WAKE:
            assert not self.is_training
            self.due += self.arbiter.engine_woken(self.now)
        else:
            self.admit()

    def arrive(self) -> None:
        self.count += 1
        name = str(self.count)
        (self.running if self.arbiter.request_arrived(name, self.now) else self.waiting).add(name)
        assert not (self.is_training and self.running)

    def leave(self) -> None:
        gone = self.rng.choice(sorted(self.running))
        self.due += self.arbiter.request_ended(gone, self.now)
        self.running.discard(gone)

    def move(self, move: str) -> None:
        if move == "arrive":
            self.arrive()
        elif move == "leave" and self.running:
            self.leave()
        elif move == "want" and not self.is_training:
            self.due += self.arbiter.trainer_requested()
        elif move == "release" and self.is_training:
            self.release()
        elif move == "tick":
            self.due += self.arbiter.tick(self.now)
        elif move == "lost":
            self.due += self.arbiter.engine_lost()
        elif move == "give up" and not self.is_training:
            self.due += self.arbiter.trainer_withdrew(self.now)
        while Action.ADMIT in self.due:  # done at once, before any other
            self.due.remove(Action.ADMIT)
            self.admit()
        assert self.arbiter.waiting == len(self.waiting)

    def step(self) -> None:
        self.now += self.rng.random()
        if self.due:
            self.perform(self.due.pop(0))
        else:
            self.move(self.rng.choice(MOVES))

    def drain(self) -> None:
        """Let every trainer release and every running request end, until none waits."""
        for _ in range(50):
            while self.due:
                action = self.due.pop(0)
                self.perform(action)
                if action is Action.GRANT:
                    self.release()
            if self.is_training:
                self.release()
            elif self.running:
                self.leave()
            elif not self.waiting:
                break


@given(st.integers(0, 10_000))
@settings(max_examples=examples(200))
def test_over_any_order_of_events_the_device_has_one_user_and_no_request_is_lost(seed: int) -> None:
    device = DeviceModel(seed)
    for _ in range(120):
        device.step()
    device.drain()
    assert not device.waiting
    assert device.arbiter.waiting == 0
