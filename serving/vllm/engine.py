"""A running vLLM over HTTP: its capabilities are tested at the start, its health and counters are queried later."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from serving.http import HttpBackend
from serving.model_digests import digest_served_model
from serving.protocol import Capabilities, ServedModel
from serving.vllm.adapters import check_adapter
from serving.vllm.capability_probe import (
    detect_logprobs_mode,
    has_ids,
    logprobs_request,
    read_metrics,
    started_at,
    template_shows_tools,
    tools_request,
    top_logprobs,
)
from serving.vllm.gpu_arbiter import SLEEP_PATH, WAKE_PATH
from serving.vllm.model_facts import ModelFacts
from store.errors import AdapterError, UpstreamError
from store.manifest import check_version
from store.values import Json, LogprobMode

#: The first requests of an engine may wait for a compiler.
_PROBE_TIMEOUT = aiohttp.ClientTimeout(total=180.0)
#: Tens of GB of weights are copied over the bus.
_SLEEP_TIMEOUT = aiohttp.ClientTimeout(total=300.0)
_SMALL_TIMEOUT = aiohttp.ClientTimeout(total=10.0)


class VllmBackend(HttpBackend):
    """vLLM at a base URL (`serving.protocol.BackendClient`).

    Args:
        facts: of the model; None: adapters are not checked before loading, and the default temperature is assumed to be 1.
        slots: adapters that it serves at once; None: unknown, because Patina did not start it.
        tag: see `HttpBackend`.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        facts: ModelFacts | None = None,
        slots: int | None = None,
        tag: str = "",
        connect_timeout_s: float = 10.0,
    ) -> None:
        super().__init__(base_url, api_key=api_key, tag=tag, connect_timeout_s=connect_timeout_s)
        self._facts = facts
        self._slots = slots
        self._found: tuple[float, Capabilities] | None = None

    async def models(self) -> tuple[ServedModel, ...]:
        """Return the models that are served now. Raises: UpstreamError, also when the engine is dead: vLLM lists its models even then."""
        status, body = await self._request("GET", "/health", timeout=_SMALL_TIMEOUT)
        if status != 200:
            raise UpstreamError(
                f"the vLLM at {self.address} is unhealthy: /health answered {status}",
                status=status,
                body=body,
            )
        return await super().models()

    async def capabilities(self) -> Capabilities:
        """Test the capabilities with a few requests of one token, once per vLLM process. Raises: UpstreamError when it cannot be queried."""
        models = await self.models()
        born = started_at(await self._metrics())
        if self._found is not None and born is not None and self._found[0] == born:
            return self._found[1]
        found = await self._probe_capabilities(models)
        if born is not None:
            self._found = born, found
        return found

    async def _probe_capabilities(self, models: tuple[ServedModel, ...]) -> Capabilities:
        model = next((m.name for m in models if m.parent is None), "")
        notes: list[str] = []
        one, two = [
            await self._send_probe(logprobs_request(model, temperature)) for temperature in (1.0, 2.0)
        ]
        mode = detect_logprobs_mode(top_logprobs(one), top_logprobs(two))
        if mode is LogprobMode.UNKNOWN:
            notes.append(
                "its log-probabilities are neither raw nor processed: start it with --logprobs-mode raw_logprobs, or turns "
                "at other temperatures than 1 do not train"
            )
        if not has_ids(one):
            notes.append(
                "it reports no token ids (return_token_ids): it is too old, and its turns cannot train"
            )
        adapters = await self._supports_adapters()
        if not adapters:
            notes.append(
                "it loads no adapters while it runs: start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
            )
        constrained = await self._accepts(
            {**logprobs_request(model, 1.0), "response_format": {"type": "json_object"}}
        )
        with_tools = await self._accepts(tools_request(model))
        is_shown = None if with_tools is None else template_shows_tools(one, with_tools)
        if with_tools is None:
            notes.append(
                "it refuses optional tools: start it with --enable-auto-tool-choice and --tool-call-parser"
            )
        elif is_shown is False:
            notes.append(
                "the model's chat template shows no tools: it answers requests as if they had none; --chat-template names another template"
            )
        return Capabilities(
            token_ids=has_ids(one),
            logprobs=bool(top_logprobs(one)),
            adapters=adapters,
            logprob_mode=mode,
            default_temperature=1.0 if self._facts is None else self._facts.temperature,
            engine=f"vLLM {await self._version()}".strip(),
            tools=False if with_tools is None else is_shown,
            constrained=constrained is not None,
            adapter_slots=self._slots,
            max_model_len=next((m.max_model_len for m in models if m.parent is None), None),
            notes=tuple(notes),
        )

    async def load_adapter(self, name: str, path: str) -> str:
        """Load a LoRA folder under an immutable name, after checking that it is complete and of this model."""
        if self._facts is not None:
            try:
                await asyncio.to_thread(_check_files, Path(path), self._facts)
            except AdapterError as exc:
                raise type(exc)(f"{self.address} cannot load {name}: {exc}") from exc
        return await super().load_adapter(name, path)

    async def sleep(self) -> None:
        """Release the GPU (`serving.vllm.gpu_sharing.SleepableBackend`). Raises: UpstreamError."""
        await self._command(SLEEP_PATH)

    async def wake_up(self) -> None:
        """Take the GPU back; no effect when awake. Raises: UpstreamError."""
        await self._command(WAKE_PATH)

    async def _command(self, path: str) -> None:
        status, body = await self._request("POST", path, timeout=_SLEEP_TIMEOUT)
        if status != 200:
            raise UpstreamError(
                f"the vLLM at {self.address} answered {status} to {path}: {body[:300].decode('utf-8', 'replace')}",
                status=status,
                body=body,
            )

    async def activity(self) -> Mapping[str, Any]:
        """Return the displayed values of `/metrics`."""
        return read_metrics(await self._metrics())

    async def _metrics(self) -> str:
        status, body = await self._request("GET", "/metrics", timeout=_SMALL_TIMEOUT)
        return body.decode("utf-8", "replace") if status == 200 else ""

    async def _send_probe(self, request: Json) -> Json:
        """Return the reply to a probe. Raises: UpstreamError with the body of an error response."""
        status, body = await self._request("POST", "/v1/chat/completions", request, timeout=_PROBE_TIMEOUT)
        if status != 200:
            raise UpstreamError(
                f"the vLLM at {self.address} answered a probe with {status}: {body[:300].decode('utf-8', 'replace')}",
                status=status,
                body=body,
            )
        reply: Json = orjson.loads(body)
        return reply

    async def _accepts(self, request: Json) -> Json | None:
        """Return the reply to a probe that vLLM may refuse; None: it does. Raises: UpstreamError when that is unknown."""
        try:
            return await self._send_probe(request)
        except UpstreamError as exc:
            if exc.status is not None and 400 <= exc.status < 500:
                return None
            raise

    async def _supports_adapters(self) -> bool:
        # A request without a name is refused (400); where runtime loading is off, the path does not exist (404, 405).
        status, _ = await self._request(
            "POST", "/v1/load_lora_adapter", {"lora_name": "", "lora_path": ""}, timeout=_SMALL_TIMEOUT
        )
        return status not in (404, 405)

    async def _version(self) -> str:
        try:
            return str((await self._get_json("/version")).get("version") or "")
        except UpstreamError as exc:
            if exc.status is None:
                raise
            return ""


def _check_files(folder: Path, facts: ModelFacts) -> None:
    """Check an adapter's manifest, its shapes and its model. Raises: AdapterError."""
    check_version(folder, model=digest_served_model(facts.name))
    check_adapter(folder, facts)
