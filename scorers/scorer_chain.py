"""All scorers of a turn: their order, and what happens when one is not available."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from scorers.base import Opinion, Rank, Scorer, decided, next_words, person_follow_up
from scorers.judge import Judge
from scorers.reactions import Role, bounded, classify
from scorers.reader import compose_turn
from scorers.rules import filtered
from scorers.self_test import SelfTest, SelfTestCache, SelfTestResult
from store.errors import JudgeError, JudgeUnavailable
from store.lifecycle import DropReason
from store.texts import counted
from store.values import AnsweredTurn, Json, Verdict


@dataclass(slots=True, kw_only=True)
class ScorerChain:
    """The scorers of these settings.

    Attributes:
        candidate: a judge that must pass the self-test before it becomes `judge` (``--judge auto``).
        test: that test, once it has begun; judge_test: its result, for the heartbeat.
        test_cache: results of earlier tests; None: they are not kept.
    """

    rules: Sequence[Scorer]
    custom: Scorer | None
    judge: Judge | None
    candidate: Judge | None = None
    judge_test: str = "not needed"
    test: SelfTest | None = None
    test_cache: SelfTestCache | None = None

    async def start(self) -> None:
        """Raises: ConfigError when the judge cannot be set up."""
        if self.judge is not None:
            await self.judge.start()

    async def close(self) -> None:
        for judge in (self.judge, self.candidate):
            if judge is not None:
                await judge.close()

    async def recall_test(self) -> None:
        """Take the result of an earlier test of this very model, if there is one.

        Raises:
            ConfigError: the candidate cannot be set up.
        """
        if self.candidate is None or self.test_cache is None:
            return
        found = await asyncio.to_thread(self.test_cache.read)
        if found is not None:
            await self._settle(self.candidate, found)

    async def test_candidate(self) -> None:
        """Ask the candidate one case of the self-test, and adopt it or let it go once the outcome is decided; without one nothing happens.

        Raises:
            ConfigError: the candidate cannot be set up.
            JudgeUnavailable: it does not answer now; call again later.
        """
        candidate = self.candidate
        if candidate is None:
            return
        if self.test is None:
            await candidate.start()
            self.test = SelfTest(candidate)
        try:
            await self.test.ask()
        except JudgeUnavailable as exc:
            self.judge_test = f"not tested yet: {exc}"
            raise
        result = self.test.result
        self.judge_test = (
            f"testing {candidate.place}: {result.right} of {counted(result.asked, 'case')} right"
        )
        if result.is_decided:
            if self.test_cache is not None and not result.late:  # it may be the machine that was busy
                await asyncio.to_thread(self.test_cache.write, result)
            await self._settle(candidate, result)

    async def _settle(self, candidate: Judge, result: SelfTestResult) -> None:
        self.candidate = None
        self.judge_test = f"{candidate.place} {result.sentence}"
        if result.passed:
            await candidate.start()
            self.judge = candidate
        else:
            await candidate.close()

    async def decide(
        self,
        turn: AnsweredTurn,
        *,
        now: float,
        judge_is_down: JudgeUnavailable | None = None,
        custom_gave_up: str | None = None,
    ) -> tuple[Verdict, DropReason | None]:
        """Return the verdict, and why the turn is dropped if it is.

        Args:
            judge_is_down: do not ask the judge; raise this for a turn that needs it.
            custom_gave_up: do not ask the user's function any more; why.

        Raises:
            JudgeUnavailable: the turn waits.
            RewardError: the user's function failed; try again.
        """
        opinions = [o for rule in self.rules if (o := await rule.score(turn)) is not None]
        notes: Json = {}
        head = decided(opinions)
        if self.custom is not None and (head is None or head.rank > Rank.CUSTOM):
            if custom_gave_up is not None:
                notes["custom_error"] = custom_gave_up
            elif (opinion := await self.custom.score(turn)) is not None:
                opinions.append(opinion)
        if self.judge is not None and self._needs_judge(turn, opinions):
            try:
                if judge_is_down is not None:
                    raise JudgeUnavailable(str(judge_is_down))
                if (opinion := await self.judge.score(turn)) is not None:
                    opinions.append(opinion)
            except JudgeUnavailable as exc:
                if decided(opinions) is None:
                    raise
                notes["judge_error"] = str(
                    exc
                )  # only a hint is missing: what is known is not held back for it
            except JudgeError as exc:
                notes["judge_error"] = str(exc)
        follow_up = person_follow_up(turn)
        opinions = [self._with_own_words(o, turn, follow_up) for o in opinions]
        return compose_turn(turn, opinions, now=now, notes=notes)

    def _needs_judge(self, turn: AnsweredTurn, opinions: Sequence[Opinion]) -> bool:
        """Undecided turns need it; decided ones only where a complaint came without a usable hint."""
        if next_words(turn) is None:
            return False
        head = decided(opinions)
        if head is None:
            return True
        assert self.judge is not None
        return self.judge.asks_hint and head.value == -1 and not any(o.hint for o in opinions)

    def _with_own_words(self, opinion: Opinion, turn: AnsweredTurn, follow_up: str) -> Opinion:
        """A judge that sees a complaint but offers no hint: the person's own words are one."""
        if opinion.rank is not Rank.JUDGE or opinion.value != -1 or opinion.hint or not follow_up:
            return opinion
        parts = [s.text for s in classify(follow_up) if s.role in (Role.COMPLAINT, Role.STATEMENT)]
        hint, detail = filtered(bounded(parts) or None, turn)
        return Opinion(
            value=opinion.value,
            rank=opinion.rank,
            source=opinion.source,
            confidence=opinion.confidence,
            hint=hint,
            hint_is_reaction=True,
            detail={**opinion.detail, **({"rejected_words": detail["rejected_hints"]} if detail else {})},
        )
