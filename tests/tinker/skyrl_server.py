"""SkyRL's Tinker server, spoken to by a current SDK: `PYTHON -I tests/tinker/skyrl_server.py api --base-model DIR --port N ...`, in SkyRL's own environment.

SkyRL 0.3.0 speaks the JSON wire of SDK 0.24 and before; since then forward-backward requests, their results and samples are protobuf, and
samples have ids. This layer of ASGI translates between the two with the SDK's own message definitions; it computes nothing. It also takes the
place of `uv run`, by which SkyRL would start its engine, and makes a model from a checkpoint in the steps that SkyRL knows.

SkyRL samples a checkpoint with the weights of the model it was saved from: the checkpoint is put in the place of what is being trained there, or
what was trained since is sampled in its stead, and after a restart there is neither. So each checkpoint that is sampled from is given a
model of its own here, of which there are `max_lora_adapters` in all; the one that was not used for longest leaves.

Runs without anything of ours on the path (`-I`: the modules beside it have names of others'). `engine` instead of `api` is what it starts itself as.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import runpy
import sys
import typing
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
import typing_extensions

if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict  # pydantic refuses typing's own before 3.12

_PROTOBUF = "application/x-protobuf"
_NUMPY = {1: np.float32, 2: np.int64, 3: np.int32}
_MOST_REMEMBERED = 10_000
_FOR_TRAINING = 3

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def read_forward_backward(body: bytes) -> tuple[bool, dict[str, Any]]:
    """Return whether it is forward only, and the JSON that SkyRL takes."""
    from tinker.proto import tinker_public_pb2 as pb

    message = pb.ForwardBackwardRequest.FromString(body)
    data = []
    for one in message.data:
        chunks = [
            {"type": "encoded_text", "tokens": np.frombuffer(chunk.encoded_text.tokens, np.int32).tolist()}
            for chunk in one.model_input
        ]
        inputs = {
            name: {"data": np.frombuffer(tensor.dense, _NUMPY[tensor.dtype]).tolist()}
            for name, tensor in one.loss_fn_inputs.items()
        }
        data.append({"model_input": {"chunks": chunks}, "loss_fn_inputs": inputs})
    wanted = {
        "data": data,
        "loss_fn": message.loss_fn,
        "loss_fn_config": dict(message.loss_fn_config) or None,
    }
    field = "forward_input" if message.forward_only else "forward_backward_input"
    return message.forward_only, {"model_id": message.model_id, field: wanted}


def build_forward_backward(result: dict[str, Any]) -> bytes:
    """SkyRL's JSON as the SDK takes it."""
    from tinker.proto import tinker_public_pb2 as pb

    output = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    outputs = result["loss_fn_outputs"]
    record = output.loss_fn_outputs.add()
    record.num_datums = len(outputs)
    total = 0.0
    for name in outputs[0] if outputs else {}:
        arrays = [np.asarray(one[name]["data"], np.float32) for one in outputs]
        if name == "elementwise_loss":
            total = float(sum(array.sum() for array in arrays))
        tensor = record.fields[name]
        tensor.dtype = pb.DTYPE_FLOAT32
        tensor.data = b"".join(array.tobytes() for array in arrays)
        tensor.offsets = np.cumsum([0, *(array.nbytes for array in arrays)]).astype(np.int64).tobytes()
    for name, value in {"loss:sum": total, **(result.get("metrics") or {})}.items():
        output.metrics[name] = value
    return bytes(output.SerializeToString())


def build_sample(result: dict[str, Any]) -> bytes:
    """SkyRL's JSON as the SDK takes it."""
    from tinker.proto import tinker_public_pb2 as pb

    response = pb.SampleResponse()
    for one in result["sequences"]:
        sequence = response.sequences.add()
        is_cut = one["stop_reason"] == "length"
        sequence.stop_reason = pb.STOP_REASON_LENGTH if is_cut else pb.STOP_REASON_STOP
        sequence.tokens = np.asarray(one["tokens"], np.int32).tobytes()
        if one.get("logprobs") is not None:
            sequence.logprobs = np.asarray(one["logprobs"], np.float32).tobytes()
    if result.get("prompt_logprobs"):
        # SkyRL leaves the first position out
        response.prompt_logprobs = np.asarray([np.nan, *result["prompt_logprobs"]], np.float32).tobytes()
    return bytes(response.SerializeToString())


