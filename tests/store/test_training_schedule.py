"""When a step may begin: the clock and the requests decide."""

from datetime import datetime

import pytest

from store.errors import ConfigError
from store.settings import read_settings
from store.training_schedule import parse_schedule


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
