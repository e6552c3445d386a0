"""Which host names mean this machine."""

from __future__ import annotations

import pytest

from store.hosts import is_local_host, is_loopback


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST.", "a.localhost"]
)
def test_these_are_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.2", "evil.example", "localhost.evil.example", ""]
)
def test_these_are_not(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("header", "is_local"),
    [
        ("127.0.0.1:30000", True), ("localhost", True), ("[::1]:30000", True), ("host.docker.internal:30000", True),
        (None, True), ("evil.example:30000", False), ("127.0.0.1.evil.example", False), ("192.168.1.2:30000", False),
    ],
)  # fmt: skip
def test_a_host_header_names_this_machine_or_not(header: str | None, is_local: bool) -> None:
    assert is_local_host(header) is is_local
