from __future__ import annotations

import socket

import pytest

from serving.ports import bind, free_port, listen
from store.errors import ConfigError


def test_a_bound_port_refuses_until_it_listens() -> None:
    listener = bind("127.0.0.1", 0, option="--port")
    with listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=60)
        assert listen(listener, backlog=4, option="--port") == ("127.0.0.1", port)
        socket.create_connection(("127.0.0.1", port), timeout=60).close()


def test_the_error_for_a_taken_port_names_the_flag_that_changes_it() -> None:
    with bind("127.0.0.1", 0, option="--port") as first:
        port = listen(first, backlog=1, option="--port")[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} .*another --proxy-port"):
            bind("127.0.0.1", port, option="--proxy-port")


def test_a_free_port_is_reserved_for_a_server_that_starts_later() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with bind("127.0.0.1", port, option="--port") as listener:
        assert listen(listener, backlog=1, option="--port") == ("127.0.0.1", port)


def test_only_the_newest_free_ports_are_reserved() -> None:
    first = free_port()
    for _ in range(64):
        free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", first))
