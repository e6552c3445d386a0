"""A stand-in for the Hugging Face hub on the loopback interface: the routes that its client asks for a model, byte ranges, and cuts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

SHA = "0123456789abcdef0123456789abcdef01234567"
#: Larger files are "LFS" files, as the hub calls them.
_LFS = 100_000


class HubServer(ThreadingHTTPServer):
    """Serves one model's folder as the model `name`.

    Attributes:
        asked: (file, first byte) of each download.
        cuts: bytes after which the next downloads of weights end, one entry each; 0 keeps the connection open and silent.
        status: what it answers about the model instead, with the hub's code for the reason.
    """

    daemon_threads = True

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.name, self.folder = name, folder
        self.asked: list[tuple[str, int]] = []
        self.cuts: list[int] = []
        self.status: tuple[int, str] | None = None
        self.hung = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def running_hub(name: str, folder: Path) -> Iterator[HubServer]:
    server = HubServer(name, folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> HubServer:
        return cast(HubServer, self.server)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self.hub.status is not None:
            self._refuse(*self.hub.status)
        elif path == f"/api/models/{self.hub.name}/revision/main":
            self._json({"id": self.hub.name, "sha": SHA, "siblings": []})
        elif path == f"/api/models/{self.hub.name}/tree/{SHA}":
            self._json([self._entry(one) for one in sorted(self.hub.folder.rglob("*")) if one.is_file()])
        elif found := re.fullmatch(rf"/{self.hub.name}/resolve/{SHA}/(.+)", path):
            self._file(found[1])
        else:
            self._refuse(404, "RepoNotFound")

    do_HEAD = do_GET

    def _entry(self, path: Path) -> dict[str, Any]:
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        lfs = {"lfs": {"oid": digest, "size": len(data), "pointerSize": 134}} if len(data) > _LFS else {}
        name = path.relative_to(self.hub.folder).as_posix()
        return {"type": "file", "path": name, "size": len(data), "oid": digest[:40], **lfs}

    def _file(self, name: str) -> None:
        data = (self.hub.folder / name).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(found[1]) if found else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("ETag", f'"{digest if len(data) > _LFS else digest[:40]}"')
        self.send_header("X-Repo-Commit", SHA)
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command == "HEAD":
            return
        self.hub.asked.append((name, start))
        if not name.endswith(".safetensors") or not self.hub.cuts:
            self.wfile.write(data[start:])
            return
        cut = self.hub.cuts.pop(0)
        self.wfile.write(data[start : start + (cut or len(data) // 2)])
        self.wfile.flush()
        if not cut:
            self.hub.hung.set()
            self.connection.settimeout(60)
            with contextlib.suppress(OSError):
                self.connection.recv(1)  # until the client is gone
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _json(self, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
