"""CLaaS's paths `/v1/lora/…`: a client names its LoRA, and each name stands for the policy of the key that made it.

A key's policy is made by its turns, not by a call: `init` only binds a name to it, `DELETE` lets the name go and makes the base model live again.
Which policy a name means is decided in `LoraPaths.find` alone.
"""

from __future__ import annotations

import asyncio
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from proxy.adapters import Alias
from proxy.answers import answering_errors
from proxy.asgi import (
    read_json,
    send_body,
    send_head,
    send_json,
)
from proxy.auth import Principal
from proxy.item_pages import read_query
from store.policies import group_of, parse_model, policy_name
from store.record import Record
from store.record_handle import RecordHandle
from store.values import BASE_VERSION, AdapterVersion, Json, numbers_of
from wire.api_translation import Untranslatable, read_object

PREFIX = "/v1/lora"
_ID = re.compile(r"[A-Za-z0-9._/-]{1,128}")
_LATEST = "-latest"
#: Names that one key may bind.
_MOST_NAMES = 64
_EXPORTED = ("adapter_config.json", "adapter_model.safetensors")
_OPTIMIZER = "patina/trainer_state.safetensors"
_PIECE = 1 << 20


class LoraPaths:
    """Serves ``/v1/lora``.

    Args:
        policy: the shared policy, whose name is the base model's.
    """

    def __init__(self, record: RecordHandle, alias: Alias, policy: str) -> None:
        self._record = record
        self._alias = alias
        self._policy = policy

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, *, principal: Principal, path: str
    ) -> None:
        options = read_query(scope.get("query_string") or b"")
        what = (scope["method"], path.removeprefix(PREFIX))
        async with answering_errors(send, "an adapter could not be read or changed"):
            if what == ("POST", "/init"):
                body = read_object(await read_json(receive, scope["headers"]))
                await send_json(send, 200, await self._init(body, principal))
            elif what == ("GET", ""):
                await send_json(send, 200, {"loras": await self._list(options.get("prefix", ""), principal)})
            elif what == ("DELETE", ""):
                await send_json(send, 200, {"deleted": await self._delete(_id_of(options), principal)})
            elif what == ("GET", "/export"):
                await self._export(send, _id_of(options), options, principal)
            else:
                raise Untranslatable(f"There is no {what[0]} {path} here.", status=404, code="not_found")

    async def find(self, lora_id: str, principal: Principal) -> str:
        """Return the policy that a name means for a caller. Raises: Untranslatable: it means none; RecordError."""
        names = await self._names(await self._record.get(), principal)
        found = names.get(lora_id) or names.get(lora_id.removesuffix(_LATEST))
        if found is None:
            raise Untranslatable(
                f"LoRA '{lora_id}' not found. `POST /v1/lora/init` makes it.", status=404, code="not_found"
            )
        return found

    async def _names(self, record: Record, principal: Principal) -> dict[str, str]:
        """Return the policies that a caller may use, by name: those of its policies, and those that were bound."""
        served = self._alias.served(group=principal.adapter, is_owner=principal.is_owner)
        allowed = {one.policy for one in served}
        bound = await record.lora_names()
        mine = bound.pop(principal.key_name, {})
        others = {name: policy for names in bound.values() for name, policy in names.items()}
        names = (others if principal.is_owner else {}) | mine
        # The name of a policy means that policy, whatever was bound.
        free = {name: one for name, one in names.items() if one in allowed and not self._names_policy(name)}
        return free | {policy: policy for policy in allowed}

    def _names_policy(self, name: str) -> bool:
        """Whether a name is, or may become, the name of a policy or of its newest version."""
        return parse_model(self._policy, name) is not None

    async def _init(self, body: Json, principal: Principal) -> Json:
        lora_id = body.get("lora_id")
        if not (isinstance(lora_id, str) and is_lora_id(lora_id)):
            raise Untranslatable(
                "lora_id has 1 to 128 letters, digits, '.', '_', '/' and '-', without '..'.",
                status=422, param="lora_id",
            )  # fmt: skip
        base = body.get("base_model")
        if base is not None and not (isinstance(base, str) and self._is_base(base)):
            raise Untranslatable(
                f"This server trains {self._policy} only.", status=403, code="wrong_base_model", param="base_model"
            )  # fmt: skip
        for name, (low, high) in {"lora_r": (4, 128), "lora_alpha": (8, 256)}.items():
            value = body.get(name)
            if value is not None and not (type(value) is int and low <= value <= high):
                raise Untranslatable(
                    f"{name} is a whole number from {low} to {high}.", status=422, param=name
                )
        modules = body.get("target_modules") or []
        if not (isinstance(modules, list) and all(isinstance(one, str) for one in modules)):
            raise Untranslatable("target_modules is a list of names.", status=422, param="target_modules")
        record = await self._record.get()
        names = await self._names(record, principal)
        if lora_id not in names:
            if self._names_policy(lora_id):  # whether it exists must not show
                raise Untranslatable(
                    f"'{lora_id}' names a policy that is not yours. Choose another name.",
                    status=403, code="not_owner", param="lora_id",
                )  # fmt: skip
            policy = policy_name(self._policy, principal.adapter)
            if not await record.bind_lora(principal.key_name, lora_id, policy, most=_MOST_NAMES):
                raise Untranslatable(f"A key has at most {_MOST_NAMES} LoRAs.", status=422, param="lora_id")
        return {"lora_id": lora_id}

    def _is_base(self, name: str) -> bool:
        """Whether a model's name, with or without its organisation, is that of the base model."""
        return self._policy in (name, re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).name).strip("-."))

    async def _list(self, prefix: str, principal: Principal) -> list[str]:
        names = await self._names(await self._record.get(), principal)
        return sorted(
            name for one in names for name in (one, one + _LATEST) if name.startswith(prefix.strip("/"))
        )

    async def _delete(self, lora_id: str, principal: Principal) -> bool:
        record = await self._record.get()
        policy = await record.unbind_lora(principal.key_name, lora_id)
        if policy is None:
            return False
        rest = {bound for names in (await record.lora_names()).values() for bound in names.values()}
        is_own = group_of(self._policy, policy) == principal.key_name
        is_live = await record.live_version(policy) != BASE_VERSION
        # What other keys train, or another name still means, stays live.
        if is_live and policy not in rest and (is_own or (principal.is_owner and policy != self._policy)):
            await record.rollback(policy, BASE_VERSION, actor="lora delete")
        return True

    async def _export(
        self, send: Send, lora_id: str, options: Mapping[str, str], principal: Principal
    ) -> None:
        policy = await self.find(lora_id, principal)
        if not (principal.is_owner or group_of(self._policy, policy) == principal.key_name):
            raise Untranslatable(
                "Other keys train this LoRA too: only the owner's key exports it.",
                status=403,
                code="not_owner",
            )
        record = await self._record.get()
        version = await record.live_version(policy)
        if (wanted := options.get("version")) is not None:
            if not (wanted.isascii() and wanted.isdigit() and len(wanted) < 9):
                raise Untranslatable("version is a number.", status=422, param="version")
            version = int(wanted)
        adapter = None if version == BASE_VERSION else await record.adapter(policy, version)
        if adapter is None or not await asyncio.to_thread(_is_whole, adapter):
            raise Untranslatable(
                f"LoRA '{lora_id}' has no weights of version {version}: the base model serves until one is trained.",
                status=404, code="not_found",
            )  # fmt: skip
        name = re.sub(r"[^a-zA-Z0-9._-]+", "-", lora_id)
        head = [
            (b"content-type", b"application/zip"),
            (b"content-disposition", f'attachment; filename="{name}.zip"'.encode()),
        ]
        await send_head(send, 200, head)
        metrics = {"metrics.json": orjson.dumps(numbers_of(adapter.metrics))}
        pieces = zip_pieces(Path(adapter.path), metrics, with_optimizer=options.get("optimizer") == "1")
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            await send_body(send, piece, more=True)
        await send_body(send, b"")


