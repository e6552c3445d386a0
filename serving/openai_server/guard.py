"""The guard of a backend's own port: only the gateway, which has the secret of this start, may use it."""

from __future__ import annotations

import hmac

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.openai_server.schemas import build_error


class KeyGuard:
    """Refuses requests without the key, of web pages, and for another host than this machine.

    Args:
        key: expected as Bearer; "": not required, as where a person starts the server.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode() if key else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refuse(scope) if scope["type"] == "http" and self._expected else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, message, kind = refusal
        await JSONResponse(build_error(message, status, kind), status_code=status)(scope, receive, send)

    def _refuse(self, scope: Scope) -> tuple[int, str, str] | None:
        headers = dict(scope["headers"])
        if b"origin" in headers:
            return 403, "web pages may not call this port", "PermissionDeniedError"
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            return 401, "this port is for the gateway: use the gateway's address", "AuthenticationError"
        return None
