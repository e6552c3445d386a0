"""The gateway, as the page uses it: with the owner's key, like any client."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from serving.http import HttpBackend
from store.values import Json

_CLIENT = (b"user-agent", b"Patina-dashboard/1.0")


class Gateway:
    """A client of the gateway.

    Args:
        key: the owner's; "": none is needed.
    """

    def __init__(self, url: str, key: str) -> None:
        self._http = HttpBackend(url, api_key=key, speaks_vllm=False)
        self._headers = [(b"content-type", b"application/json"), (b"x-patina-key", key.encode()), _CLIENT]

    async def close(self) -> None:
        await self._http.close()

    async def post(self, path: str, body: Json, *, trains: bool = True) -> tuple[Json, Mapping[bytes, bytes]]:
        """Return the reply's body and headers. Raises: ValueError: an error reply. UpstreamError: the gateway cannot be reached."""
        headers = self._headers if trains else [*self._headers, (b"x-patina-train", b"off")]
        reply = await self._http.open("POST", path, headers, orjson.dumps(body))
        try:
            raw = await reply.read()
        finally:
            reply.close()
        found = orjson.loads(raw)
        if reply.status != 200:
            raise ValueError(found.get("error", {}).get("message", f"status {reply.status}"))
        return found, {name.lower(): value for name, value in reply.headers}
