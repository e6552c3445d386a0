"""Who a request is from, by where its key or credentials stand."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from proxy.auth import authenticate
from store.keys import KeyFile, Keyring

KEY = "s3cret"


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer s3cret")],
        [(b"authorization", b"bearer s3cret ")],
        [(b"x-api-key", b"s3cret")],
        [(b"api-key", b"s3cret")],
        [(b"x-patina-key", b"s3cret"), (b"authorization", b"Bearer theirs")],
    ],
)
def test_the_key_is_taken_from_where_clients_put_it(headers: Any) -> None:
    principal = authenticate(headers, KEY)
    assert principal is not None
    assert principal.key_name == "default"


@pytest.mark.parametrize("headers", [[], [(b"authorization", b"Bearer nope")], [(b"authorization", b"Basic s3cret")], [(b"x-api-key", b"\xff")]])  # fmt: skip
def test_a_missing_or_wrong_key_is_nobody(headers: Any) -> None:
    assert authenticate(headers, KEY) is None


def test_without_a_key_everybody_is_anonymous() -> None:
    principal = authenticate([(b"authorization", b"Bearer whatever"), (b"user-agent", b"X/1")], "")
    assert principal is not None
    assert (principal.key_name, principal.client) == ("anonymous", "X/1")


#: Header of a request, and whether it makes an owner where the backend's own credentials pass: (open home, home with a key).
_THEIRS = b"Bearer theirs"
CALLERS: dict[str, tuple[list[tuple[bytes, bytes]], bool | None, bool | None]] = {
    "nothing": ([], False, None),
    "their credentials": ([(b"authorization", _THEIRS)], False, None),
    "basic credentials": ([(b"authorization", b"Basic " + base64.b64encode(b"a:s3cret"))], False, None),
    "the key as basic credentials": ([(b"authorization", b"Basic s3cret")], False, None),
    "our key": ([(b"x-patina-key", b"s3cret")], False, True),
    "both": ([(b"x-patina-key", b"s3cret"), (b"authorization", _THEIRS)], False, True),
    "a wrong key": ([(b"x-patina-key", b"s3creT")], False, None),
}


@pytest.mark.parametrize("who", CALLERS)
def test_where_credentials_pass_nobody_is_an_owner_without_the_key(who: str) -> None:
    headers, *expected = CALLERS[who]
    for key, is_owner in zip(("", KEY), expected, strict=True):
        found = authenticate(headers, Keyring(key), passes_credentials=True)
        assert (None if found is None else found.is_owner) is is_owner
        if found is not None and not is_owner:
            assert found.key_name == "anonymous" or found.key_name.startswith("caller-")


def test_different_credentials_are_different_people_and_one_is_always_the_same() -> None:
    tokens = [b"Bearer one", b"Bearer two", b"bearer one"]
    found = [authenticate([(b"authorization", one)], "", passes_credentials=True) for one in tokens]
    one, two, again = (person.key_name for person in found if person is not None)
    assert one != two
    assert one == again
    assert "one" not in one.removeprefix("caller-")


def test_our_own_field_comes_first_and_only_beside_it_credentials_pass(tmp_path: Path) -> None:
    """A key of ours in the field of the backend's credentials must not be sent to the backend."""
    file = KeyFile(tmp_path / "keys.json")
    ring = Keyring(KEY, named=file)
    ann = file.add("ann").encode()
    for headers, name, passes in (
        ([(b"authorization", b"Bearer " + ann), (b"x-patina-key", KEY.encode())], "default", True),
        ([(b"x-patina-key", ann), (b"authorization", b"Bearer s3cret")], "ann", True),
        ([(b"authorization", b"Bearer " + ann)], "ann", False),
        ([(b"x-api-key", ann)], "ann", False),
    ):
        found = authenticate(headers, ring, passes_credentials=True)
        assert found is not None
        assert (found.key_name, found.passes_credentials) == (name, passes)
