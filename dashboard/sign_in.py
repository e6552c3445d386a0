"""Sign-in: one-time links, signed cookies and tokens against cross-site requests.

A link's token is 256 random bits. The file of a link is named by the token's hash, so that reading the folder opens nothing; the first use
removes the file. A cookie names the key that signed in and is signed with a secret of the home: it holds no key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

import orjson

from store.errors import ConfigError

#: Seconds for which a link and a cookie are valid.
LINK_S, COOKIE_S = 600.0, 30 * 86_400.0
COOKIE = "patina_session"


@dataclass(frozen=True, slots=True)
class Session:
    """A signed-in browser.

    Attributes:
        key_name: name of the key that signed in.
        csrf: what a form must send back.
    """

    key_name: str
    csrf: str


class SignIn:
    """Makes and checks links and cookies.

    Args:
        folder: of the links and of the secret; made with mode 0700.

    Raises:
        ConfigError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._secret = _read_secret(folder / "secret")
        except OSError as exc:
            raise ConfigError(f"sign-in files cannot be kept in {folder}: {exc.strerror or exc}") from exc

    def make_link(self, now: float | None = None) -> str:
        """Return the token of a link that signs its first user in as the owner."""
        now = time.time() if now is None else now
        for old in self._folder.glob("*.link"):
            if now - old.stat().st_mtime > LINK_S:
                old.unlink(missing_ok=True)
        token = secrets.token_urlsafe(32)
        path = self._path(token)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.utime(path, (now, now))
        return token

    def use_link(self, token: str, now: float | None = None) -> bool:
        """Return whether the token is of a link that is valid and was not used before; the link is used then."""
        now = time.time() if now is None else now
        path = self._path(token)
        try:
            made_at = path.stat().st_mtime
            path.unlink()  # fails for the second of two that come at once
        except OSError:
            return False
        return 0 <= now - made_at <= LINK_S

    def make_cookie(self, key_name: str, now: float | None = None) -> str:
        now = time.time() if now is None else now
        value = {"key": key_name, "until": now + COOKIE_S, "nonce": secrets.token_urlsafe(12)}
        body = base64.urlsafe_b64encode(orjson.dumps(value)).rstrip(b"=").decode()
        return f"{body}.{self._sign('cookie', body)}"

    def read_cookie(self, cookie: str, now: float | None = None) -> Session | None:
        """Return the session of a cookie; None when it is not ours or has expired."""
        now = time.time() if now is None else now
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("cookie", body).encode()):
            return None
        value = orjson.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        if value["until"] < now:
            return None
        return Session(key_name=value["key"], csrf=self._sign("csrf", cookie))

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._secret, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()

    def _path(self, token: str) -> Path:
        return self._folder / f"{hashlib.sha256(token.encode()).hexdigest()}.link"


def _read_secret(path: Path) -> bytes:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
    except FileExistsError:
        pass
    found = path.read_bytes()
    if len(found) != 32:
        raise OSError(f"{path.name} is damaged: remove it")
    return found