class Translator:
    """The layer in front of SkyRL's application; `most_slots` checkpoints are sampled from at once."""

    def __init__(self, app: App, checkpoints: Path, most_slots: int) -> None:
        self._app = app
        self._checkpoints = checkpoints
        self._most_slots = most_slots
        #: The SDK's model id -> SkyRL's: a model made from a checkpoint is named by the SDK.
        self._alias: dict[str, str] = {}
        #: Request id -> how its result is written.
        self._writers: OrderedDict[str, Callable[[dict[str, Any]], bytes]] = OrderedDict()
        #: Sampling session -> its session and checkpoint; "" is the base model.
        self._samplers: dict[str, tuple[str, str]] = {}
        #: (session, checkpoint) -> the checkpoint's path in a model of its own.
        self._slots: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._filling = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith("/api/v1/"):
            return await self._app(scope, receive, send)
        body = await _read(receive)
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        if path.endswith("/finish"):  # unknown to SkyRL, whose sessions end by themselves
            return await _reply(send, 200, b"{}")
        request: dict[str, Any] = {}
        if headers.get("content-type", "").startswith(_PROTOBUF):
            is_forward, request = read_forward_backward(body)
            path = "/api/v1/forward" if is_forward else path
        elif body:
            request = json.loads(body)
        if path == "/api/v1/load_weights" and request.get("model_id") is None:
            return await self._make_from_checkpoint(scope, request, send)
        if path == "/api/v1/asample" and request.get("sampling_session_id"):
            known = self._samplers.get(request["sampling_session_id"])
            if known is None:  # from before a restart of the server
                return await _reply(send, 404, b'{"detail": "no such sampling session (any more)"}')
            if known[1]:
                try:
                    own = await self._own_model(scope, *known)
                except _Failed as error:
                    return await _reply(send, error.status, error.body)
                request = {**request, "model_path": own, "sampling_session_id": None, "seq_id": None}
        if request.get("model_id") in self._alias:
            request["model_id"] = self._alias[request["model_id"]]
        status, out, kind = await self._call(scope, path, request if body else None)
        if status == 200:
            out, kind = self._adapt_response(path, request, out, kind)
        await _reply(send, status, out, kind, path)

    def _adapt_response(self, path: str, request: dict[str, Any], out: bytes, kind: str) -> tuple[bytes, str]:
        """Add what Tinker's client expects and SkyRL leaves out; returns body and content type."""
        if path == "/api/v1/asample":
            promise = json.loads(out)
            self._remember(promise["request_id"], build_sample)
            numbers = range(request.get("num_samples", 1))
            promise["sample_sequence_ids"] = [f"{promise['request_id']}-{number}" for number in numbers]
            return json.dumps(promise).encode(), kind
        if path == "/api/v1/create_sampling_session":
            sampler = json.loads(out)["sampling_session_id"]
            self._samplers[sampler] = (request["session_id"], request.get("model_path") or "")
        elif path in ("/api/v1/forward", "/api/v1/forward_backward"):
            self._remember(json.loads(out)["request_id"], build_forward_backward)
        elif path == "/api/v1/retrieve_future":
            write = self._writers.get(request["request_id"])
            found = json.loads(out)
            if write is not None and "error" not in found and found.get("type") != "try_again":
                return write(found), _PROTOBUF
        return out, kind

    def _remember(self, ticket: str, write: Callable[[dict[str, Any]], bytes]) -> None:
        self._writers[ticket] = write
        while len(self._writers) > _MOST_REMEMBERED:
            self._writers.popitem(last=False)

    async def _call(self, scope: Scope, path: str, request: dict[str, Any] | None) -> tuple[int, bytes, str]:
        """Ask SkyRL; returns status, body and its kind."""
        body = b"" if request is None else json.dumps(request).encode()
        ours = (b"content-type", b"content-length", b"content-encoding", b"accept")
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in ours]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        inner = {**scope, "path": path, "raw_path": path.encode(), "headers": headers}
        events = iter([{"type": "http.request", "body": body, "more_body": False}])
        status, kind, out = 500, "application/json", b""

        async def receive() -> MutableMapping[str, Any]:
            event = next(events, None)
            if event is None:
                await asyncio.Event().wait()  # the client stays
            assert event is not None
            return event

        async def send(event: MutableMapping[str, Any]) -> None:
            nonlocal status, kind, out
            if event["type"] == "http.response.start":
                status = event["status"]
                kind = dict(event["headers"]).get(b"content-type", b"application/json").decode()
            elif event["type"] == "http.response.body":
                out += event.get("body", b"")

        await self._app(inner, receive, send)
        return status, out, kind

    async def _make_from_checkpoint(self, scope: Scope, request: dict[str, Any], send: Send) -> None:
        """Make a model of the checkpoint's shape, wait for it, and load the checkpoint into it."""
        try:
            model = await self._new_model(scope, request["session_id"], request["path"])
            self._alias[f"{request['session_id']}:train:{request['model_seq_id']}"] = model
            load = {"model_id": model, "path": request["path"]}
            out = await self._post(scope, "/api/v1/load_weights", load)
        except _Failed as error:
            return await _reply(send, error.status, error.body)
        await _reply(send, 200, json.dumps(out).encode())

    async def _own_model(self, scope: Scope, session: str, checkpoint: str) -> str:
        """Return the path of a checkpoint in a model that nothing else uses."""
        async with self._filling:
            key = (session, checkpoint)
            if key not in self._slots:
                while len(self._slots) >= self._most_slots:
                    _, old = self._slots.popitem(last=False)
                    gone = await self._post(scope, "/api/v1/unload_model", {"model_id": _parts(old)[0]})
                    await self._post(scope, "/api/v1/retrieve_future", {"request_id": gone["request_id"]})
                model = await self._new_model(scope, session, checkpoint)
                self._slots[key] = await self._share(checkpoint, model)
            self._slots.move_to_end(key)
            return self._slots[key]

    async def _new_model(self, scope: Scope, session: str, checkpoint: str) -> str:
        """Make a model of a checkpoint's shape and wait for it; returns its id."""
        from skyrl.tinker.db_models import ModelDB
        from sqlmodel.ext.asyncio.session import AsyncSession

        async with AsyncSession(self._app.state.db_engine) as database:  # type: ignore[attr-defined]
            source = await database.get(ModelDB, _parts(checkpoint)[0])
        if source is None:
            raise _Failed(404, b'{"detail": "Model not found"}')
        given = ("rank", "train_attn", "train_mlp", "train_unembed")
        lora = {name: source.lora_config[name] for name in given if name in source.lora_config}
        request = {"session_id": session, "base_model": source.base_model, "lora_config": lora}
        promise = await self._post(scope, "/api/v1/create_model", request)
        await self._post(scope, "/api/v1/retrieve_future", {"request_id": promise["request_id"]})
        return str(promise["model_id"])

    async def _share(self, checkpoint: str, model: str) -> str:
        """Let a model have another's checkpoint: its file, and its row in SkyRL's database; returns its path there."""
        from skyrl.tinker import types
        from skyrl.tinker.db_models import CheckpointDB, CheckpointStatus
        from sqlmodel.ext.asyncio.session import AsyncSession

        source, name = _parts(checkpoint)
        folder = self._checkpoints / model / "sampler_weights"
        folder.mkdir(parents=True, exist_ok=True)
        os.link(self._checkpoints / source / "sampler_weights" / f"{name}.tar.gz", folder / f"{name}.tar.gz")
        async with AsyncSession(self._app.state.db_engine) as database:  # type: ignore[attr-defined]
            database.add(
                CheckpointDB(
                    model_id=model,
                    checkpoint_id=name,
                    checkpoint_type=types.CheckpointType.SAMPLER,
                    status=CheckpointStatus.COMPLETED,
                )
            )
            await database.commit()
        return f"tinker://{model}/sampler_weights/{name}"

    async def _post(self, scope: Scope, path: str, body: dict[str, Any]) -> dict[str, Any]:
        status, out, _ = await self._call({**scope, "method": "POST"}, path, body)
        found: dict[str, Any] = json.loads(out) if status == 200 else {}
        if status != 200 or "error" in found:
            raise _Failed(status if status != 200 else 500, out)
        return found


