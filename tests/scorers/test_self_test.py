"""A judge is tested before its votes count."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from scorers.parse import parse_score
from scorers.registry import build_scorer_chain
from scorers.self_test import self_test, self_test_cases
from store.errors import JudgeError, JudgeUnavailable
from store.settings import read_settings
from store.values import AnsweredTurn, Json
from tests.scorers.conftest import ScriptedJudge, failure

VERDICTS = {turn.next_states[0].text: verdict for turn, verdict in self_test_cases()}


class Oracle:
    """Votes by the list, but wrong, unreadable or late for the first so many cases."""

    def __init__(self, *, wrong: int = 0, unreadable: int = 0, late: int = 0, down: bool = False) -> None:
        self.asked = 0
        self._wrong, self._unreadable, self._late, self._down = wrong, unreadable, late, down

    async def single_vote(self, turn: AnsweredTurn) -> int:
        self.asked += 1
        if self._down:
            raise JudgeUnavailable("nobody there")
        if self.asked <= self._unreadable:
            return parse_score("I would rather not say")
        if 1 < self.asked <= self._late + 1:
            await asyncio.Event().wait()
        verdict = VERDICTS[turn.next_states[0].text]
        return verdict if self.asked > self._wrong else (verdict + 2) % 3 - 1


def test_the_cases_are_forty_balanced_and_distinct() -> None:
    assert len(VERDICTS) == 40
    assert min(Counter(VERDICTS.values()).values()) >= 13


async def test_a_judge_that_is_right_passes_with_its_result() -> None:
    result = await self_test(Oracle(wrong=8))
    assert result.passed
    assert result.sentence == "passed: 32 of 40 self-test cases right, 40 readable"


@pytest.mark.parametrize(
    ("oracle", "sentence"),
    [
        (
            Oracle(wrong=9),
            "failed: 31 of 40 self-test cases right, 40 readable; it takes 80% right and 90% readable",
        ),
        (
            Oracle(unreadable=5),
            "failed: 35 of 40 self-test cases right, 35 readable; it takes 80% right and 90% readable",
        ),
        (Oracle(late=10), "failed: only 30 of 40 cases answered within 0.05 s"),
    ],
)
async def test_a_judge_that_fails_has_a_reason(oracle: Oracle, sentence: str) -> None:
    result = await self_test(oracle, limit_s=0.05)
    assert not result.passed
    assert result.sentence == sentence


async def test_a_judge_that_is_not_there_is_not_failed() -> None:
    with pytest.raises(JudgeUnavailable):
        await self_test(Oracle(down=True))


def by_list(body: Json, _: int) -> str:
    content = str(body["messages"][-1]["content"])
    marker = content.split(" ")[1]
    text = content.split("NEXT MESSAGE (from the person) ===\n")[1].split(f"\n=== {marker} END ===")[0]
    return f"{marker} \\boxed{{{VERDICTS[text]}}}"


def auto(base: str, **given: Any) -> Any:
    settings = read_settings({"home": "/nowhere", "model_name": "org/some-model", "judge": "auto", **given})
    return build_scorer_chain(settings, base)


async def test_auto_adopts_the_base_model_after_it_has_passed(scripted: ScriptedJudge) -> None:
    scripted.script = by_list
    chain = auto(scripted.base)
    assert (chain.judge, chain.judge_test) == (None, "not tested yet")
    await chain.test_candidate()
    assert chain.judge is not None
    assert "passed: 40 of 40" in chain.judge_test
    await chain.close()


async def test_auto_goes_on_without_a_base_model_that_fails(scripted: ScriptedJudge) -> None:
    chain = auto(scripted.base)  # it approves of everything
    await chain.test_candidate()
    assert (chain.judge, chain.candidate) == (None, None)
    assert "failed: 13 of 40" in chain.judge_test


async def test_auto_waits_for_a_base_model_that_is_not_up_yet(scripted: ScriptedJudge) -> None:
    scripted.script = lambda body, n: failure(404)
    chain = auto(scripted.base)
    with pytest.raises(JudgeUnavailable):
        await chain.test_candidate()
    assert chain.candidate is not None
    assert chain.judge_test.startswith("not tested yet: ")
    scripted.script = by_list
    await chain.test_candidate()
    assert chain.judge is not None
    await chain.close()


def test_an_unreadable_answer_is_a_judge_error() -> None:
    with pytest.raises(JudgeError):
        parse_score("I would rather not say")
