"""All scorers of a turn: their order, and what happens when one is not available."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.base import Opinion, Rank, Scorer, decided, next_words, person_follow_up
from scorers.judge import Judge
from scorers.reactions import Role, bounded, classify
from scorers.reader import compose_turn
from scorers.rules import filtered
from scorers.self_test import self_test
from store.errors import JudgeError, JudgeUnavailable
from store.lifecycle import DropReason
from store.values import AnsweredTurn, Json, Verdict


@dataclass(slots=True, kw_only=True)
class ScorerChain:
    """The scorers of these settings.

    Attributes:
        candidate: a judge that must pass the self-test before it becomes `judge` (``--judge auto``).
        judge_test: result of that test, for the heartbeat.
    """

    rules: Sequence[Scorer]
    custom: Scorer | None
    judge: Judge | None
    candidate: Judge | None = None
    judge_test: str = "not needed"

    async def start(self) -> None:
        """Raises: ConfigError when the judge cannot be set up."""
        if self.judge is not None:
            await self.judge.start()

    async def close(self) -> None:
        for judge in (self.judge, self.candidate):
            if judge is not None:
                await judge.close()

    async def test_candidate(self) -> None:
        """Test the candidate and adopt it if it passes; without one nothing happens.

        Raises:
            ConfigError: the candidate cannot be set up.
            JudgeUnavailable: it does not answer now; call again later.
        """
        if self.candidate is None:
            return
        candidate = self.candidate
        self.judge_test = f"testing {candidate.place}"
        await candidate.start()
        try:
            result = await self_test(candidate)
        except JudgeUnavailable as exc:
            self.judge_test = f"not tested yet: {exc}"
            raise
        self.judge_test = f"{candidate.place} {result.sentence}"
        self.candidate = None
        if result.passed:
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
