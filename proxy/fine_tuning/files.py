"""``/v1/files``: uploads of JSON lines for fine-tuning. Each key sees only its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from email.message import Message
from email.parser import BytesParser
from email.policy import HTTP
from uuid import uuid4

from starlette.types import Receive, Scope, Send

from proxy.answers import answering_errors
from proxy.asgi import read_json, send_body, send_head, send_json
from proxy.auth import Principal
from proxy.item_pages import page, read_query
from store.record import Record
from store.record_handle import RecordHandle
from store.values import Json, TrainingFile, TuningMethod
from wire.api_translation import Untranslatable
from wire.headers import get_header
from wire.training_file import BadLine, read_examples

PREFIX = "/v1/files"
#: Bytes and lines of a file; bytes and files of a key.
MOST_BYTES, MOST_LINES = 16 << 20, 1_000
MOST_OF_KEY, MOST_FILES = 64 << 20, 100
_PURPOSE = "fine-tune"


class TrainingFiles:
    """Serves ``/v1/files``."""

    def __init__(self, record: RecordHandle) -> None:
        self._record = record

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, *, principal: Principal, path: str
    ) -> None:
        file_id, _, part = path.removeprefix(PREFIX).removeprefix("/").partition("/")
        method, key_name = scope["method"], principal.key_name
        async with answering_errors(send, "a file could not be read or kept"):
            record = await self._record.get()
            if (method, file_id) == ("POST", ""):
                form = await asyncio.to_thread(_read_form, scope, await read_json(receive, scope["headers"]))
                await send_json(send, 200, _shown(await self._keep(record, form, key_name)))
            elif (method, file_id) == ("GET", ""):
                options = read_query(scope.get("query_string") or b"")
                shown = [_shown(one) for one in await record.training_files(key_name)]
                wanted = options.get("purpose", _PURPOSE)
                await send_json(send, 200, page(shown if wanted == _PURPOSE else [], options))
            elif (found := await record.training_file(key_name, file_id)) is None:
                raise Untranslatable(f"No such File object: {file_id}", status=404, param="id")
            elif (method, part) == ("GET", "content"):
                await send_head(send, 200, [(b"content-type", b"application/jsonl")])
                await send_body(send, found.content.encode())
            elif (method, part) == ("GET", ""):
                await send_json(send, 200, _shown(found))
            elif (method, part) == ("DELETE", ""):
                await record.delete_training_file(key_name, file_id)
                await send_json(send, 200, {"id": file_id, "object": "file", "deleted": True})
            else:
                raise Untranslatable(f"{method} {path} is not served.", status=405)

    async def _keep(
        self, record: Record, form: Mapping[str, tuple[str, bytes]], key_name: str
    ) -> TrainingFile:
        purpose = form.get("purpose", ("", b""))[1].decode("utf-8", "replace")
        if purpose != _PURPOSE:
            raise Untranslatable(
                f"purpose must be '{_PURPOSE}': this server keeps files for fine-tuning only.",
                param="purpose",
            )
        if "file" not in form:
            raise Untranslatable("The form needs a field 'file' with the JSON lines.", param="file")
        filename, content = form["file"]
        if len(content) > MOST_BYTES:
            raise Untranslatable(
                f"The file has {len(content)} bytes; the limit is {MOST_BYTES}.", status=413, param="file"
            )
        known = await record.training_files(key_name)
        if len(known) >= MOST_FILES or sum(one.size for one in known) + len(content) > MOST_OF_KEY:
            raise Untranslatable(
                f"A key keeps at most {MOST_FILES} files of {MOST_OF_KEY} bytes in all: delete some.",
                param="file",
            )
        text, method = await asyncio.to_thread(_checked, content)
        file = TrainingFile(
            file_id=f"file-{uuid4().hex}",
            key_name=key_name,
            filename=filename[:256] or "upload.jsonl",
            size=len(content),
            method=method,
            content=text,
            created_at=time.time(),
        )
        await record.add_training_file(file)
        return file


def _checked(content: bytes) -> tuple[str, TuningMethod]:
    """Return a file's text and the method that it is for. Raises: Untranslatable: a line is wrong."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = content[: exc.start].count(b"\n") + 1
        raise Untranslatable(f"Line {line}: it is not UTF-8.", code="invalid_file", param="file") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise Untranslatable(f"Line {line}: it holds a NUL character.", code="invalid_file", param="file")
    try:
        method, _ = read_examples(text, most_lines=MOST_LINES)
    except BadLine as exc:
        raise Untranslatable(str(exc), code="invalid_file", param="file") from None
    return text, method


def _read_form(scope: Scope, body: bytes) -> dict[str, tuple[str, bytes]]:
    """Return the fields of a ``multipart/form-data`` body: (file name, content) by name. Raises: Untranslatable: it is none."""
    kind = get_header(scope["headers"], b"content-type") or ""
    if not kind.lower().startswith("multipart/form-data"):
        raise Untranslatable("A file is uploaded as multipart/form-data.", status=415)
    boundary = Message()
    boundary["content-type"] = kind
    mark = boundary.get_boundary()
    if not mark:
        raise Untranslatable("The multipart body has no boundary.")
    found: dict[str, tuple[str, bytes]] = {}
    for part in (b"\r\n" + body).split(b"\r\n--" + mark.encode("latin-1"))[1:]:
        head, separator, content = part.partition(b"\r\n\r\n")
        if part.startswith(b"--") or not separator:
            continue
        fields = BytesParser(policy=HTTP).parsebytes(head.lstrip(b"\r\n") + b"\r\n\r\n")
        name = fields.get_param("name", header="content-disposition")
        if isinstance(name, str):
            found[name] = (fields.get_filename() or "", content)
    return found


def _shown(file: TrainingFile) -> Json:
    return {
        "id": file.file_id,
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created_at),
        "filename": file.filename,
        "purpose": _PURPOSE,
        "status": "processed",
        "status_details": None,
        "expires_at": None,
    }
