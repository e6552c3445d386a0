"""Ask a language model what a turn was worth: m votes a question, decided by majority. The only user of litellm.

litellm costs seconds and 165 MB to import, so it is imported in `Judge.start`, which only runs when a judge is configured.
What can go wrong is sorted once, here:

    JudgeUnavailable    nobody answers, or not now, or not to us (connection, timeout, 429, 5xx, bad key, unknown model).
                        The turn stays as it is; nothing is scored by half.
    JudgeError          this very turn cannot be judged (too long, refused, answers nobody can read). The judge abstains.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from scorers import prompts
from scorers.base import Opinion, Rank, next_words
from scorers.hints import HintContext, check_hint
from scorers.parse import choose_hint, majority, parse_hint, parse_score
from store.errors import ConfigError, JudgeError, JudgeUnavailable
from store.values import AnsweredTurn, Json

log = logging.getLogger(__name__)

T = TypeVar("T")

#: What the OpenAI client sends where no key is needed; never a real key.
NO_KEY = "none"


class _Passing(JudgeUnavailable):
    """Unavailable for a reason that may pass within seconds: worth a second try at once."""


class Judge:
    """A `Scorer` that asks ``model`` through litellm.

    Args:
        model: a litellm name, such as ``openai/gpt-4.1-mini``.
        api_base: own base URL, or "" for the provider's.
        api_key: or "" for the provider's own environment variable.
        votes: answers per question.
        ask_verdict, ask_hint: which of the two questions are put.
        concurrency: requests in flight at once, over all turns.
        timeout_s: for one request.
        attempts: tries per request before the judge counts as unavailable.
        backoff_s: longest pause between two tries.
    """

    def __init__(
        self,
        model: str,
        *,
        api_base: str = "",
        api_key: str = "",
        votes: int = 3,
        temperature: float = 0.6,
        max_tokens: int = 4096,
        rubric: str = "",
        ask_verdict: bool = True,
        ask_hint: bool = True,
        concurrency: int = 4,
        timeout_s: float = 120.0,
        attempts: int = 3,
        backoff_s: float = 4.0,
    ) -> None:
        self.model = model
        self.api_base = api_base
        self._api_key = api_key
        self._votes = votes
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._rubric = rubric
        self._ask_verdict = ask_verdict
        self._ask_hint = ask_hint
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._backoff_s = backoff_s
        self._semaphore = asyncio.Semaphore(concurrency)
        self._litellm: Any = None
        #: Answers that arrived, readable or not: a sign that the judge is there.
        self.answers = 0

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
        return f"{self.model} at {self.api_base}" if self.api_base else self.model

    async def start(self) -> None:
        """Import litellm, switch off what would leave this machine, and check that it knows the provider.

        Raises:
            ConfigError: the model's provider is unknown.
        """
        litellm: Any = await asyncio.to_thread(importlib.import_module, "litellm")
        litellm.suppress_debug_info = True
        litellm.drop_params = True  # a model that has no `temperature` is asked without it
        litellm.success_callback = []
        litellm.failure_callback = []
        litellm.callbacks = []
        litellm.disable_aiohttp_transport = True  # one HTTP client less, and its sessions close with the loop
        logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
        try:
            litellm.get_llm_provider(self.model, api_base=self.api_base or None)
        except litellm.BadRequestError as exc:
            raise ConfigError(
                f"--judge {self.model!r}: unknown provider; use none, self or a litellm name such as openai/gpt-4.1-mini"
            ) from exc
        self._litellm = litellm

    async def close(self) -> None:
        """Close the HTTP clients that litellm keeps."""
        if self._litellm is not None:
            await self._litellm.close_litellm_async_clients()

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
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(_Passing),
            stop=stop_after_attempt(self._attempts),
            wait=wait_random_exponential(multiplier=0.2, max=self._backoff_s),
            reraise=True,
        ):
            with attempt:
                async with self._semaphore:
                    return await self._request(messages)
        raise AssertionError("unreachable: tenacity returns or raises")

    async def _request(self, messages: list[Json]) -> str:
        """One request; every foreign exception is mapped here and nowhere else."""
        litellm = self._litellm
        if litellm is None:
            raise JudgeUnavailable("the judge was not started")
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await litellm.acompletion(
                    model=self.model,
                    messages=messages,
                    api_base=self.api_base or None,
                    api_key=self._api_key or None,
                    temperature=self._temperature,
                    max_tokens=self._max_tokens,
                    timeout=self._timeout_s,
                    max_retries=0,  # tenacity does it, with jitter and in sight
                    num_retries=0,
                )
        except (TimeoutError, litellm.Timeout) as exc:
            raise _Passing(f"{self.place} did not answer within {self._timeout_s:g} s") from exc
        except litellm.BadRequestError as exc:
            raise JudgeError(f"{self.place} refused the question: {_first_line(exc)}") from exc
        except Exception as exc:
            if not _is_openai_error(exc):
                raise
            raise self._unavailable(exc) from exc
        self.answers += 1
        text = response.choices[0].message.content if response.choices else None
        if not text:
            raise JudgeError(f"{self.place} gave an empty answer")
        return str(text)

    def _unavailable(self, exc: Exception) -> JudgeUnavailable:
        """Sort by status rather than by class: litellm has no class of its own for 403, for instance."""
        status = getattr(exc, "status_code", None)
        if status in (401, 403):
            # Not the server's words: they may repeat the key.
            return JudgeUnavailable(f"{self.place} refused the key (HTTP {status})")
        if status == 404:
            return JudgeUnavailable(f"{self.place} does not know this model (HTTP 404)")
        if status == 429:
            return _Passing(f"{self.place} is over its rate limit (HTTP 429)")
        return _Passing(f"{self.place} failed: {_first_line(exc)}")


def _is_openai_error(exc: Exception) -> bool:
    # litellm's errors derive from the openai package's, which is not ours to import here.
    return any(base.__module__.partition(".")[0] == "openai" for base in type(exc).__mro__)


def _first_line(exc: Exception) -> str:
    text = str(exc).strip().splitlines()
    line = text[0] if text else type(exc).__name__
    # "litellm.InternalServerError: InternalServerError: OpenAIException - Connection error." -> what happened
    return line.rsplit("Exception - ", 1)[-1][:200]


def local_base(url: str) -> str:
    """Return a backend's OpenAI base URL: with /v1 when only host and port were given."""
    bare = url.rstrip("/")
    return bare if urlsplit(bare).path else f"{bare}/v1"
