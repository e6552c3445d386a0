"""Sign-in: one-time links, sessions and tokens against cross-site requests.

Links and cookies are 256 random bits. The file of each is named by its hash, so that reading the folder opens nothing. The first use removes
a link's file; a session's file holds the digest of the key that signed in, and signing out removes it. So a session ends with its key.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from pathlib import Path

from store.errors import ConfigError

#: Seconds for which a link and a cookie are valid.
LINK_S, COOKIE_S = 600.0, 30 * 86_400.0
#: Sessions that one key may have; the oldest ends first.
_MOST_SESSIONS = 100
COOKIE = "patina_sign_in"


class SignIn:
    """Makes and checks links and cookies.

    Args:
        folder: of the links and sessions; made with mode 0700.

    Raises:
        ConfigError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as exc:
            raise ConfigError(f"sign-in files cannot be kept in {folder}: {exc.strerror or exc}") from exc

    def make_link(self, now: float | None = None) -> str:
        """Return the token of a link that signs its first user in as the owner."""
        now = time.time() if now is None else now
        for old in self._folder.glob("*.link"):
            if now - old.stat().st_mtime > LINK_S:
                old.unlink(missing_ok=True)
        token = secrets.token_urlsafe(32)
        self._write(self._path(token, "link"), "", now)
        return token

    def use_link(self, token: str, now: float | None = None) -> bool:
        """Return whether the token is of a link that is valid and was not used before; the link is used then."""
        now = time.time() if now is None else now
        path = self._path(token, "link")
        try:
            made_at = path.stat().st_mtime
            path.unlink()  # fails for the second of two that come at once
        except OSError:
            return False
        return 0 <= now - made_at <= LINK_S

    def begin(self, key_digest: str, now: float | None = None) -> str:
        """Return the cookie of a new session of a key. Raises: OSError: it cannot be kept."""
        now = time.time() if now is None else now
        found = []
        for old in self._folder.glob("*.session"):
            with contextlib.suppress(FileNotFoundError):  # signed out meanwhile
                began_at, is_same = old.stat().st_mtime, old.read_text() == key_digest
                if not 0 <= now - began_at <= COOKIE_S:
                    old.unlink()
                elif is_same:
                    found.append((began_at, old))
        for _, old in sorted(found)[: max(0, len(found) - _MOST_SESSIONS + 1)]:
            old.unlink(missing_ok=True)
        cookie = secrets.token_urlsafe(32)
        self._write(self._path(cookie, "session"), key_digest, now)
        return cookie

    def key_of(self, cookie: str, now: float | None = None) -> str | None:
        """Return the digest of the key that a session belongs to; None: there is none, or it has ended."""
        now = time.time() if now is None else now
        path = self._path(cookie, "session")
        try:
            began_at, key_digest = path.stat().st_mtime, path.read_text()
        except OSError:
            return None
        return key_digest if 0 <= now - began_at <= COOKIE_S else None

    def end(self, cookie: str) -> None:
        """End a session: its cookie opens nothing from now on."""
        self._path(cookie, "session").unlink(missing_ok=True)

    def _write(self, path: Path, text: str, now: float) -> None:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        os.utime(path, (now, now))

    def _path(self, token: str, kind: str) -> Path:
        return self._folder / f"{hashlib.sha256(token.encode()).hexdigest()}.{kind}"


def form_token(cookie: str) -> str:
    """Return what the forms of a session send back: only who knows its cookie can."""
    return hashlib.sha256(f"patina-form:{cookie}".encode()).hexdigest()
