"""Ask a language model what a turn was worth: m votes a question, decided by majority.

JudgeUnavailable    nobody answers, or not now, or not to us. The turn stays as it is; nothing is scored by half.
JudgeError          this very turn cannot be judged (too long, refused, answers nobody can read). The judge abstains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from scorers import prompts
from scorers.base import Opinion, Rank, next_words
from scorers.hints import HintContext, check_hint
from scorers.parse import choose_hint, majority, parse_hint, parse_score
from scorers.provider import Provider
from store.errors import JudgeError, JudgeUnavailable
from store.values import AnsweredTurn, Json

T = TypeVar("T")

#: What the OpenAI client sends where no key is needed; never a real key.
NO_KEY = "none"


class Judge:
    """A `Scorer` that asks a model.

    Args:
        provider: whom to ask; started and closed by `start` and `close`.
        votes: answers per question.
        ask_verdict, ask_hint: which of the two questions are put.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        votes: int = 3,
        temperature: float = 0.6,
        max_tokens: int = 4096,
        rubric: str = "",
        ask_verdict: bool = True,
        ask_hint: bool = True,
    ) -> None:
        self._provider = provider
        self._votes = votes
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._rubric = rubric
        self._ask_verdict = ask_verdict
        self._ask_hint = ask_hint

    @property
    def model(self) -> str:
        return self._provider.model

    @property
    def name(self) -> str:
        return f"judge:{self.model}"

    @property
    def asks_verdict(self) -> bool:
        return self._ask_verdict

    @property
    def asks_hint(self) -> bool:
        return self._ask_hint

    @property
    def place(self) -> str:
        """Model and address, for a person to read."""
        return self._provider.place

    @property
    def api_base(self) -> str:
        return self._provider.api_base

    @property
    def answers(self) -> int:
        """Answers that arrived, readable or not: a sign that the judge is there."""
        return self._provider.answers

    async def start(self) -> None:
        """Get ready to ask.

        Raises:
            ConfigError: the model's provider is unknown.
        """
        await self._provider.start()

    async def close(self) -> None:
        """Close the HTTP clients."""
        await self._provider.close()

    async def score(self, turn: AnsweredTurn) -> Opinion | None:
        """Put the questions; None when nothing was said to the reply.

        Raises:
            JudgeUnavailable: too few votes came for a majority because the judge cannot be asked.
            JudgeError: too few of its answers can be read.
        """
        words = next_words(turn)
        if words is None:
            return None
        role, text = words
        detail: Json = {"prompt": prompts.VERSION}
        value: int | None = None
        confidence = 0.0
        if self._ask_verdict:
            request = prompts.verdict_messages(turn, role, text, self._rubric)
            votes, failures = await self._poll(request, parse_score)
            value, confidence = majority(votes)
            detail["votes"] = votes
            if failures:
                detail["unread"] = failures
        hint: str | None = None
        if self._ask_hint and value != 1:
            request = prompts.hint_messages(turn, role, text, self._rubric)
            hints, failures = await self._poll(request, parse_hint)
            hint = self._elect(hints, turn, detail)
            if failures:
                detail["unread_hints"] = failures
        if not self._ask_verdict:
            if hint is None:
                return None
            confidence = detail["hint_votes"] / self._votes
        return Opinion(
            value=value,
            rank=Rank.JUDGE,
            source=self.name,
            confidence=confidence,
            hint=hint,
            hint_is_reaction=False,
            detail=detail,
        )

    def _elect(self, hints: Sequence[str | None], turn: AnsweredTurn, detail: Json) -> str | None:
        """Filter the hints; a majority of the answers must carry one that may teach."""
        context = HintContext.of(turn)
        sound: list[str] = []
        rejected = []
        for hint in hints:
            if hint is None:
                continue
            reason = check_hint(hint, context, is_reaction=False)
            if reason is None:
                sound.append(hint)
            else:
                rejected.append({"hint": hint[:400], "reason": reason})
        if rejected:
            detail["rejected_hints"] = rejected
        detail["hint_votes"] = len(sound)
        return choose_hint(sound) if 2 * len(sound) > len(hints) else None

    async def _poll(self, messages: list[Json], parse: Callable[[str], T]) -> tuple[list[T], list[str]]:
        """Ask m times at once; return the answers that could be read and why the others could not."""
        results = await asyncio.gather(
            *(self._vote(messages, parse) for _ in range(self._votes)), return_exceptions=True
        )
        answers: list[T] = []
        unread: list[str] = []
        down: JudgeUnavailable | None = None
        for result in results:
            if isinstance(result, JudgeUnavailable):
                down = result
            elif isinstance(result, JudgeError):
                unread.append(str(result))
            elif isinstance(result, BaseException):
                raise result
            else:
                answers.append(result)
        if 2 * len(answers) > self._votes:
            return answers, unread
        if down is not None:
            raise down
        raise JudgeError(unread[0])

    async def _vote(self, messages: list[Json], parse: Callable[[str], T]) -> T:
        return parse(await self._ask(messages))

    async def _ask(self, messages: list[Json]) -> str:
        return await self._provider.ask(messages, temperature=self._temperature, max_tokens=self._max_tokens)


def local_base(url: str) -> str:
    """Return a backend's OpenAI base URL: with /v1 when only host and port were given."""
    bare = url.rstrip("/")
    return bare if urlsplit(bare).path else f"{bare}/v1"
