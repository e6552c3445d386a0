"""A judge is tested before its votes count."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scorers.parse import parse_score
from scorers.registry import build_scorer_chain
from scorers.scorer_chain import ScorerChain
from scorers.self_test import SelfTest, SelfTestCache, SelfTestResult, self_test_cases
from scorers.worker import ScorerWorker
from store.errors import JudgeError, JudgeUnavailable
from store.record import Record
from store.settings import read_settings
from store.values import AnsweredTurn, Heartbeat, Json
from tests.making import make_turn
from tests.scorers.conftest import ScriptedJudge, failure
from tests.waiting import until_async

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
        if self.asked <= self._late:
            await asyncio.Event().wait()
        verdict = VERDICTS[turn.next_states[0].text]
        return verdict if self.asked > self._wrong else (verdict + 2) % 3 - 1


class Constant:
    """Gives the same vote whatever it reads."""

    async def single_vote(self, turn: AnsweredTurn) -> int:
        return 1


async def outcome(judge: Any) -> SelfTestResult:
    test = SelfTest(judge, limit_s=0.05)
    while not test.result.is_decided:
        await test.ask()
    return test.result


def test_the_cases_are_forty_balanced_and_distinct() -> None:
    assert len(VERDICTS) == 40
    assert min(Counter(VERDICTS.values()).values()) >= 13


def test_no_verdict_comes_twice_before_each_came_once() -> None:
    verdicts = [verdict for _, verdict in self_test_cases()]
    assert all(set(verdicts[i : i + 3]) == {-1, 0, 1} for i in range(0, 39, 3))


async def test_a_judge_that_is_right_passes_after_eight_cases() -> None:
    result = await outcome(Oracle())
    assert result.passed
    assert result.sentence == "passed: 8 of 8 self-test cases right"


async def test_a_mistake_costs_a_good_judge_some_more_cases() -> None:
    result = await outcome(Oracle(wrong=1))
    assert result.passed
    assert result.asked == 12


@pytest.mark.parametrize(
    ("judge", "sentence"),
    [
        (Constant(), "failed: 1 of 4 self-test cases right"),
        (Oracle(wrong=9), "failed: 0 of 3 self-test cases right"),
        (
            Oracle(unreadable=5),
            "failed: 0 of 3 self-test cases right, 3 without a vote that can be read",
        ),
        (Oracle(late=10), "failed: 0 of 3 self-test cases right, 3 not answered within 15 s"),
    ],
)
async def test_a_useless_judge_fails_after_a_few_cases_with_its_reason(judge: Any, sentence: str) -> None:
    result = await outcome(judge)
    assert not result.passed
    assert result.sentence == sentence


@pytest.mark.parametrize(("wrong", "passed"), [(8, True), (9, False)])
def test_where_the_evidence_stays_small_all_cases_count(wrong: int, passed: bool) -> None:
    result = SelfTestResult(right=40 - wrong, asked=40, cases=40)
    assert (result.is_decided, result.passed) == (True, passed)


async def test_a_judge_that_is_not_there_is_not_failed() -> None:
    test = SelfTest(Oracle(down=True))
    with pytest.raises(JudgeUnavailable):
        await test.ask()
    assert test.result.asked == 0


def test_a_result_is_kept_for_the_same_model_only(tmp_path: Path) -> None:
    file = tmp_path / "test.json"
    cache = SelfTestCache(path=file, model="org/some-model")
    assert cache.read() is None
    result = SelfTestResult(right=8, asked=8, cases=40)
    cache.write(result)
    assert cache.read() == result
    assert SelfTestCache(path=file, model="org/another-model").read() is None
    file.write_text("torn")
    assert cache.read() is None


def by_list(body: Json, _: int) -> str:
    content = str(body["messages"][-1]["content"])
    marker = content.split(" ")[1]
    text = content.split("NEXT MESSAGE (from the person) ===\n")[1].split(f"\n=== {marker} END ===")[0]
    return f"{marker} \\boxed{{{VERDICTS[text]}}}"


def auto(base: str, **given: Any) -> Any:
    settings = read_settings({"model_name": "org/some-model", "judge": "auto", **given})
    return build_scorer_chain(settings, base)


async def run_through(chain: ScorerChain) -> ScorerChain:
    await chain.recall_test()
    while chain.candidate is not None:
        await chain.test_candidate()
    return chain


async def test_auto_adopts_the_base_model_after_it_has_passed(
    scripted: ScriptedJudge, tmp_path: Path
) -> None:
    scripted.script = by_list
    chain = auto(scripted.base, home=tmp_path)
    assert (chain.judge, chain.judge_test) == (None, "not tested yet")
    await run_through(chain)
    assert chain.judge is not None
    assert "passed: 8 of 8" in chain.judge_test
    await chain.close()


async def test_auto_goes_on_without_a_base_model_that_fails_and_does_not_ask_it_again(
    scripted: ScriptedJudge, tmp_path: Path
) -> None:
    chain = await run_through(auto(scripted.base, home=tmp_path))  # it approves of everything
    assert (chain.judge, chain.candidate) == (None, None)
    assert "failed: 1 of 4" in chain.judge_test
    asked = len(scripted.requests)
    again = await run_through(auto(scripted.base, home=tmp_path))
    assert (again.judge, again.judge_test) == (None, chain.judge_test)
    assert len(scripted.requests) == asked


async def test_the_test_waits_for_the_first_reply_and_while_a_request_is_in_flight(
    scripted: ScriptedJudge, record: Record, tmp_path: Path
) -> None:
    async def beat(in_flight: int) -> None:
        detail = {"in_flight": in_flight}
        await record.heartbeat(
            Heartbeat(process="proxy", pid=1, state="running", detail=detail, at=time.time())
        )

    scripted.script = by_list
    chain = auto(scripted.base, home=tmp_path)
    worker = ScorerWorker(record, chain, poll_s=0.01, quiet_s=0.05)
    stop = asyncio.Event()
    task = asyncio.create_task(worker.run(stop))
    await asyncio.sleep(0.3)
    assert scripted.requests == []  # no request has come yet
    await beat(1)
    await record.write_turns([make_turn("first", created_at=time.time())])
    await asyncio.sleep(0.3)
    assert scripted.requests == []
    await beat(0)
    await until_async(lambda: chain.judge is not None)
    stop.set()
    await task
    await chain.close()


async def test_auto_waits_for_a_base_model_that_is_not_up_yet(
    scripted: ScriptedJudge, tmp_path: Path
) -> None:
    scripted.script = lambda body, n: failure(404)
    chain = auto(scripted.base, home=tmp_path)
    with pytest.raises(JudgeUnavailable):
        await chain.test_candidate()
    assert chain.candidate is not None
    assert chain.judge_test.startswith("not tested yet: ")
    scripted.script = by_list
    await run_through(chain)
    assert chain.judge is not None
    await chain.close()


def test_an_unreadable_answer_is_a_judge_error() -> None:
    with pytest.raises(JudgeError):
        parse_score("I would rather not say")
