"""What large bodies leave behind is given back."""

from __future__ import annotations

import json
import platform
import threading
from pathlib import Path

import pytest

import proxy.app
from proxy.heap import LARGE_BODY_BYTES, trim_heap
from tests.proxy.conftest import Gateway
from tests.proxy.test_relay import post


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a matter of glibc's heap")
def test_freed_memory_between_live_objects_returns_to_the_system() -> None:
    blocks = [bytes(30_000) for _ in range(4_000)]  # below what is mapped on its own, above a page
    blocks = [block for i, block in enumerate(blocks) if i % 50 == 0]
    holes = resident_mb()
    trim_heap()
    assert resident_mb() < holes - 60
    assert len(blocks) == 80


def test_after_a_large_body_the_heap_is_tidied_up_and_after_small_ones_it_is_not(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidied = threading.Event()
    monkeypatch.setattr(proxy.app, "trim_heap", tidied.set)
    fields = {"scripted": {"text": "x"}, "model": "tiny"}
    for size, is_large in ((10, False), (LARGE_BODY_BYTES, True)):
        body = {**fields, "messages": [{"role": "user", "content": "a" * size}]}
        post(f"{gateway.url}/v1/chat/completions", json.dumps(body).encode())
        assert tidied.wait(10 if is_large else 1.5) is is_large