def is_lora_id(name: str) -> bool:
    """Whether CLaaS takes a name for a LoRA."""
    return _ID.fullmatch(name) is not None and ".." not in name


def _id_of(options: Mapping[str, str]) -> str:
    lora_id = options.get("lora_id", "")
    if not is_lora_id(lora_id):
        raise Untranslatable("Name the LoRA: ?lora_id=…", status=422, param="lora_id")
    return lora_id


def _is_whole(adapter: AdapterVersion) -> bool:
    return all((Path(adapter.path) / name).is_file() for name in _EXPORTED)


class _Pieces:
    """A file that only takes what is written, until it is taken away."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """There is nothing to flush: the parts are in memory."""

    def take(self) -> bytes:
        taken, self._parts = b"".join(self._parts), []
        return taken


def zip_pieces(folder: Path, more: Mapping[str, bytes], *, with_optimizer: bool = False) -> Iterator[bytes]:
    """Yield a zip of a folder's adapter, and of more files, piece by piece; the weights are not compressed.

    Args:
        with_optimizer: add the optimizer's state, where the folder has one.
    """
    has_optimizer = with_optimizer and (folder / _OPTIMIZER).is_file()
    pieces = _Pieces()
    with zipfile.ZipFile(pieces, "w") as archive:  # type: ignore[call-overload]
        for name in (*_EXPORTED, _OPTIMIZER) if has_optimizer else _EXPORTED:
            with (folder / name).open("rb") as source, archive.open(name, "w", force_zip64=True) as target:
                while data := source.read(_PIECE):
                    target.write(data)
                    yield pieces.take()
        for name, body in more.items():
            archive.writestr(name, body)
    yield pieces.take()
