"""Authentication of a request by its API key. Sans-IO."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from proxy.client_names import client_from_headers
from store.hashing import digest
from store.policies import SHARED
from wire.headers import Headers


@dataclass(slots=True, kw_only=True)
class Principal:
    """An authenticated client.

    Attributes:
        key_name: name of the key; keeps the turns of different keys apart in the record.
        trains: turns of this key may train.
        adapter: the adapter group of this key; "": the shared policy.
        is_owner: this key may see and use what belongs to other keys.
        passes_credentials: its own credentials are forwarded to the backend.
    """

    key_name: str
    client: str
    trains: bool = True
    adapter: str = SHARED
    is_owner: bool = False
    passes_credentials: bool = False


class KeyHolder(Protocol):
    """The owner of a key."""

    @property
    def name(self) -> str: ...

    @property
    def trains(self) -> bool: ...

    @property
    def adapter(self) -> str: ...

    @property
    def is_owner(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Holder:
    name: str
    trains: bool = True
    adapter: str = SHARED
    is_owner: bool = True


#: The holder of the only key.
_FIRST = _Holder("default")


class KeyStore(Protocol):
    """Looks up API keys (`store.keys.Keyring`)."""

    @property
    def is_open(self) -> bool:
        """Whether no key is required."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether every key uses the shared policy."""
        ...

    def holder(self, token: bytes) -> KeyHolder | None: ...


def authenticate(
    headers: Headers, keys: KeyStore | str, *, passes_credentials: bool = False
) -> Principal | None:
    """Return the client's principal, or None when the key is missing or wrong.

    Args:
        keys: the key store, or the only key; "": no key is required.
        passes_credentials: the backend checks the client's own credentials; Patina's key then comes as `x-patina-key`.
    """
    headers = tuple(headers)
    client = client_from_headers(headers)
    tokens = [(name, token) for name, token in _tokens(headers) if token]
    if isinstance(keys, str) or not keys.is_open:
        for name, token in tokens:
            holder = _holder(keys, token)
            if holder is not None:
                return Principal(
                    key_name=holder.name,
                    client=client,
                    trains=holder.trains,
                    adapter=holder.adapter,
                    is_owner=holder.is_owner,
                    passes_credentials=passes_credentials and name == b"x-patina-key",
                )
        if keys:
            return None
    key_name = "anonymous"
    theirs = next((token for name, token in tokens if name != b"x-patina-key"), None)
    if passes_credentials and theirs is not None:
        # Different credentials are different users. Only this digest of a credential is stored.
        key_name = f"caller-{digest('patina-caller', theirs.decode('latin-1'))[:12]}"
    # Where no key is required everyone may see everything, unless they come with credentials of their own.
    is_owner = key_name == "anonymous" and not passes_credentials
    return Principal(
        key_name=key_name, client=client, is_owner=is_owner, passes_credentials=passes_credentials
    )


def _holder(keys: KeyStore | str, token: bytes) -> KeyHolder | None:
    if isinstance(keys, str):
        return _FIRST if keys and hmac.compare_digest(token, keys.encode()) else None
    return keys.holder(token)


def _tokens(headers: Headers) -> Iterator[tuple[bytes, bytes]]:
    """Yield possible keys with the field they came in."""
    for wanted in (b"x-patina-key", b"authorization", b"x-api-key", b"api-key"):
        for name, value in headers:
            if name.lower() == wanted:
                scheme, _, token = value.strip().partition(b" ")
                if wanted != b"authorization":
                    yield wanted, value.strip()
                elif scheme.lower() == b"bearer":
                    yield wanted, token.strip()
                break
