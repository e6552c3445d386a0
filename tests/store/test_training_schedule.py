"""When a step may begin: the clock and the requests decide."""

from datetime import datetime

import pytest

from store.errors import ConfigError
from store.settings import read_settings
from store.training_schedule import is_batch_due, parse_schedule
from store.values import Waiting


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-24T{text}")


def may_begin(when: str, clock: str, quiet_s: float = 0.0, idle_minutes: float = 30.0) -> bool:
    return not parse_schedule(when, idle_minutes).reason_to_wait(at(clock), quiet_s)


@pytest.mark.parametrize(
    ("when", "clock", "expected"),
    [
        ("always", "12:00", True),
        ("manual", "12:00", False),
        ("23:00-07:00", "22:59", False),
        ("23:00-07:00", "23:00", True),
        ("23:00-07:00", "00:30", True),
        ("23:00-07:00", "06:59", True),
        ("23:00-07:00", "07:00", False),
        ("9:30-12:00", "09:29", False),
        ("9:30-12:00", "09:30", True),
        ("9:30-12:00", "12:00", False),
    ],
)
def test_the_clock_decides(when: str, clock: str, expected: bool) -> None:
    assert may_begin(when, clock) is expected


@pytest.mark.parametrize(("quiet_s", "expected"), [(0.0, False), (299.0, False), (300.0, True), (1e9, True)])
def test_idle_is_the_time_without_a_main_request(quiet_s: float, expected: bool) -> None:
    assert may_begin("idle", "12:00", quiet_s, idle_minutes=5.0) is expected


def test_the_reason_says_what_is_waited_for() -> None:
    assert parse_schedule("23:00-07:00", 1).reason_to_wait(at("12:00"), 0) == "waiting until 23:00"
    assert "5 min" in parse_schedule("idle", 5).reason_to_wait(at("12:00"), 0)
    assert "train --now" in parse_schedule("manual", 5).reason_to_wait(at("12:00"), 0)


@pytest.mark.parametrize(
    "text", ["", "night", "24:00-07:00", "23:60-07:00", "23:00", "07:00-07:00", "always "]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="train-when"):
        read_settings({"train_when": text})


def waiting(
    ready: int, complaints: int = 0, first: float | None = None, newest: float | None = None
) -> Waiting:
    return Waiting(
        scored=9,
        ready=ready,
        oldest_since=0.0,
        complaints=complaints,
        complaint_since=first,
        newest_complaint=newest or first,
    )


def test_a_whole_batch_does_not_wait() -> None:
    assert is_batch_due(waiting(4, 4, 0.0), 4, 60.0, 0.0)
    assert is_batch_due(waiting(4), 4, 60.0, 0.0)  # of thanks


def test_thanks_do_not_fill_a_batch_while_complaints_come() -> None:
    assert not is_batch_due(waiting(4, 3, 0.0, 20.0), 4, 60.0, 30.0)
    assert is_batch_due(waiting(4, 3, 0.0, 20.0), 4, 60.0, 36.0)


def test_thanks_and_neutral_turns_start_no_clock() -> None:
    assert not is_batch_due(waiting(3), 4, 60.0, 1e9)


@pytest.mark.parametrize(
    ("newest", "now", "is_due"),
    [
        (0.0, 60.0, False),  # it has not waited so long
        (0.0, 61.0, True),
        (50.0, 61.0, False),  # another one came just now: there may be more
        (50.0, 81.0, True),  # quiet for half of the wait
        (119.0, 121.0, True),  # waited twice as long, whatever comes
    ],
)
def test_complaints_wait_for_others_that_still_come(newest: float, now: float, is_due: bool) -> None:
    assert is_batch_due(waiting(2, 2, 0.0, newest), 4, 60.0, now) is is_due
