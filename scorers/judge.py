"""Ask a language model what a turn was worth: m votes a question, decided by majority.

JudgeUnavailable    no answer now, or none with this key. The turn stays as it is; nothing is scored in part.
JudgeError          this turn cannot be judged (too long, refused, unreadable answers). The judge abstains.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from scorers import prompts
from scorers.base import Opinion, Rank, next_words
from scorers.hints import HintContext, check_hint
from scorers.parse import choose_hint, majority, parse_hindsight, parse_score
from scorers.provider import Provider
from store.errors import JudgeError, JudgeUnavailable
from store.values import AnsweredTurn, Json, WishReading

T = TypeVar("T")

#: What the OpenAI client sends where no key is needed; never a real key.
NO_KEY = "none"
#: Characters of an answer that the verdict keeps.
_MOST_TEXT = 2_000


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
        """Put the questions; None when there is no reaction to the reply.

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
            votes, failures, answers = await self._poll(
                prompts.verdict_messages, parse_score, turn, role, text
            )
            detail["answers"] = answers
            value, confidence = majority(votes)
            detail["votes"] = votes
            if failures:
                detail["unread"] = failures
        hint: str | None = None
        wish: WishReading | None = None
        if self._ask_hint and value != 1:
            found, failures, answers = await self._poll(
                prompts.hint_messages, parse_hindsight, turn, role, text
            )
            detail["hint_answers"] = answers
            hint = self._elect([one for one, _ in found], turn, detail)
            wish = _elect_wish([one for _, one in found], text if role == "user" else "")
            if failures:
                detail["unread_hints"] = failures
        if not self._ask_verdict:
            if hint is None and wish is None:
                return None
            confidence = detail["hint_votes"] / self._votes
        return Opinion(
            value=value,
            rank=Rank.JUDGE,
            source=self.name,
            confidence=confidence,
            hint=hint,
            hint_is_reaction=False,
            wish=wish,
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

    async def _poll(
        self,
        build: Callable[..., list[Json]],
        parse: Callable[..., T],
        turn: AnsweredTurn,
        role: str,
        text: str,
    ) -> tuple[list[T], list[str], list[str]]:
        """Ask m times at once; return the answers that could be read, why the others could not, and the text of the former."""
        vote = self._voter(build, parse, turn, role, text)
        results = await asyncio.gather(*(vote() for _ in range(self._votes)), return_exceptions=True)
        answers: list[T] = []
        texts: list[str] = []
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
                answers.append(result[0])
                texts.append(result[1][:_MOST_TEXT])
        if 2 * len(answers) > self._votes:
            return answers, unread, texts
        if down is not None:
            raise down
        raise JudgeError(unread[0])

    def _voter(
        self,
        build: Callable[..., list[Json]],
        parse: Callable[..., T],
        turn: AnsweredTurn,
        role: str,
        text: str,
    ) -> Callable[[], Awaitable[tuple[T, str]]]:
        """Return what asks once; the votes of a question share its marker, so that a backend can share their prompt."""
        marker = prompts.new_marker()
        request = build(turn, role, text, self._rubric, marker=marker)
        material = str(request[-1]["content"]).rpartition(f"=== {marker} END ===")[0]

        async def vote() -> tuple[T, str]:
            answer = await self._ask(request)
            return parse(answer, marker=marker, material=material), answer

        return vote

    async def single_vote(self, turn: AnsweredTurn) -> int:
        """Put the first question once, for a self-test.

        Raises:
            JudgeUnavailable: the judge cannot be asked.
            JudgeError: its answer cannot be read.
        """
        words = next_words(turn)
        if words is None:
            raise ValueError("a self-test needs a next message")
        value, _ = await self._voter(prompts.verdict_messages, parse_score, turn, *words)()
        return value

    async def _ask(self, messages: list[Json]) -> str:
        return await self._provider.ask(messages, temperature=self._temperature, max_tokens=self._max_tokens)


def _elect_wish(wishes: Sequence[WishReading | None], message: str) -> WishReading | None:
    """Return the wish of most answers, in words of the message: what does not stand there word for word is none."""
    scopes = Counter(wish.scope for wish in wishes if wish is not None and wish.text in message)
    scope, count = scopes.most_common(1)[0] if scopes else (None, 0)
    if scope is None or 2 * count <= len(wishes):
        return None
    texts = [
        wish.text for wish in wishes if wish is not None and wish.scope is scope and wish.text in message
    ]
    return WishReading(text=choose_hint(texts), scope=scope)


def local_base(url: str) -> str:
    """Return a backend's OpenAI base URL: with /v1 when only host and port were given."""
    bare = url.rstrip("/")
    return bare if urlsplit(bare).path else f"{bare}/v1"
