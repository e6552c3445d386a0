"""The loop against a real record and a real (scripted) judge."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from scorers.custom import CustomReward
from scorers.judge import Judge
from scorers.provider import Provider
from scorers.rules import RULES
from scorers.scorer_chain import ScorerChain
from scorers.worker import REST_S, ScorerWorker
from store.change_notice import ChangeNotice
from store.errors import RecordUnavailable
from store.lifecycle import DropReason, Stage
from store.record import Record
from store.values import AnsweredTurn, Feedback, FollowUp, Heartbeat, Json, Relation, Verdict
from tests.making import make_answer, make_turn
from tests.scorers.conftest import (
    ScriptedJudge,
    Serving,
    by_question,
    failure,
    free_socket,
    is_hint_question,
)
from tests.waiting import until_async

QUESTION: Json = {"role": "user", "content": "What is the capital of France?"}
UNCLEAR = "The other report for the board was written in May."


async def answer(record: Record, name: str, text: str, **changes: Any) -> str:
    """Record a turn and what followed it."""
    state = make_answer(name, f"{name}-next", text, **changes)
    await record.write_turns([make_turn(name, [QUESTION], session_id=name, text="Paris! 😊")])
    await record.write_turns(
        [
            make_turn(
                f"{name}-next",
                [QUESTION, {"role": "assistant", "content": "Paris! 😊"}, *state.messages],
                session_id=name,
                parent_turn_id=name,
                turn_index=1,
                relation=state.relation,
                next_state=state,
            )
        ]
    )
    return name


def chain(judge: Judge | None = None, custom: CustomReward | None = None) -> ScorerChain:
    return ScorerChain(rules=RULES, custom=custom, judge=judge)


def judge_at(base: str) -> Judge:
    provider = Provider("openai/patina-tiny", api_base=base, api_key="none", attempts=1, timeout_s=20.0)
    return Judge(provider, votes=1)


@contextlib.asynccontextmanager
async def running(record: Any, the_chain: ScorerChain, **changes: Any) -> AsyncIterator[ScorerWorker]:
    options: dict[str, Any] = {
        "poll_s": 0.01,
        "judge_pause_s": (0.02, 0.05),
        "reward_pause_s": 0.01,
        "recheck_s": 0.05,
    }
    options.update(changes)
    await the_chain.start()
    worker = ScorerWorker(record, the_chain, **options)
    stop = asyncio.Event()
    task = asyncio.create_task(worker.run(stop))
    try:
        yield worker
    finally:
        stop.set()
        await task
        await the_chain.close()


async def rows(record: Record) -> dict[str, Json]:
    return {row["turn_id"]: row for row in await record.trajectories(limit=1000)}


async def stage(record: Record, turn_id: str) -> Stage:
    return (await record.fates([turn_id]))[turn_id].stage


async def test_rules_move_turns_on_with_verdict_hint_and_source(record: Record) -> None:
    await answer(record, "complaint", "Too long, and no emoji please.")
    await answer(record, "thanks", "Thanks! What is the capital of Peru?")
    await answer(record, "retry", "What is the capital of France?", relation=Relation.RETRY)
    await answer(
        record,
        "tool",
        "Error: no such city",
        role="tool",
        messages=({"role": "tool", "tool_call_id": "c", "content": "Error: no such city"},),
    )
    async with running(record, chain()) as worker:
        await until_async(lambda: (worker.counters.scored, worker.counters.abstained) == (3, 1))
    seen = await rows(record)
    assert {
        name: (row["verdict"], row["hint"], row["verdict_source"], row["stage"])
        for name, row in seen.items()
        if "-" not in name
    } == {
        "complaint": (-1, "Too long, and no emoji please.", "rule:complaint", "scored"),
        "thanks": (1, None, "rule:thanks", "scored"),
        "retry": (-1, None, "rule:retry", "scored"),
        "tool": (None, None, "none", "dropped"),
    }
    assert await stage(record, "complaint-next") is Stage.RECORDED  # nothing has followed it


@pytest.mark.skipif(sys.platform != "linux", reason="changes are polled without inotify")
async def test_an_answer_is_scored_at_once_when_another_process_records_it(
    record: Record, record_url: str
) -> None:
    other = await Record.open(record_url)
    async with running(record, chain(), poll_s=600.0) as worker:
        await until_async(lambda: beats(record))  # it has looked, and waits
        began = time.monotonic()
        await answer(other, "a", "Too long, and no emoji please.")
        await until_async(lambda: worker.counters.scored == 1)
        assert time.monotonic() - began < REST_S / 2
    await other.close()


async def test_a_neutral_follow_up_is_scored_zero_and_keeps_its_words(
    record: Record, record_url: str
) -> None:
    await answer(record, "a", "And the capital of Peru?")
    written: list[Verdict] = []
    keeping = Keeping(record, written)
    async with running(keeping, chain()) as worker:
        await until_async(lambda: worker.counters.scored == 1)
    (verdict,) = written
    assert (verdict.value, verdict.hint, verdict.source) == (0, None, "none")
    assert verdict.follow_up == FollowUp(text="And the capital of Peru?", is_question=True)
    assert await stage(record, "a") is Stage.SCORED


async def test_an_undecided_turn_is_dropped_as_abstained_with_its_row(record: Record) -> None:
    await answer(
        record, "a", "22 degrees", role="tool", messages=({"role": "tool", "content": "22 degrees"},)
    )
    async with running(record, chain()) as worker:
        await until_async(lambda: worker.counters.abstained == 1)
    fate = (await record.fates(["a"]))["a"]
    assert (fate.stage, fate.drop_reason) == (Stage.DROPPED, DropReason.ABSTAINED)
    assert (await rows(record))["a"]["verdict_source"] == "none"


async def test_explicit_feedback_outweighs_what_was_guessed(record: Record) -> None:
    await answer(record, "a", "Thanks!")
    async with running(record, chain()) as worker:
        await until_async(lambda: worker.counters.scored == 1)
        await record.add_feedback(
            Feedback(
                feedback_id="f",
                turn_id="a",
                score=-1.0,
                text="too long",
                idempotency_key="k",
                created_at=2_000.0,
            )
        )
        await until_async(lambda: worker.counters.scored == 2)
    row = (await rows(record))["a"]
    assert (row["verdict"], row["hint"], row["verdict_source"]) == (-1, "too long", "feedback")


async def test_the_judge_decides_what_the_rules_cannot(record: Record, scripted: ScriptedJudge) -> None:
    scripted.script = by_question("\\boxed{-1}", '{"hint": "Keep answers to one sentence."}')
    await answer(record, "unclear", UNCLEAR)
    await answer(record, "clear", "Thanks!")
    async with running(record, chain(judge_at(scripted.base))) as worker:
        await until_async(lambda: worker.counters.scored == 2)
    seen = await rows(record)
    assert (seen["unclear"]["verdict"], seen["unclear"]["hint"]) == (-1, "Keep answers to one sentence.")
    assert seen["unclear"]["verdict_source"] == "judge:openai/patina-tiny"
    assert seen["clear"]["verdict_source"] == "rule:thanks"
    assert len(scripted.requests) == 2  # both questions, for one turn


async def test_a_judge_that_sees_a_complaint_but_no_hint_leaves_the_users_words_as_hint(
    record: Record, scripted: ScriptedJudge
) -> None:
    scripted.script = by_question("\\boxed{-1}")
    await answer(record, "a", UNCLEAR)
    async with running(record, chain(judge_at(scripted.base))) as worker:
        await until_async(lambda: worker.counters.scored == 1)
    assert (await rows(record))["a"]["hint"] == UNCLEAR


async def test_a_judge_with_unreadable_answers_abstains_and_the_words_are_kept(
    record: Record, scripted: ScriptedJudge
) -> None:
    scripted.script = lambda _, __: "Well, who knows."
    await answer(record, "a", UNCLEAR)
    written: list[Verdict] = []
    async with running(Keeping(record, written), chain(judge_at(scripted.base))) as worker:
        await until_async(lambda: worker.counters.scored == 1)
        assert worker.state() == "running"
        assert worker.counters.judge_failures == 1
    (verdict,) = written
    assert (verdict.value, verdict.source) == (0, "none")
    assert "no score" in verdict.detail["judge_error"]


async def test_while_the_judge_is_down_turns_wait_rules_go_on_and_nothing_is_mis_scored(
    record: Record,
) -> None:
    bound = free_socket()
    base = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
    scripted = ScriptedJudge(by_question("\\boxed{-1}"))
    names = [await answer(record, f"unclear{i}", UNCLEAR) for i in range(3)]
    async with running(record, chain(judge_at(base))) as worker:
        await until_async(lambda: worker.detail()["waiting_for_judge"] == 3)
        assert worker.state().startswith(f"judge unreachable: openai/patina-tiny at {base}")
        await answer(record, "clear", "shorter please")
        await until_async(lambda: worker.counters.scored == 1)
        await answer(record, "fed", UNCLEAR)
        await record.add_feedback(
            Feedback(
                feedback_id="f",
                turn_id="fed",
                score=1.0,
                text="",
                idempotency_key="k",
                created_at=2_000.0,
            )
        )
        await until_async(lambda: worker.counters.scored == 2)
        assert [await stage(record, name) for name in names] == [Stage.ANSWERED] * 3
        assert worker.counters.judge_failures >= 1
        assert worker.counters.last_error

        serving = Serving(scripted, bound)
        await serving.start()
        try:
            await until_async(lambda: worker.counters.scored == 5)
            assert worker.state() == "running"
            assert worker.detail()["waiting_for_judge"] == 0
        finally:
            await serving.stop()
    assert {(await rows(record))[name]["verdict"] for name in names} == {-1}


async def test_a_judge_that_fails_and_recovers_is_asked_again_by_one_turn_first(
    record: Record, scripted: ScriptedJudge
) -> None:
    is_down = True
    scripted.script = lambda body, _: (
        failure(503) if is_down else ("none" if is_hint_question(body) else "\\boxed{0}")
    )
    for i in range(4):
        await answer(record, f"a{i}", UNCLEAR)
    async with running(record, chain(judge_at(scripted.base))) as worker:
        await until_async(lambda: worker.detail()["waiting_for_judge"] == 4)
        first = len(scripted.requests)
        assert first in (4, 5)  # on a busy machine one probe may have begun; all at once would be eight
        await until_async(lambda: len(scripted.requests) >= first + 2)  # probes go on
        is_down = False
        await until_async(lambda: worker.counters.scored == 4)
    assert worker.counters.unexpected_errors == 0


async def test_a_key_that_is_refused_shows_in_the_state(record: Record, scripted: ScriptedJudge) -> None:
    scripted.script = lambda _, __: failure(401, "bad key")
    await answer(record, "a", UNCLEAR)
    async with running(record, chain(judge_at(scripted.base))) as worker:
        await until_async(lambda: worker.state() != "running")
        assert "refused the key (HTTP 401)" in worker.state()
    assert await stage(record, "a") is Stage.ANSWERED


async def test_the_users_reward_outranks_the_rules_and_is_outranked_by_feedback(record: Record) -> None:
    asked: list[Json] = []

    def reward(view: Json) -> Json:
        asked.append(view)
        return {"value": 0.9}

    await answer(record, "a", "too long")
    await answer(record, "fed", "too long")
    await record.add_feedback(
        Feedback(feedback_id="f", turn_id="fed", score=-1.0, text="", idempotency_key="k", created_at=2_000.0)
    )
    async with running(record, chain(custom=CustomReward(reward, "mine:f"))) as worker:
        await until_async(lambda: worker.counters.scored == 2)
    seen = await rows(record)
    assert (seen["a"]["verdict"], seen["a"]["verdict_source"]) == (1, "custom:mine:f")
    assert (seen["fed"]["verdict"], seen["fed"]["hint"]) == (-1, "too long")
    assert len(asked) == 1


async def test_a_reward_that_fails_is_asked_three_times_and_then_the_others_decide(record: Record) -> None:
    calls = 0

    def broken(_: Json) -> float:
        nonlocal calls
        calls += 1
        raise RuntimeError("no idea")

    await answer(record, "a", "too long")
    written: list[Verdict] = []
    async with running(Keeping(record, written), chain(custom=CustomReward(broken, "mine:f"))) as worker:
        await until_async(lambda: worker.counters.scored == 1)
    assert calls == worker.counters.reward_errors == 3
    assert written[0].source == "rule:complaint"
    assert written[0].detail["custom_error"] == "mine:f raised RuntimeError: no idea"


async def test_the_heartbeat_reports_what_happened(record: Record) -> None:
    await answer(record, "a", "too long")
    async with running(record, chain()) as worker:
        await until_async(lambda: worker.counters.scored == 1)
        await until_async(lambda: beats(record))
    (beat,) = (await record.status()).heartbeats
    assert (beat.process, beat.state) == ("scorer", "stopped")
    assert beat.detail["scored"] == 1
    assert beat.detail["by_source"] == {"rule:complaint": 1}
    assert beat.detail["judge"] == "none"


async def beats(record: Record) -> bool:
    return bool((await record.status()).heartbeats)


async def test_hundreds_of_turns_are_all_scored_once(record: Record) -> None:
    for i in range(120):
        await answer(record, f"t{i}", "shorter please" if i % 2 else "Thanks!")
    written: list[Verdict] = []
    async with running(Keeping(record, written), chain()) as worker:
        await until_async(lambda: worker.counters.scored == 120)
    assert sorted(v.turn_id for v in written) == sorted(f"t{i}" for i in range(120))


async def test_a_record_that_is_busy_loses_nothing(record: Record) -> None:
    await answer(record, "a", "too long")
    busy = Keeping(record, [], fail=3)
    async with running(busy, chain()) as worker:
        await until_async(lambda: worker.counters.scored == 1)
    assert worker.counters.record_errors >= 3
    assert [v.turn_id for v in busy.written] == ["a"]


async def test_one_poisonous_turn_does_not_stop_the_others(
    record: Record, caplog: pytest.LogCaptureFixture
) -> None:
    class Poisoned:
        name = "poisoned"

        async def score(self, turn: AnsweredTurn) -> None:
            if turn.turn_id == "bad":
                raise ZeroDivisionError("a bug of ours")

    await answer(record, "bad", "too long")
    await answer(record, "good", "too long")
    async with running(record, ScorerChain(rules=(Poisoned(), *RULES), custom=None, judge=None)) as worker:
        await until_async(lambda: worker.counters.scored == 1 and worker.counters.unexpected_errors >= 2)
    assert await stage(record, "bad") is Stage.ANSWERED
    assert worker.counters.last_error == "a bug of ours"
    assert "scoring turn bad failed" in caplog.text


async def test_stopping_leaves_turns_in_flight_as_they_were(record: Record, scripted: ScriptedJudge) -> None:
    scripted.delay_s = 3.0
    await answer(record, "a", UNCLEAR)
    async with running(record, chain(judge_at(scripted.base))) as worker:
        await until_async(lambda: scripted.requests)
    scripted.delay_s = 0.0
    assert await stage(record, "a") is Stage.ANSWERED
    assert worker.counters.scored == 0


class Keeping:
    """The real record; keeps the verdicts that pass, and is busy for the first ``fail`` calls of each kind."""

    def __init__(self, record: Record, written: list[Verdict], fail: int = 0) -> None:
        self._record = record
        self.written = written
        self._fail = {"answered": fail, "verdict": fail}

    def _maybe_busy(self, kind: str) -> None:
        if self._fail[kind]:
            self._fail[kind] -= 1
            raise RecordUnavailable("database is locked")

    async def answered(self, limit: int, *, exclude: Iterable[str] = ()) -> list[AnsweredTurn]:
        self._maybe_busy("answered")
        return await self._record.answered(limit, exclude=exclude)

    async def add_verdict(
        self, verdict: Verdict, *, drop: DropReason | None = None, most_per_hour: int = 0
    ) -> None:
        self._maybe_busy("verdict")
        await self._record.add_verdict(verdict, drop=drop)
        self.written.append(verdict)

    async def heartbeat(self, beat: Heartbeat) -> None:
        await self._record.heartbeat(beat)

    def change_notice(self, *, poll_s: float, min_interval_s: float) -> ChangeNotice:
        return self._record.change_notice(poll_s=poll_s, min_interval_s=min_interval_s)


async def test_turns_of_a_key_beyond_its_limit_are_judged_and_dropped(record: Record) -> None:
    for number in range(3):
        await answer(record, f"t{number}", "Too long, and no emoji please.")
    async with running(record, chain(), most_per_hour=2):
        await until_async(lambda: all_scored(record))
    found = [row["drop_reason"] for row in (await rows(record)).values() if row["verdict"] is not None]
    assert sorted(map(str, found)) == ["None", "None", "over_limit"]


async def all_scored(record: Record) -> bool:
    return sum(row["verdict"] is not None for row in (await rows(record)).values()) == 3
