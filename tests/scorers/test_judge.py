"""The judge against a real server through the real litellm."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from scorers.base import Rank
from scorers.judge import Judge, local_base
from scorers.provider import Provider
from store.errors import ConfigError, JudgeError, JudgeUnavailable
from store.values import WishReading, WishScope
from tests.scorers.conftest import (
    ScriptedJudge,
    Serving,
    by_question,
    completion,
    failure,
    free_socket,
    is_hint_question,
)
from tests.scorers.turns import said, tool, turn

ROOT = Path(__file__).resolve().parents[2]
ODD = turn(said("Hm, my sister in Lyon would disagree with you there."))
MakeJudge = Callable[..., "asyncio.Future[Judge]"]


@pytest_asyncio.fixture
async def judge_of(scripted: ScriptedJudge) -> AsyncIterator[Callable[..., Any]]:
    started: list[Judge] = []

    async def make(**changes: Any) -> Judge:
        reach: dict[str, Any] = {
            "model": "openai/patina-tiny",
            "api_base": scripted.base,
            "api_key": "none",
            "attempts": 3,
            "backoff_s": 0.01,
            "timeout_s": 20.0,
            "concurrency": 4,
        }
        reach.update((name, changes.pop(name)) for name in list(changes) if name in reach)
        judge = Judge(Provider(**reach), **{"votes": 3, **changes})
        await judge.start()
        started.append(judge)
        return judge

    yield make
    for judge in started:
        await judge.close()


async def test_the_majority_of_the_votes_is_the_verdict(
    scripted: ScriptedJudge, judge_of: Callable[..., Any]
) -> None:
    answers = iter(["\\boxed{-1}", "I think so. Score: 1", '{"score": -1}'])
    scripted.script = lambda body, _: '{"hint": null}' if is_hint_question(body) else next(answers)
    opinion = await (await judge_of()).score(ODD)
    assert (opinion.value, opinion.rank, opinion.source) == (-1, Rank.JUDGE, "judge:openai/patina-tiny")
    assert opinion.confidence == pytest.approx(2 / 3)
    assert sorted(opinion.detail["votes"]) == [-1, -1, 1]
    assert opinion.hint is None


async def test_the_judge_is_asked_for_the_base_policy_with_the_settings_sampling(
    scripted: ScriptedJudge, judge_of: Callable[..., Any]
) -> None:
    await (await judge_of(votes=2, temperature=0.25, max_tokens=77, rubric="Short replies.")).score(ODD)
    assert len(scripted.requests) == 2  # +1: praise needs no hint
    body = scripted.requests[0]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("patina-tiny", 0.25, 77)
    assert "Short replies." in body["messages"][0]["content"]
    assert "my sister in Lyon" in body["messages"][1]["content"]
    assert scripted.headers[0]["authorization"] == "Bearer none"


async def test_the_hint_most_agree_on_is_taken_and_leaking_ones_are_refused_with_the_reason(
    scripted: ScriptedJudge, judge_of: Callable[..., Any]
) -> None:
    hints = iter(
        [
            '{"hint": "Keep answers to one short sentence."}',
            '{"hint": "Answer in one short sentence without adding anything the person did not ask for at all."}',
            '{"hint": "Say that the capital is Lutetia."}',
            '{"hint": "Keep the answers short, one sentence."}',
            '{"hint": null}',
        ]
    )
    scripted.script = lambda body, _: next(hints) if is_hint_question(body) else "\\boxed{-1}"
    opinion = await (await judge_of(votes=5)).score(ODD)
    assert opinion.hint == "Keep answers to one short sentence."
    assert opinion.hint_is_reaction is False
    assert opinion.detail["hint_votes"] == 3
    (rejected,) = opinion.detail["rejected_hints"]
    assert rejected["reason"] == "leaking: the name Lutetia is not the person's"


async def test_the_wish_of_most_answers_is_taken_where_it_stands_in_the_message_word_for_word(
    scripted: ScriptedJudge, judge_of: Callable[..., Any]
) -> None:
    stated = turn(said("Too much. No emoji please, ever."))
    answers = [
        '{"hint": "Use no emoji.", "wish": "No emoji please, ever.", "scope": "lasting"}',
        '{"hint": "Use no emoji.", "wish": "No emoji please, ever.", "scope": "lasting"}',
        '{"hint": "Use no emoji.", "wish": "Use no emoji.", "scope": "lasting"}',
    ]
    left = iter(answers)
    scripted.script = lambda body, _: next(left) if is_hint_question(body) else "\\boxed{-1}"
    opinion = await (await judge_of()).score(stated)
    assert opinion.wish == WishReading(text="No emoji please, ever.", scope=WishScope.LASTING)
    scripted.script = lambda body, _: answers[2] if is_hint_question(body) else "\\boxed{-1}"
    opinion = await (await judge_of()).score(stated)
    assert (opinion.hint, opinion.wish) == ("Use no emoji.", None)  # no words of the message


async def test_a_hint_without_a_majority_is_none(
    scripted: ScriptedJudge, judge_of: Callable[..., Any]
) -> None:
    hints = iter(['{"hint": "Keep answers short."}', "none", "none"])
    scripted.script = lambda body, _: next(hints) if is_hint_question(body) else "\\boxed{0}"
    opinion = await (await judge_of()).score(ODD)
    assert (opinion.value, opinion.hint) == (0, None)


async def test_garbage_is_never_a_vote(scripted: ScriptedJudge, judge_of: Callable[..., Any]) -> None:
    answers = iter(["Well.", "\\boxed{-1}", "\\boxed{-1}"])
    scripted.script = lambda body, _: "none" if is_hint_question(body) else next(answers)
    opinion = await (await judge_of()).score(ODD)
    assert opinion.value == -1
    assert len(opinion.detail["unread"]) == 1

    scripted.script = lambda body, n: ["Well.", "\\boxed{1} or \\boxed{-1}", "\\boxed{1}"][n % 3]
    with pytest.raises(JudgeError) as caught:
        await (await judge_of()).score(ODD)
    assert not isinstance(caught.value, JudgeUnavailable)


async def test_an_empty_answer_is_no_vote(scripted: ScriptedJudge, judge_of: Callable[..., Any]) -> None:
    scripted.script = lambda body, _: completion(body, None)
    with pytest.raises(JudgeError, match="empty answer"):
        await (await judge_of()).score(ODD)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_a_server_error_that_passes_is_retried(
    status: int, scripted: ScriptedJudge, judge_of: Callable[..., Any]
) -> None:
    scripted.script = lambda _, n: failure(status) if n <= 2 else "\\boxed{1}"
    opinion = await (await judge_of(votes=1)).score(ODD)
    assert opinion.value == 1
    assert len(scripted.requests) == 3


@pytest.mark.parametrize(
    ("status", "sentence", "requests"),
    [
        (500, "failed", 3),
        (503, "failed", 3),
        (429, "is over its rate limit", 3),
        (401, "refused the key", 1),
        (403, "refused the key", 1),
        (404, "does not know this model", 1),
    ],
)
async def test_a_judge_that_cannot_be_asked_is_unavailable_with_a_sentence(
    status: int, sentence: str, requests: int, scripted: ScriptedJudge, judge_of: Callable[..., Any]
) -> None:
    scripted.script = lambda _, __: failure(status, "Incorrect API key provided: sk-abcdef")
    with pytest.raises(JudgeUnavailable, match=sentence) as caught:
        await (await judge_of(votes=1)).score(ODD)
    assert "\n" not in str(caught.value)
    if status == 401:
        assert "sk-abcdef" not in str(caught.value)
    assert len(scripted.requests) == requests


async def test_a_question_that_is_refused_is_this_turns_matter_only(
    scripted: ScriptedJudge, judge_of: Callable[..., Any]
) -> None:
    scripted.script = lambda _, __: failure(400, "maximum context length is 10 tokens")
    with pytest.raises(JudgeError, match="refused the question") as caught:
        await (await judge_of()).score(ODD)
    assert not isinstance(caught.value, JudgeUnavailable)


async def test_a_closed_port_is_unavailable(judge_of: Callable[..., Any]) -> None:
    bound = free_socket()
    port = bound.getsockname()[1]
    bound.close()
    judge = await judge_of(api_base=f"http://127.0.0.1:{port}/v1", votes=1)
    with pytest.raises(JudgeUnavailable):
        await judge.score(ODD)


async def test_a_slow_judge_is_unavailable(scripted: ScriptedJudge, judge_of: Callable[..., Any]) -> None:
    scripted.delay_s = 5.0
    with pytest.raises(JudgeUnavailable, match="did not answer within"):
        await (await judge_of(votes=1, timeout_s=0.2, attempts=2)).score(ODD)
    scripted.delay_s = 0.0


async def test_two_of_three_votes_are_enough_and_one_is_not(
    scripted: ScriptedJudge, judge_of: Callable[..., Any]
) -> None:
    scripted.script = lambda _, n: failure(500) if n == 1 else "\\boxed{1}"
    assert (await (await judge_of(attempts=1)).score(ODD)).value == 1
    scripted.requests.clear()
    scripted.script = lambda _, n: failure(500) if n <= 2 else "\\boxed{1}"
    with pytest.raises(JudgeUnavailable):
        await (await judge_of(attempts=1)).score(ODD)


async def test_only_the_questions_a_method_needs_are_asked(
    scripted: ScriptedJudge, judge_of: Callable[..., Any]
) -> None:
    scripted.script = by_question("\\boxed{-1}", '{"hint": "Keep answers short."}')
    opinion = await (await judge_of(votes=1, ask_hint=False)).score(ODD)
    assert (opinion.value, opinion.hint) == (-1, None)
    assert [is_hint_question(r) for r in scripted.requests] == [False]
    scripted.requests.clear()
    opinion = await (await judge_of(votes=1, ask_verdict=False)).score(ODD)
    assert (opinion.value, opinion.hint) == (None, "Keep answers short.")
    assert [is_hint_question(r) for r in scripted.requests] == [True]


async def test_a_turn_without_a_reaction_is_not_judged(
    scripted: ScriptedJudge, judge_of: Callable[..., Any]
) -> None:
    assert await (await judge_of()).score(turn()) is None
    assert scripted.requests == []


async def test_a_tools_result_is_judged_as_a_tools(
    scripted: ScriptedJudge, judge_of: Callable[..., Any]
) -> None:
    await (await judge_of(votes=1)).score(turn(tool("22 degrees")))
    assert "NEXT MESSAGE (from the tool)" in scripted.requests[0]["messages"][1]["content"]


async def test_requests_in_flight_are_bounded(scripted: ScriptedJudge, judge_of: Callable[..., Any]) -> None:
    scripted.delay_s = 0.05
    in_flight: list[int] = []
    judge = await judge_of(votes=6, concurrency=2)
    scored = asyncio.create_task(judge.score(ODD))
    while not scored.done():
        in_flight.append(len(scripted.requests) - judge.answers)
        await asyncio.sleep(0.005)
    assert max(in_flight) <= 2
    assert (await scored).value == 1


async def test_a_judge_that_was_down_answers_after_it_is_up(judge_of: Callable[..., Any]) -> None:
    bound = free_socket()
    scripted = ScriptedJudge(by_question("\\boxed{1}"))
    judge = await judge_of(api_base=f"http://127.0.0.1:{bound.getsockname()[1]}/v1", votes=1)
    with pytest.raises(JudgeUnavailable):
        await judge.score(ODD)
    serving = Serving(scripted, bound)
    await serving.start()
    try:
        assert (await judge.score(ODD)).value == 1
    finally:
        await serving.stop()


async def test_an_unknown_provider_is_reported_at_the_start() -> None:
    with pytest.raises(ConfigError, match="unknown provider"):
        await Judge(Provider("no-such-provider-model")).start()


def test_a_backends_address_gets_the_v1_it_needs() -> None:
    assert local_base("http://127.0.0.1:8000") == "http://127.0.0.1:8000/v1"
    assert local_base("http://127.0.0.1:8000/v1/") == "http://127.0.0.1:8000/v1"


def test_nothing_but_a_configured_judge_imports_litellm() -> None:
    code = (
        "import sys, scorers.rules, scorers.registry, scorers.worker, scorers.__main__\n"
        "assert not {'litellm', 'torch', 'openai'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
