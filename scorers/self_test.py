"""Whether a model can judge: fixed cases with known verdicts (`self_test.jsonl`), asked before its first vote counts.

``--judge auto`` uses the policy's own base model only when it passes. The model also answers people, so the test takes little of it: one case
at a time, while no person waits for a reply (`scorers.worker`), and no case after the outcome is decided. A useless judge fails after a few.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Protocol

from scorers import prompts
from scorers.reader import turn_of
from serving.model_digests import digest_served_model
from store.errors import JudgeError, JudgeUnavailable
from store.texts import counted
from store.values import AnsweredTurn

CASES = Path(__file__).parent / "self_test.jsonl"

#: A judge with so few right votes is useless, one with so many is good: Wald's sequential probability ratio test between the two, with an
#: error of one in twenty on either side. A case without a readable vote counts as wrong.
_USELESS, _GOOD, _ERROR = 0.6, 0.9, 0.05
_RIGHT, _WRONG = math.log(_GOOD / _USELESS), math.log((1 - _GOOD) / (1 - _USELESS))
_BOUND = math.log((1 - _ERROR) / _ERROR)
#: Least share of right votes where all cases were needed.
LEAST_RIGHT = 0.8
#: Longest time for a case, in seconds: a model that is slower cannot judge every turn.
LIMIT_S = 15.0

Case = tuple[AnsweredTurn, int]


class Voter(Protocol):
    """What is tested: `scorers.judge.Judge`."""

    async def single_vote(self, turn: AnsweredTurn) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestResult:
    """What came out so far.

    Attributes:
        right: cases with the right vote; unread: without a vote that can be read; late: without any in time; asked: all.
        cases: that there are.
    """

    right: int = 0
    unread: int = 0
    late: int = 0
    asked: int = 0
    cases: int = 0

    @property
    def evidence(self) -> float:
        """Log-likelihood ratio of a good judge to a useless one."""
        return self.right * _RIGHT + (self.asked - self.right) * _WRONG

    @property
    def is_decided(self) -> bool:
        return abs(self.evidence) >= _BOUND or self.asked >= self.cases

    @property
    def passed(self) -> bool:
        if abs(self.evidence) >= _BOUND:
            return self.evidence > 0
        return self.asked >= self.cases and self.right >= LEAST_RIGHT * self.asked

    @property
    def sentence(self) -> str:
        """The result for a person."""
        outcome = "passed" if self.passed else "failed"
        text = f"{outcome}: {self.right} of {counted(self.asked, 'self-test case')} right"
        text += f", {self.unread} without a vote that can be read" if self.unread else ""
        return text + (f", {self.late} not answered within {LIMIT_S:g} s" if self.late else "")


@cache
def self_test_cases() -> tuple[Case, ...]:
    """Return the fixed cases as turns with their verdicts, which alternate: a judge that always gives the same one fails early."""
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    seen: Counter[int] = Counter()
    ranked: list[tuple[int, Case]] = []
    for number, row in enumerate(rows, 1):
        turn = turn_of(row["text"], reply=row["reply"], prompt=row["prompt"], turn_id=f"self-test-{number}")
        ranked.append((seen[row["verdict"]], (turn, row["verdict"])))
        seen[row["verdict"]] += 1
    return tuple(case for _, case in sorted(ranked, key=lambda one: one[0]))


class SelfTest:
    """The test of one judge, case by case.

    Attributes:
        result: of the cases so far.
    """

    def __init__(
        self, judge: Voter, cases: Sequence[Case] | None = None, *, limit_s: float = LIMIT_S
    ) -> None:
        self._judge = judge
        self._cases = self_test_cases() if cases is None else tuple(cases)
        self._limit_s = limit_s
        self.result = SelfTestResult(cases=len(self._cases))

    async def ask(self) -> None:
        """Ask the next case. One that is cancelled does not count.

        Raises:
            JudgeUnavailable: it cannot be asked now; nothing is known of it.
        """
        turn, verdict = self._cases[self.result.asked]
        right = unread = late = 0
        try:
            async with asyncio.timeout(self._limit_s):
                right = await self._judge.single_vote(turn) == verdict
        except TimeoutError:
            late = 1
        except JudgeUnavailable:
            raise
        except JudgeError:
            unread = 1
        one = self.result
        self.result = replace(
            one,
            right=one.right + right,
            unread=one.unread + unread,
            late=one.late + late,
            asked=one.asked + 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestCache:
    """Results of earlier tests, in a file of the home; a file that cannot be read is none.

    Attributes:
        model: what is tested. Its digest, the cases and the judge's prompts are the key.
    """

    path: Path
    model: str

    @property
    def _key(self) -> str:
        """Raises: AdapterError: the model's files cannot be read."""
        model = digest_served_model(self.model).base_model or self.model
        cases = hashlib.sha256(CASES.read_bytes()).hexdigest()
        return f"{model} {prompts.VERSION} {cases[:16]}"

    def read(self) -> SelfTestResult | None:
        try:
            return SelfTestResult(**json.loads(self.path.read_text(encoding="utf-8"))[self._key])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, result: SelfTestResult) -> None:
        """Keep the newest result alone. Raises: OSError."""
        self.path.write_text(json.dumps({self._key: asdict(result)}), encoding="utf-8")
