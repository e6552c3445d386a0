"""Engine and trainer by turns on one device: nobody is thrown out, nobody waits beyond the bound plus a boundary, nobody starves."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.vllm.hold import Action, Hold, Phase


def test_requests_in_flight_end_before_the_engine_sleeps() -> None:
    hold = Hold(10.0)
    assert hold.arrived("a", 0.0)
    assert hold.wants() == []
    assert not hold.arrived("b", 1.0)
    assert hold.left("a", 2.0) == [Action.SLEEP]
    assert hold.slept() == [Action.GRANT]
    assert hold.released() == [Action.WAKE]
    assert hold.woken(5.0) == [Action.ADMIT]
    assert (hold.held.requests, hold.held.seconds, hold.held.longest) == (1, 4.0, 4.0)


def test_a_wait_beyond_the_bound_asks_the_step_to_yield_once() -> None:
    hold = Hold(10.0)
    assert hold.wants() == [Action.SLEEP]
    hold.slept()
    assert hold.tick(100.0) == []  # nobody waits: a step may take as long as it takes
    hold.arrived("a", 100.0)
    assert hold.tick(109.9) == []
    assert hold.tick(110.0) == [Action.YIELD]
    assert hold.tick(111.0) == []
    assert hold.released() == [Action.WAKE]


def test_a_trainer_that_yielded_comes_after_those_who_waited() -> None:
    hold = Hold(1.0)
    hold.wants()
    hold.slept()
    hold.arrived("a", 0.0)
    hold.tick(1.0)
    hold.released()
    hold.wants()  # it is not done
    assert hold.woken(2.0) == [Action.ADMIT]
    assert hold.arrived("b", 2.5)  # others flow meanwhile
    assert hold.phase is Phase.SERVING
    assert hold.left("a", 3.0) == []  # now it is the trainer's turn: b ends, nobody new begins
    assert not hold.arrived("c", 3.5)
    assert hold.left("b", 4.0) == [Action.SLEEP]


def test_requests_that_do_not_end_do_not_hold_others_beyond_the_bound() -> None:
    hold = Hold(10.0)
    hold.arrived("long", 0.0)
    hold.wants()
    assert not hold.arrived("b", 1.0)
    assert hold.tick(10.9) == []
    assert hold.tick(11.0) == [Action.ADMIT]
    assert hold.arrived("c", 12.0)
    assert hold.left("b", 13.0) == []  # those who waited are served: it drains again
    assert not hold.arrived("d", 13.5)
    assert hold.left("c", 14.0) == []
    assert hold.left("long", 15.0) == [Action.SLEEP]


def test_an_engine_that_dies_asleep_gets_the_device_back_and_one_that_stays_awake_too() -> None:
    hold = Hold(10.0)
    hold.wants()
    hold.slept()
    assert hold.lost() == [Action.YIELD]
    assert hold.lost() == []
    assert hold.released() == [Action.WAKE]
    hold.woken(1.0)
    assert hold.wants() == [Action.SLEEP]
    assert hold.failed() == [Action.WAKE]
    assert hold.phase is Phase.WAKING


def test_a_trainer_that_gives_up_while_requests_drain_lets_those_go_on_that_wait() -> None:
    hold = Hold(10.0)
    hold.arrived("a", 0.0)
    hold.wants()
    hold.arrived("b", 1.0)
    assert hold.gave_up(2.0) == [Action.ADMIT]
    assert hold.left("a", 3.0) == []
    assert hold.left("b", 3.0) == []
    assert hold.phase is Phase.SERVING


def test_a_client_that_leaves_while_it_waits_is_counted_and_forgotten() -> None:
    hold = Hold(1.0)
    hold.wants()
    hold.slept()
    hold.arrived("a", 0.0)
    assert hold.left("a", 0.5) == []
    assert (hold.waiting, hold.held.longest) == (0, 0.5)
    assert hold.tick(9.0) == []


@given(st.integers(0, 10_000))
@settings(max_examples=200, deadline=None)
def test_over_any_course_of_events_the_device_has_one_user_and_nobody_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    hold = Hold(5.0)
    now, count = 0.0, 0
    running: set[str] = set()
    waiting: set[str] = set()
    due: list[Action] = []
    training = False
    for _ in range(120):
        now += rng.random()
        if due:
            action = due.pop(0)
            if action is Action.SLEEP:
                assert not running  # nobody is thrown out
                due += hold.slept()
            elif action is Action.GRANT:
                training = True
            elif action is Action.YIELD or action is Action.WAKE:
                if action is Action.YIELD and not training:
                    continue  # it was done before it heard of it
                if action is Action.YIELD:
                    training = False
                    due += hold.released()
                else:
                    assert not training
                    due += hold.woken(now)
            else:
                running |= waiting
                waiting.clear()
            continue
        move = rng.choice(["arrive", "leave", "want", "release", "tick", "lost", "give up"])
        if move == "arrive":
            count += 1
            (running if hold.arrived(str(count), now) else waiting).add(str(count))
            assert not (training and running)
        elif move == "leave" and running:
            due += hold.left(gone := rng.choice(sorted(running)), now)
            running.discard(gone)
        elif move == "want":
            due += hold.wants() if not training else []
        elif move == "release" and training:
            training = False
            due += hold.released()
        elif move == "tick":
            due += hold.tick(now)
        elif move == "lost":
            due += hold.lost()
        elif move == "give up" and not training:
            due += hold.gave_up(now)
        while Action.ADMIT in due:  # done at once, before any other
            due.remove(Action.ADMIT)
            running |= waiting
            waiting.clear()
        assert hold.waiting == len(waiting)
    # everybody who waits is let in once the trainer is done
    for _ in range(50):
        while due:
            action = due.pop(0)
            if action is Action.SLEEP:
                due += hold.slept()
            elif action is Action.GRANT or action is Action.YIELD:
                due += hold.released()
            elif action is Action.WAKE:
                due += hold.woken(now)
            else:
                running |= waiting
                waiting.clear()
        if training:
            training = False
            due += hold.released()
        elif running:
            due += hold.left(gone := running.pop(), now)
        elif not waiting:
            break
    assert not waiting
    assert hold.waiting == 0
