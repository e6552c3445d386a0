"""A running Patina as a client sees it: chat, probes that leave no trace in the learning, and its public status."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from openai import APIConnectionError, APIStatusError, AsyncOpenAI
from openai.types.chat import ChatCompletion
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from store.errors import ConfigError, RecordUnavailable, UpstreamError, UpstreamUnreachable
from store.settings import Settings

#: A turn with this header is served, and never scored, trained or linked.
NO_TRAINING = {"X-Patina-Train": "off"}
#: Longest reply that is asked for, in tokens.
MAX_REPLY_TOKENS = 160
_POLL_S = 0.2
#: Retries for a minute while the record does not answer (a slow disk, a lock); the proxy serves meanwhile.
while_record_is_away = retry(
    retry=retry_if_exception_type(RecordUnavailable),
    wait=wait_fixed(_POLL_S),
    stop=stop_after_delay(60.0),
    reraise=True,
)


def read_status(found: object, base_url: str) -> Mapping[str, Any]:
    """Return a response of `/v1/patina/status` when it is complete.

    Raises:
        RecordUnavailable: the proxy runs, its record does not answer.
        UpstreamError: it is no Patina.
    """
    if isinstance(found, Mapping) and found.get("record_error"):
        raise RecordUnavailable(f"the record of {base_url} cannot be read: {found['record_error']}")
    if not isinstance(found, Mapping) or "stages" not in found:
        raise UpstreamError(f"{base_url} is no Patina: it has no /patina/status")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedReply:
    """One completion. `turn_id` is the id of the recorded turn, None when the response has none."""

    text: str
    turn_id: str | None
    seconds: float


class PatinaClient:
    """A client of a running Patina. Use as an async context manager.

    Args:
        base_url: ends in ``/v1``.
        key: what clients send as Bearer; empty when none is asked for.
        retries: attempts after a failed one, enough for the restart of a process that died.
    """

    def __init__(self, base_url: str, key: str, *, timeout_s: float = 60.0, retries: int = 8) -> None:
        self.base_url = base_url.rstrip("/")
        #: Ids of all completed turns, oldest first.
        self.seen: list[str] = []
        self._client = AsyncOpenAI(
            base_url=self.base_url, api_key=key or "none", timeout=timeout_s, max_retries=retries
        )
        self._model = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.close()

    async def model(self) -> str:
        """Return the policy's name: what `/v1/models` lists first.

        Raises:
            UpstreamError: it is not reachable, or it refuses.
        """
        if not self._model:
            try:
                listed = await self._client.models.list()
            except (APIConnectionError, APIStatusError) as error:
                raise self._mapped(error) from error
            if not listed.data:
                raise UpstreamError(f"{self.base_url} serves no model")
            self._model = listed.data[0].id
        return self._model

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, trains: bool = True, seed: int | None = None
    ) -> ReceivedReply:
        """Ask for one reply at temperature 1, which is what clients that set nothing get.

        Raises:
            UpstreamError: the proxy or what is behind it failed, also after the SDK's own retries.
        """
        reply, _ = await self.ask(messages, trains=trains, seed=seed)
        return reply

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        trains: bool = True,
        seed: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        logprobs: bool = False,
    ) -> tuple[ReceivedReply, ChatCompletion]:
        """`chat`, with tools and log-probabilities; also gives the whole completion.

        Raises:
            UpstreamError: see `chat`.
        """
        started = time.monotonic()
        request: dict[str, Any] = {
            "model": await self.model(),
            "messages": list(messages),
            "temperature": 1.0,
            "max_tokens": MAX_REPLY_TOKENS,
        }
        if seed is not None:
            request["seed"] = seed
        if tools:
            request["tools"] = list(tools)
        if logprobs:
            request["logprobs"] = True
        try:
            raw = await self._client.chat.completions.with_raw_response.create(
                **request, extra_headers=None if trains else NO_TRAINING
            )
        except (APIConnectionError, APIStatusError) as error:
            raise self._mapped(error) from error
        completion: ChatCompletion = raw.parse()
        turn_id = raw.headers.get("x-patina-turn")
        if turn_id is not None:
            self.seen.append(turn_id)
        reply = ReceivedReply(
            text=completion.choices[0].message.content or "",
            turn_id=turn_id,
            seconds=time.monotonic() - started,
        )
        return reply, completion

    async def feedback(self, body: Mapping[str, Any]) -> None:
        """Give explicit feedback (`POST /v1/feedback`).

        Raises:
            UpstreamError: the turn is not known, or the body is wrong.
        """
        try:
            await self._client.post("/feedback", body=dict(body), cast_to=object)
        except (APIConnectionError, APIStatusError) as error:
            raise self._mapped(error) from error

    @while_record_is_away
    async def status(self) -> Mapping[str, Any]:
        """Return `/v1/patina/status`; waits for a record that does not answer for a moment.

        Raises:
            RecordUnavailable: it did not answer for a minute.
            UpstreamError: it is not reachable, or it is no Patina.
        """
        try:
            found = await self._client.get("/patina/status", cast_to=object)
        except (APIConnectionError, APIStatusError) as error:
            raise self._mapped(error) from error
        return read_status(found, self.base_url)

    async def wait_until_idle(self, *, batch_size: int, timeout_s: float) -> bool:
        """Wait until all feedback so far is processed; returns False after the timeout.

        A user pauses and a script does not: without this, the number of interactions until something is learned would depend on the speed
        of the script.
        """
        give_up = time.monotonic() + timeout_s
        detector = IdleDetector(batch_size=batch_size)
        while not detector.update(await self.status()):
            if time.monotonic() > give_up:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def _mapped(self, error: APIConnectionError | APIStatusError) -> UpstreamError:
        if isinstance(error, APIStatusError):
            return UpstreamError(
                f"{self.base_url} answered {error.status_code}: {error.message}",
                status=error.status_code,
                body=error.response.content,
            )
        return UpstreamUnreachable(f"no server answers at {self.base_url}: {error.__cause__ or error}")


class IdleDetector:
    """Decides from successive statuses whether all feedback is processed. Sans-IO.

    Idle: no turn waits for a verdict, none is in a step, and fewer than a batch are scored. More than a batch may stay scored (a method
    that learns from hints does not train on thanks): then two heartbeats of the waiting trainer must follow while the stages stay equal.
    """

    def __init__(self, *, batch_size: int) -> None:
        self._batch_size = batch_size
        self._stages: Mapping[str, Any] = {}
        self._seen = 0
        self._beats: set[float] = set()

    def update(self, status: Mapping[str, Any]) -> bool:
        """Take the next status; returns whether the system is idle now."""
        stages = dict(status["stages"])
        if stages.get("answered", 0) or stages.get("claimed", 0) or stages != self._stages:
            self._stages, self._seen, self._beats = stages, 0, set()
        self._seen += 1
        for beat in status.get("heartbeats", ()):
            if beat["process"] == "trainer" and not beat["state"].startswith(
                ("training", "loading", "failed")
            ):
                self._beats.add(beat["at"])
        if stages.get("answered", 0) or stages.get("claimed", 0):
            return False
        # Twice, since between a verdict and its claim nothing is in progress for a moment. The first beat may be an old one.
        return self._seen >= 2 and (stages.get("scored", 0) < self._batch_size or len(self._beats) >= 3)


def live_version(status: Mapping[str, Any]) -> int:
    """Return the live version; 0 is the base model. With several policies, the newest of any."""
    return max((int(version) for version in (status.get("live") or {}).values()), default=0)


def child_pids(status: Mapping[str, Any]) -> dict[str, int]:
    """Return the process id of each running child of the supervisor (backend, proxy, scorer, trainer)."""
    for beat in status.get("heartbeats", ()):
        if beat["process"] == "supervisor":
            return {name: child["pid"] for name, child in beat["detail"].items() if child["pid"] is not None}
    return {}


def with_v1(url: str) -> str:
    """Return a base URL that ends in ``/v1``."""
    url = url.rstrip("/")
    return url if url.endswith("/v1") else url + "/v1"


def stored_key(settings: Settings) -> str:
    """Return the key of a Patina that is running: the one given, or the one in its home.

    Raises:
        ConfigError: none was given, and its home has none.
    """
    if settings.api_key is not None:
        return settings.api_key
    try:
        return settings.key_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(
            f"no key for --base-url: give --api-key, or --home of that Patina ({settings.key_file}: {error.strerror})"
        ) from error