class _Failed(Exception):
    """The response of SkyRL to one training step."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(body)
        self.status = status
        self.body = body


def _parts(checkpoint: str) -> tuple[str, str]:
    """Model and name of a checkpoint; SkyRL leaves its kind out where it is for sampling."""
    first, *_, last = checkpoint.removeprefix("tinker://").split("/")
    return first, last


async def _read(receive: Receive) -> bytes:
    body = b""
    while True:
        event = await receive()
        body += bytes(event.get("body", b""))
        if not event.get("more_body"):
            return body


async def _reply(
    send: Send, status: int, body: bytes, kind: str = "application/json", path: str = ""
) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    if path.endswith("/client/config"):
        headers.append((b"connection", b"close"))  # the SDK asks this over a connection that it forgets
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    mode = sys.argv.pop(1)
    if mode == "engine":
        sys.argv[0] = "skyrl.tinker.engine"
        runpy.run_module("skyrl.tinker.engine", run_name="__main__", alter_sys=True)
        return
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, add_model, config_to_argv

    api._build_uv_run_cmd_engine = lambda _, config: [
        sys.executable,
        "-I",
        __file__,
        "engine",
        *config_to_argv(config),
    ]
    parser = argparse.ArgumentParser(description=__doc__)
    add_model(parser, EngineConfig)
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    given = {name: value for name, value in vars(arguments).items() if name in EngineConfig.model_fields}
    config = api.app.state.engine_config = EngineConfig.model_validate(given)
    # adapter 0 is the base model, and some are for those that are trained
    most_slots = max(2, int(config.backend_config.get("max_lora_adapters", 12)) - _FOR_TRAINING - 1)
    uvicorn.run(
        Translator(api.app, Path(str(config.checkpoints_base)), most_slots),
        host="127.0.0.1",
        port=arguments.port,
        log_level="warning",
        lifespan="on",
    )


if __name__ == "__main__":
    main()
