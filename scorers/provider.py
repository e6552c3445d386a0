"""Any language model by litellm's name for it: one question, one answer. The only user of litellm.

litellm costs seconds and 165 MB to import, so it is imported in `Provider.start`, which only runs when a model is configured.
What can go wrong is sorted once, here:

    JudgeUnavailable    no answer now, or none with this key (connection, timeout, 429, 5xx, bad key, unknown model).
    JudgeError          this very question cannot be answered (too long, refused, an empty answer).
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from store.errors import ConfigError, JudgeError, JudgeUnavailable, first_line
from store.values import Json


class _Passing(JudgeUnavailable):
    """Unavailable for a reason that may pass within seconds: worth a second try at once."""


class Provider:
    """Asks ``model`` through litellm.

    Args:
        model: a litellm name, such as ``openai/gpt-4.1-mini``.
        api_base: own base URL, or "" for the provider's.
        api_key: or "" for the provider's own environment variable.
        flag: what named the model, for the sentence about an unknown one.
        concurrency: requests in flight at once.
        timeout_s: for one request.
        attempts: tries per request before the model counts as unavailable.
        backoff_s: longest pause between two tries.
    """

    def __init__(
        self,
        model: str,
        *,
        api_base: str = "",
        api_key: str = "",
        flag: str = "--judge",
        concurrency: int = 4,
        timeout_s: float = 120.0,
        attempts: int = 3,
        backoff_s: float = 4.0,
    ) -> None:
        self.model = model
        self.api_base = api_base
        self._api_key = api_key
        self._flag = flag
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._backoff_s = backoff_s
        self._semaphore = asyncio.Semaphore(concurrency)
        self._litellm: Any = None
        #: Answers that arrived, readable or not: a sign that the model is there.
        self.answers = 0

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
                f"{self._flag} {self.model!r}: unknown provider; use none, self or a litellm name such as openai/gpt-4.1-mini"
            ) from exc
        self._litellm = litellm

    async def close(self) -> None:
        """Close the HTTP clients that litellm keeps."""
        if self._litellm is not None:
            await self._litellm.close_litellm_async_clients()

    async def ask(self, messages: list[Json], *, temperature: float, max_tokens: int) -> str:
        """Return the text of one answer.

        Raises:
            JudgeUnavailable, JudgeError: see the head of this file.
        """
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(_Passing),
            stop=stop_after_attempt(self._attempts),
            wait=wait_random_exponential(multiplier=0.2, max=self._backoff_s),
            reraise=True,
        ):
            with attempt:
                async with self._semaphore:
                    return await self._request(messages, temperature, max_tokens)
        raise AssertionError("unreachable: tenacity returns or raises")

    async def _request(self, messages: list[Json], temperature: float, max_tokens: int) -> str:
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
                    temperature=temperature,
                    max_tokens=max_tokens,
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
    # "litellm.InternalServerError: InternalServerError: OpenAIException - Connection error." -> what happened
    return first_line(exc).rsplit("Exception - ", 1)[-1][:200]
