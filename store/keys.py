"""Who may talk to the proxy: named keys, of which only hashes are kept.

A key is 32 random bytes, so a plain SHA-256 is right for keeping it: there is nothing to guess that a slow hash (scrypt, argon2) would make
dearer, and a slow one would be paid with every request. The first key, made at the first start, is also kept in a file of its own
(mode 0600), because its owner has to be able to read it again; it is called "default".

`KeyFile` is the list on disk, for the command line. `Keyring` is what a server asks; it sees within a fifth of a second what changed on disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from store.disk import write_whole
from store.errors import ConfigError
from store.policies import SHARED, is_group

log = logging.getLogger(__name__)

DEFAULT = "default"
#: Reserved names.
_RESERVED = frozenset({DEFAULT, "anonymous"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LOOK_S = 0.2


def new_key() -> str:
    """Return a fresh key: 256 random bits."""
    return "patina-" + secrets.token_urlsafe(32)


def read_key_file(path: Path | None) -> str:
    """Return the key that a file holds; "" without a file name.

    Raises:
        ConfigError: the file cannot be read, or is empty: nothing must be open by mistake.
    """
    if path is None:
        return ""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except OSError as exc:
        raise ConfigError(f"the key file {path} cannot be read: {exc.strerror or exc}") from exc
    if not key:
        raise ConfigError(f"the key file {path} is empty")
    return key


def digest_of(key: str | bytes) -> str:
    """Return what is kept of a key."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedKey:
    """One key, as it is kept.

    Attributes:
        trains: turns of its holder may train.
        adapter: the adapter group that it uses and trains; "": the shared policy.
        is_owner: it may see and use what belongs to other keys.
        revoked_at: None while it is accepted.
    """

    name: str
    digest: str
    created_at: float
    trains: bool = True
    adapter: str = SHARED
    is_owner: bool = False
    revoked_at: float | None = None


class KeyFile:
    """The named keys of a home: ``keys.json``, mode 0600."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[NamedKey, ...]:
        """Return all keys, revoked ones too, oldest first. Raises: ConfigError when the file cannot be read."""
        try:
            found: Any = json.loads(self.path.read_text(encoding="utf-8"))
            return tuple(NamedKey(**entry) for entry in found["keys"])
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError, KeyError) as exc:
            raise ConfigError(f"the keys in {self.path} cannot be read: {type(exc).__name__}") from exc

    def add(
        self, name: str, *, trains: bool = True, adapter: str | None = None, is_owner: bool = False
    ) -> str:
        """Make a key for ``name`` and return it: it can never be shown again.

        Args:
            adapter: the adapter group, "" for the shared policy; None: one of its own, which has the key's name.

        Raises:
            ConfigError: a name that cannot be, or that has a key already; or its own adapter is one that other keys share.
        """
        if not _NAME.fullmatch(name) or name in _RESERVED:
            raise ConfigError(
                f"{name!r} cannot be the name of a key: letters, digits, '.', '_' and '-', at most 64, "
                f"and not {' or '.join(sorted(_RESERVED))}"
            )
        if adapter and not is_group(adapter):
            raise ConfigError(
                f"{adapter!r} cannot name an adapter: letters, digits, '.', '_' and '-', at most 64"
            )
        with self._locked():
            keys = self.read()
            if any(key.name == name and key.revoked_at is None for key in keys):
                raise ConfigError(f"{name} has a key already; revoke it first: keys revoke {name}")
            if adapter is None and any(key.adapter == name and key.name != name for key in keys):
                raise ConfigError(f"other keys share an adapter named {name}; to join them: --group {name}")
            key = new_key()
            fresh = NamedKey(
                name=name,
                digest=digest_of(key),
                created_at=time.time(),
                trains=trains,
                adapter=name if adapter is None else adapter,
                is_owner=is_owner,
            )
            self._write((*keys, fresh))
        return key

    def revoke(self, name: str) -> None:
        """Revoke a key. Raises: ConfigError when there is none of that name."""
        with self._locked():
            keys = self.read()
            if not any(key.name == name and key.revoked_at is None for key in keys):
                raise ConfigError(f"there is no key named {name}; see: keys list")
            now = time.time()
            self._write(
                tuple(
                    replace(key, revoked_at=now) if key.name == name and key.revoked_at is None else key
                    for key in keys
                )
            )

    def _write(self, keys: tuple[NamedKey, ...]) -> None:
        write_secret(self.path, json.dumps({"keys": [asdict(key) for key in keys]}, indent=1) + "\n")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = self.path.with_suffix(".lock").open("a")
        except OSError as exc:
            raise ConfigError(f"keys cannot be kept in {self.path}: {exc.strerror or exc}") from exc
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def write_secret(path: Path, text: str) -> None:
    """Replace a file that only its owner may read. Raises: ConfigError."""
    try:
        write_whole(path, text.encode())
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror or exc}") from exc


class Keyring:
    """The keys that are accepted now.

    Args:
        key: the first key; empty: requests need no key.
        key_file: where the first key is kept, if it is: one that is replaced there counts from then on.
        named: the named keys.
    """

    def __init__(self, key: str, *, key_file: Path | None = None, named: KeyFile | None = None) -> None:
        self._key_file = key_file
        self._named = named
        self.is_open = not key
        self.problem: str | None = None
        self._first = NamedKey(name=DEFAULT, digest=digest_of(key), created_at=0.0, is_owner=True)
        self._keys: tuple[NamedKey, ...] = (self._first,)
        self._marks: tuple[Any, ...] | None = None
        self._looked_at = -_LOOK_S

    def holder(self, token: bytes) -> NamedKey | None:
        """Return whose key ``token`` is, or None."""
        return self.of_digest(digest_of(token))

    def of_digest(self, digest: str) -> NamedKey | None:
        """Return the valid key of this digest, or None. Every key is compared, each in constant time."""
        self._look()
        found = None
        for key in self._keys:
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found

    @property
    def first(self) -> NamedKey:
        """Return the owner's first key."""
        self._look()
        return self._first

    @property
    def is_shared(self) -> bool:
        """Whether every key uses the shared policy, so that only one policy is served."""
        return not any(key.adapter for key in self._keys)

    def _look(self) -> None:
        """Read what changed on disk, at most every `_LOOK_S`."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        marks = (_mark(self._key_file), _mark(self._named.path if self._named is not None else None))
        if marks == self._marks:
            return
        try:
            if self._key_file is not None and (text := self._key_file.read_text(encoding="utf-8").strip()):
                self._first = replace(self._first, digest=digest_of(text))
            named = self._named.read() if self._named is not None else ()
        except (OSError, ConfigError) as exc:
            # The earlier keys stay valid until the file changes; `status` shows the error.
            self.problem = str(exc)
            log.error("the keys on disk cannot be read, the last ones known stay: %s", exc)
        else:
            self.problem = None
            self._keys = (self._first, *(key for key in named if key.revoked_at is None))
        self._marks = marks


def _mark(path: Path | None) -> tuple[int, int, int] | None:
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)
