"""`POST /v1/score`, as in CLaaS: the log-probabilities of a given completion under a version. Nothing is sampled for a client, and nothing is recorded."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from proxy.adapters import AdapterBusy, Alias, ModelRequest, UnknownModel
from proxy.answers import answering_errors, send_busy
from proxy.asgi import read_json, send_error, send_json
from proxy.auth import Principal
from serving.protocol import BackendClient
from store.errors import UpstreamError, UpstreamTimeout
from store.values import Json, adapter_name
from wire.api_translation import Untranslatable, read_error, read_object
from wire.reply_strip import read_reply

_WAIT_S = 60.0
_JSON_HEADER = ((b"content-type", b"application/json"),)
#: Fields of the request that the chat template reads.
_TEMPLATE_FIELDS = ("messages", "tools", "chat_template_kwargs")


class ScorePath:
    """Serves ``/v1/score``.

    Args:
        backend: one that Patina starts: it has ``/tokenize``, and `echo` with `logprobs` on ``/v1/completions``.
    """

    def __init__(self, backend: BackendClient, alias: Alias) -> None:
        self._backend = backend
        self._alias = alias

    async def __call__(self, scope: Scope, receive: Receive, send: Send, *, principal: Principal) -> None:
        async with answering_errors(send, "a completion could not be scored"):
            body = read_object(await read_json(receive, scope["headers"]))
            _check(body)
            try:
                await send_json(send, 200, await self._score(body, principal))
            except UnknownModel as exc:
                raise Untranslatable(str(exc), status=404, code="model_not_found", param="model") from exc
            except AdapterBusy as exc:
                await send_busy(send, exc)
            except UpstreamError as exc:
                status, code = (
                    (504, "upstream_timeout")
                    if isinstance(exc, UpstreamTimeout)
                    else (502, "upstream_unavailable")
                )
                await send_error(send, status, str(exc), kind="server_error", code=code)

    async def _score(self, body: Json, principal: Principal) -> Json:
        """Return CLaaS's answer. Raises: Untranslatable: the backend refuses it; UnknownModel, UpstreamError."""
        wanted = ModelRequest(model=body.get("model"), group=principal.adapter, is_owner=principal.is_owner)
        lease = await self._alias.lease(wanted, wait_s=_WAIT_S)
        try:
            template = {name: body[name] for name in _TEMPLATE_FIELDS if body.get(name) is not None}
            prompt = await self._token_ids(lease.name, {**template, "add_generation_prompt": True})
            completion = await self._token_ids(
                lease.name, {"prompt": body["completion"], "add_special_tokens": False}
            )
            asked = {
                "model": lease.name, "prompt": [*prompt, *completion], "max_tokens": 1, "temperature": 1.0, "echo": True, "logprobs": 0,
            }  # fmt: skip
            reply = await self._ask("/v1/completions", asked)
        finally:
            lease.release()
        tokens, logprobs = _read_completion(reply, len(prompt), len(completion))
        return {
            "model": adapter_name(lease.policy, lease.version),
            "tokens": tokens,
            "token_ids": completion,
            "logprobs": logprobs,
            "prompt_tokens": len(prompt),
            "completion_tokens": len(completion),
            "logprob_sum": sum(logprobs),
        }

    async def _token_ids(self, model: str | None, text: Json) -> list[int]:
        found = (await self._ask("/tokenize", {"model": model, **text})).get("tokens")
        if not (isinstance(found, list) and all(type(one) is int for one in found)):
            raise UpstreamError(f"the backend at {self._backend.address} did not return the tokens of a text")
        return found

    async def _ask(self, path: str, body: Json) -> Json:
        reply = await self._backend.open("POST", path, _JSON_HEADER, orjson.dumps(body))
        try:
            raw = await reply.read()
        finally:
            reply.close()
        if reply.status >= 400:
            message, code, param = read_error(reply.status, raw)
            raise Untranslatable(message, status=reply.status, code=code, param=param)
        found, _ = read_reply(raw)
        if not isinstance(found, dict):
            raise UpstreamError(
                f"the backend at {self._backend.address} did not answer {path} with an object"
            )
        return found


def _check(body: Json) -> None:
    """Raises: Untranslatable: a field is missing or of another type."""
    messages, completion, model = body.get("messages"), body.get("completion"), body.get("model")
    if not (isinstance(messages, list) and messages and all(isinstance(one, dict) for one in messages)):
        raise Untranslatable("messages is a list of one or more messages.", status=422, param="messages")
    if not (isinstance(completion, str) and completion):
        raise Untranslatable("completion is a text, and not empty.", status=422, param="completion")
    if not (model is None or isinstance(model, str)):
        raise Untranslatable("model is a name.", status=422, param="model")


def _read_completion(reply: Json, prompt: int, completion: int) -> tuple[list[str], list[float]]:
    """Return tokens and log-probabilities [C] behind a prompt of ``prompt`` tokens. Raises: UpstreamError: the reply has none."""
    try:
        columns: dict[str, list[Any]] = reply["choices"][0]["logprobs"]
        tokens = [str(one) for one in columns["tokens"][prompt : prompt + completion]]
        logprobs = [float(one) for one in columns["token_logprobs"][prompt : prompt + completion]]
    except (KeyError, IndexError, TypeError) as exc:
        raise UpstreamError("the backend reported no log-probabilities of the completion") from exc
    if not len(tokens) == len(logprobs) == completion:
        raise UpstreamError("the backend reported no log-probabilities of the completion")
    return tokens, logprobs
