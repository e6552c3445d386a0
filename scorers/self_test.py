"""Whether a model can judge: fixed cases with known verdicts (`self_test.jsonl`), asked before its first vote counts.

``--judge auto`` uses the policy's own base model only when it passes. The test is bounded in time: a model that is too slow to be asked
40 short questions is too slow to judge every turn.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from scorers.reader import turn_of
from store.errors import JudgeError, JudgeUnavailable
from store.values import AnsweredTurn

CASES = Path(__file__).parent / "self_test.jsonl"

#: Least share of the cases with the right vote, and of those whose vote can be read at all.
LEAST_RIGHT, LEAST_READABLE = 0.8, 0.9
#: Longest time for all cases, in seconds.
LIMIT_S = 300.0

Case = tuple[AnsweredTurn, int]


class Voter(Protocol):
    """What is tested: `scorers.judge.Judge`."""

    async def single_vote(self, turn: AnsweredTurn) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestResult:
    """What came out.

    Attributes:
        right: cases with the right vote; readable: with any vote; asked: answered in time.
        ran_out_of_s: the time limit when it was reached, else None.
    """

    right: int
    readable: int
    asked: int
    cases: int
    ran_out_of_s: float | None = None

    @property
    def passed(self) -> bool:
        return self.right >= LEAST_RIGHT * self.cases and self.readable >= LEAST_READABLE * self.cases

    @property
    def sentence(self) -> str:
        """The result for a person, with its reason."""
        counts = f"{self.right} of {self.cases} self-test cases right, {self.readable} readable"
        if self.passed:
            return f"passed: {counts}"
        if self.ran_out_of_s is not None:
            return f"failed: only {self.asked} of {self.cases} cases answered within {self.ran_out_of_s:g} s"
        return f"failed: {counts}; it takes {LEAST_RIGHT:.0%} right and {LEAST_READABLE:.0%} readable"


@cache
def self_test_cases() -> tuple[Case, ...]:
    """Return the fixed cases as turns with their verdicts."""
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    return tuple(
        (
            turn_of(row["text"], reply=row["reply"], prompt=row["prompt"], turn_id=f"self-test-{number}"),
            row["verdict"],
        )
        for number, row in enumerate(rows, 1)
    )


async def self_test(
    judge: Voter, cases: Sequence[Case] | None = None, *, limit_s: float = LIMIT_S
) -> SelfTestResult:
    """Ask a judge all cases, at most its own number of requests at once.

    Raises:
        JudgeUnavailable: it cannot be asked now; nothing is known of it.
    """
    asked_cases = self_test_cases() if cases is None else cases
    right = readable = asked = 0

    async def ask(turn: AnsweredTurn, verdict: int) -> None:
        nonlocal right, readable, asked
        try:
            vote = await judge.single_vote(turn)
        except JudgeUnavailable:
            raise
        except JudgeError:
            asked += 1  # an answer that cannot be read: counted, and the reason stands in the result
            return
        asked += 1
        readable += 1
        right += vote == verdict

    late = None
    try:
        async with asyncio.timeout(limit_s):
            # The first case finds out whether anybody answers at all.
            await ask(*asked_cases[0])
            outcomes = await asyncio.gather(*(ask(*case) for case in asked_cases[1:]), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
    except TimeoutError:
        late = limit_s
    return SelfTestResult(
        right=right, readable=readable, asked=asked, cases=len(asked_cases), ran_out_of_s=late
    )
