from __future__ import annotations

import random

import pytest

from lab.evals.scope import FORMS, Demand, demand

DAYS = ("Monday", "Tuesday", "Wednesday")


def test_a_list_is_whole_when_all_of_it_occurs_in_order() -> None:
    wanted = Demand(form="list", text="", items=DAYS)
    assert wanted.is_met("Sure! **Monday, Tuesday, Wednesday**!")
    assert not wanted.is_met("Monday, Wednesday.")
    assert not wanted.is_met("Wednesday, Tuesday, Monday")
    assert not Demand(form="list", text="", items=("1", "10")).is_met("1, 100")


def test_json_is_whole_when_it_parses_and_holds_all_items() -> None:
    wanted = Demand(form="json", text="", items=DAYS)
    assert wanted.is_met('{"answer": ["Monday", "Tuesday", "Wednesday"]}')
    assert not wanted.is_met("Monday, Tuesday, Wednesday")
    assert not wanted.is_met('{"answer": ["Monday", "Tuesday"]}')
    assert not wanted.is_met('{"answer": ["Monday", "Tuesday", "Wednesday"')


@pytest.mark.parametrize(
    ("reply", "is_met"),
    [
        ("def add(a, b):\n    return a + b", True),
        ("Here:\n```python\ndef add(a, b):\n    return a + b\n```\nDone.", True),
        ("```python\ndef add(a, b):\n    ...\n```", False),
        ("```python\ndef plus(a, b):\n    return a + b\n```", False),
        ("Use def add and return the sum.", False),
    ],
)
def test_code_is_whole_when_it_defines_the_function_and_returns(reply: str, is_met: bool) -> None:
    assert Demand(form="code", text="", items=("add",)).is_met(reply) is is_met


def test_every_form_is_asked_for_in_words() -> None:
    rng = random.Random(0)
    for form in FORMS:
        found = [demand(form, rng) for _ in range(20)]
        assert all(one.form == form and one.text and one.items for one in found)
        assert len({one.text for one in found}) > 3
        assert all(("JSON" in one.text) == (form == "json") for one in found)
