"""`python -m tests.tinker.server --model DIR --port N --state DIR`: a Tinker server on loopback. See the package's head.

What was saved is there again after a restart; sessions, models and sampling sessions are not, as on Tinker's own servers when a session ends.
Requests of one model run in the order in which they came, and a request that is sent again (same model, same number) is done once.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.tinker.checkpoints import Checkpoints, LoraSpec, Weights
from tests.tinker.errors import Refused
from tests.tinker.sampling import Lacks, LogprobsMode, Sampling
from tests.tinker.training import Training
from tests.tinker.wire import PROTOBUF, build_forward_backward, read_forward_backward

_WAIT_S = 20.0  # the SDK gives a poll 45 s
_MOST_FUTURES = 4096


@dataclass(frozen=True, slots=True)
class _Sampler:
    """A sampling session: which weights, for as long as the session it belongs to."""

    session: str
    key: str
    weights: Callable[[], Weights] | None
    path: str | None


class Server:
    """The routes, and what is known of sessions; on one event loop."""

    def __init__(
        self,
        model: str,
        state: Path,
        *,
        name: str = "",
        mode: LogprobsMode = "processed",
        lacks: Lacks | None = None,
        token_s: float = 0.0,
        key: str = "",
    ) -> None:
        self.name = name or model
        self._key = key
        self._checkpoints = Checkpoints(state)
        self._training = Training(model, self.name)
        self._sampling = Sampling(model, mode=mode, lacks=lacks or Lacks(), token_s=token_s)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="training")
        self._futures: OrderedDict[str, asyncio.Future[Any]] = OrderedDict()
        self._inner: dict[str, Future[bytes]] = {}
        self._seen: OrderedDict[tuple[str, int], str] = OrderedDict()
        self._sessions: dict[str, set[str]] = {}
        self._samplers: dict[str, _Sampler] = {}
        post, get = ["POST"], ["GET"]
        v1 = "/api/v1"
        self.app = Starlette(
            routes=[
                Route(f"{v1}/healthz", self._health, methods=get),
                Route(f"{v1}/get_server_capabilities", self._capabilities, methods=get),
                Route(f"{v1}/client/config", self._client_config, methods=post),
                Route(f"{v1}/client/dynamic_config", self._dynamic_config, methods=post),
                Route(f"{v1}/telemetry", self._telemetry, methods=post),
                Route(f"{v1}/create_session", self._create_session, methods=post),
                Route(f"{v1}/session_heartbeat", self._heartbeat, methods=post),
                Route(f"{v1}/sessions", self._list_sessions, methods=get),
                Route(f"{v1}/sessions/{{session}}/finish", self._finish, methods=post),
                Route(f"{v1}/create_model", self._create_model, methods=post),
                Route(f"{v1}/get_info", self._get_info, methods=post),
                Route(f"{v1}/forward_backward", self._forward_backward, methods=post),
                Route(f"{v1}/optim_step", self._optim_step, methods=post),
                Route(f"{v1}/save_weights", self._save_weights, methods=post),
                Route(f"{v1}/load_weights", self._load_weights, methods=post),
                Route(f"{v1}/save_weights_for_sampler", self._save_for_sampler, methods=post),
                Route(f"{v1}/weights_info", self._weights_info, methods=post),
                Route(f"{v1}/create_sampling_session", self._create_sampler, methods=post),
                Route(f"{v1}/samplers/{{sampler}}", self._sampler, methods=get),
                Route(f"{v1}/asample", self._sample, methods=post),
                Route(f"{v1}/cancel_future", self._cancel, methods=post),
                Route(f"{v1}/retrieve_future", self._retrieve, methods=post),
                Route(f"{v1}/training_runs/{{model}}/checkpoints", self._list, methods=get),
                Route(
                    f"{v1}/training_runs/{{model}}/checkpoints/{{checkpoint:path}}",
                    self._delete,
                    methods=["DELETE"],
                ),
            ],
            lifespan=self._lifespan,
            exception_handlers={Refused: _on_refused},
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        self._thread.shutdown(cancel_futures=True)
        await asyncio.to_thread(self._sampling.stop)

    # ---- what is no work

    async def _health(self, request: Request) -> Response:
        if self._key and request.headers.get("x-api-key") != self._key:
            raise Refused(401, "a wrong key")
        return _json({"status": "ok"})

    async def _capabilities(self, request: Request) -> Response:
        model = {"model_name": self.name, "max_context_length": self._sampling.context}
        return _json({"supported_models": [model]})

    async def _client_config(self, request: Request) -> Response:
        # The SDK asks this over a connection of its own, which it forgets to close.
        return _json({"parallel_fwdbwd_chunks": False}, headers={"connection": "close"})

    async def _dynamic_config(self, request: Request) -> Response:
        return _json({"sample_cancel_enabled": True})

    async def _telemetry(self, request: Request) -> Response:
        return _json({"status": "accepted"})

    async def _create_session(self, request: Request) -> Response:
        session = f"session-{uuid.uuid4().hex}"
        self._sessions[session] = set()
        return _json({"type": "create_session", "session_id": session})

    async def _heartbeat(self, request: Request) -> Response:
        self._session((await _body(request))["session_id"])
        return _json({"type": "session_heartbeat"})

    async def _finish(self, request: Request) -> Response:
        session = request.path_params["session"]
        for model in self._sessions.pop(session, set()):
            self._thread.submit(self._training.drop, model)
        self._samplers = {name: one for name, one in self._samplers.items() if one.session != session}
        return _json({})

    async def _list_sessions(self, request: Request) -> Response:
        return _json({"sessions": list(self._sessions)})

    def _session(self, session: str) -> set[str]:
        if session not in self._sessions:
            raise Refused(410, f"there is no session {session} (any more)")
        return self._sessions[session]

    # ---- futures

    def _submit(self, work: Callable[[], Any], *, model: str = "", number: int | None = None) -> Response:
        """Queue work of the half that trains; sent again, it is the same work."""
        known = None if number is None else self._seen.get((model, number))
        if known is not None:
            return _json({"request_id": known})
        ticket = self._remember(asyncio.wrap_future(self._thread.submit(work)))
        if number is not None:
            self._seen[model, number] = ticket
            while len(self._seen) > _MOST_FUTURES:
                self._seen.popitem(last=False)
        return _json({"request_id": ticket})

    def _remember(self, future: asyncio.Future[Any]) -> str:
        ticket = f"request-{uuid.uuid4().hex}"
        self._futures[ticket] = future
        while len(self._futures) > _MOST_FUTURES:
            self._futures.popitem(last=False)
        return ticket

    async def _retrieve(self, request: Request) -> Response:
        ticket = (await _body(request))["request_id"]
        future = self._futures.get(ticket)
        if future is None:
            raise Refused(404, f"there is no request {ticket}")
        done, _ = await asyncio.wait([future], timeout=_WAIT_S)
        if not done:
            return _json({"type": "try_again", "request_id": ticket, "queue_state": "active"})
        if future.cancelled():
            return _json({"error": "it was cancelled", "category": "user"})
        error = future.exception()
        if error is not None:
            is_theirs = isinstance(error, Refused | ValueError | IndexError)
            return _json(
                {"error": f"{type(error).__name__}: {error}", "category": "user" if is_theirs else "server"}
            )
        result = future.result()
        return Response(result, media_type=PROTOBUF) if isinstance(result, bytes) else _json(result)

    async def _cancel(self, request: Request) -> Response:
        inner = self._inner.get((await _body(request))["request_id"])
        if inner is not None:
            inner.cancel()
        return _json({})

    # ---- training

    async def _create_model(self, request: Request) -> Response:
        body = await _body(request)
        if body["base_model"] != self.name:
            raise Refused(400, f"there is no base model {body['base_model']}, only {self.name}")
        model = f"{body['session_id']}:train:{body['model_seq_id']}"
        self._session(body["session_id"]).add(model)
        given = body.get("lora_config") or {}
        spec = LoraSpec(
            rank=given.get("rank", 32),
            seed=given.get("seed"),
            train_attn=given.get("train_attn", True),
            train_mlp=given.get("train_mlp", True),
            train_unembed=given.get("train_unembed", True),
        )

        def work() -> dict[str, Any]:
            self._training.create(model, spec)
            return {"type": "create_model", "model_id": model}

        return self._submit(work, model=model, number=0)

    async def _get_info(self, request: Request) -> Response:
        model = (await _body(request))["model_id"]
        spec = self._training.spec(model)
        data = {"model_name": self.name, "tokenizer_id": self.name}
        return _json(
            {
                "type": "get_info", "model_id": model, "is_lora": True, "lora_rank": spec.rank,
                "model_name": self.name, "model_data": data,
            }
        )  # fmt: skip

    async def _forward_backward(self, request: Request) -> Response:
        wanted = read_forward_backward(await request.body())
        self._training.spec(wanted.model_id)
        return self._submit(
            lambda: build_forward_backward(*self._training.forward_backward(wanted)),
            model=wanted.model_id,
            number=wanted.seq_id,
        )

    async def _optim_step(self, request: Request) -> Response:
        body = await _body(request)
        model = body["model_id"]
        params = body.get("adam_params")
        if params is None:
            raise Refused(400, "only Adam is understood here")
        self._training.spec(model)

        def work() -> dict[str, Any]:
            return {"type": "optim_step", "metrics": self._training.optim_step(model, params)}

        return self._submit(work, model=model, number=body.get("seq_id"))

    async def _save_weights(self, request: Request) -> Response:
        body = await _body(request)
        model = body["model_id"]
        self._training.spec(model)

        def work() -> dict[str, Any]:
            weights, optimizer = self._training.weights(model), self._training.optimizer_state(model)
            path = self._checkpoints.save(model, "weights", body.get("path") or _name(), weights, optimizer)
            return {"type": "save_weights", "path": path}

        return self._submit(work, model=model, number=body.get("seq_id"))

    async def _load_weights(self, request: Request) -> Response:
        body = await _body(request)
        path = body["path"]
        model = body.get("model_id")
        if model is None:
            model = f"{body['session_id']}:train:{body['model_seq_id']}"
            self._session(body["session_id"]).add(model)
        else:
            self._training.spec(model)
        self._checkpoints.info(path)

        def work() -> dict[str, Any]:
            optimizer = self._checkpoints.optimizer(path) if body["optimizer"] else None
            self._training.load(model, self._checkpoints.load(path), optimizer)
            return {"type": "load_weights", "path": path}

        return self._submit(work, model=model, number=body.get("seq_id", 0))

    async def _save_for_sampler(self, request: Request) -> Response:
        body = await _body(request)
        model = body["model_id"]
        self._training.spec(model)

        def work() -> dict[str, Any]:
            weights = self._training.weights(model)
            if body.get("path"):
                path = self._checkpoints.save(model, "sampler_weights", body["path"], weights, None)
                return {"type": "save_weights_for_sampler", "path": path}
            sampler = f"sampler-{uuid.uuid4().hex}"
            self._samplers[sampler] = _Sampler(model.partition(":")[0], sampler, lambda: weights, None)
            return {"type": "save_weights_for_sampler", "sampling_session_id": sampler}

        return self._submit(work, model=model, number=body.get("seq_id"))

    # ---- checkpoints

    async def _weights_info(self, request: Request) -> Response:
        info = self._checkpoints.info((await _body(request))["tinker_path"])
        lora = info["lora"]
        shape = {name: lora[name] for name in ("train_attn", "train_mlp", "train_unembed")}
        return _json({"base_model": info["base_model"], "is_lora": True, "lora_rank": lora["rank"], **shape})

    async def _list(self, request: Request) -> Response:
        model = request.path_params["model"]
        found = []
        for name, at in self._checkpoints.names(model):
            kind = "training" if name.startswith("weights/") else "sampler"
            when = datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat()
            found.append(
                {
                    "checkpoint_id": name,
                    "checkpoint_type": kind,
                    "time": when,
                    "tinker_path": f"tinker://{model}/{name}",
                }
            )
        return _json({"checkpoints": found})

    async def _delete(self, request: Request) -> Response:
        self._checkpoints.delete("tinker://{model}/{checkpoint}".format(**request.path_params))
        return Response(status_code=204)

    # ---- sampling

    async def _create_sampler(self, request: Request) -> Response:
        body = await _body(request)
        self._session(body["session_id"])
        path, base = body.get("model_path"), body.get("base_model")
        if path is not None:
            of = self._checkpoints.info(path)["base_model"]
            if of != self.name:
                raise Refused(400, f"{path} is of {of}, not of {self.name}")
        elif base != self.name:
            raise Refused(400, f"there is no base model {base}, only {self.name}")
        sampler = f"sampler-{uuid.uuid4().hex}"
        weights = None if path is None else lambda: self._checkpoints.load(path)
        self._samplers[sampler] = _Sampler(body["session_id"], path or "", weights, path)
        return _json({"type": "create_sampling_session", "sampling_session_id": sampler})

    def _known(self, sampler: str) -> _Sampler:
        if sampler not in self._samplers:
            raise Refused(404, f"there is no sampling session {sampler} (any more)")
        return self._samplers[sampler]

    async def _sampler(self, request: Request) -> Response:
        name = request.path_params["sampler"]
        return _json({"sampler_id": name, "base_model": self.name, "model_path": self._known(name).path})

    async def _sample(self, request: Request) -> Response:
        body = await _body(request)
        sampler = self._known(body["sampling_session_id"])
        inner = self._sampling.submit(sampler.key, sampler.weights, body)
        ticket = self._remember(asyncio.wrap_future(inner))
        self._inner[ticket] = inner
        inner.add_done_callback(lambda _: self._inner.pop(ticket, None))
        ids = [f"{ticket}-{number}" for number in range(body.get("num_samples", 1))]
        return _json({"request_id": ticket, "sample_sequence_ids": ids})


async def _body(request: Request) -> dict[str, Any]:
    found = orjson.loads(await request.body())
    if not isinstance(found, dict):
        raise Refused(400, "the body is not a JSON object")
    return found


def _json(content: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), headers=headers, media_type="application/json")


def _name() -> str:
    return f"{time.time_ns()}"


async def _on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return Response(
        orjson.dumps({"detail": str(error)}), status_code=error.status, media_type="application/json"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", required=True, help="folder of a Hugging Face causal LM")
    add("--port", type=int, default=8120)
    add("--state", type=Path, required=True, help="folder of the checkpoints")
    add("--name", default="", help="name of the model for clients (default: the folder as given)")
    add(
        "--logprobs",
        choices=["raw", "processed"],
        default="processed",
        help="of samples: before or after temperature",
    )
    add(
        "--lacks",
        nargs="*",
        choices=["prompt_logprobs", "top_logprobs"],
        default=[],
        help="pretend not to know these",
    )
    add("--token-s", type=float, default=0.0, help="pause after each token")
    add("--api-key", default="", help="refuse others at /healthz")
    add(
        "--take-in",
        type=Path,
        nargs="*",
        default=[],
        metavar="FOLDER",
        help="LoRA folders of peft's, there as tinker://taken-in:train:0/sampler_weights/NAME",
    )
    arguments = parser.parse_args()
    import torch

    from tests.tinker.running import take_in

    for folder in arguments.take_in:
        take_in(arguments.state, arguments.name or arguments.model, folder, folder.name)

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    server = Server(
        arguments.model,
        arguments.state,
        name=arguments.name,
        mode=arguments.logprobs,
        lacks=Lacks(**dict.fromkeys(arguments.lacks, True)),
        token_s=arguments.token_s,
        key=arguments.api_key,
    )
    uvicorn.run(server.app, host="127.0.0.1", port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
