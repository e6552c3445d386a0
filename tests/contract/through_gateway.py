"""A gateway in front of a backend of the contract, with a record of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai

from migrations import upgrade
from proxy.app import Proxy
from store.journal import JournalWriter
from store.keys import Keyring
from store.record import Record
from tests.contract.backends import POLICY, Backend
from tests.proxy.conftest import KEY, Gateway, running_recorder
from tests.proxy.upstream import running


@dataclass
class Clients:
    """The official SDKs, which refuse a reply that their types do not accept, and the record."""

    openai: openai.OpenAI
    claude: anthropic.Anthropic
    gateway: Gateway

    def turn(self, api_id: str) -> dict[str, Any]:
        """Return the recorded turn of a reply, by the reply's id."""
        turn_id = f"turn_{api_id.partition('_')[2]}"
        return next(row for row in self.gateway.rows(1) if row["turn_id"] == turn_id)


@contextmanager
def clients_of(backend: Backend, folder: Path, keys: Keyring | str = KEY) -> Iterator[Clients]:
    url = f"sqlite+aiosqlite:///{folder / 'patina.db'}"
    upgrade(url)
    proxy = Proxy(
        backend=backend.engine(),
        policy=POLICY,
        open_record=lambda: Record.open(url),
        keys=keys,
        is_local=True,
        journal=JournalWriter(folder / "journal", "gateway"),
        backend_wait_s=120.0,
        read_wish_place=lambda: "behind",
    )
    with (
        running_recorder(folder / "journal", url),
        running(proxy) as address,
        httpx.Client(verify=False, timeout=300) as plain,
        anthropic.Anthropic(
            base_url=address, api_key=KEY, max_retries=0, timeout=300, _strict_response_validation=True
        ) as claude,
    ):
        client = openai.OpenAI(
            base_url=f"{address}/v1",
            api_key=KEY,
            max_retries=0,
            http_client=plain,
            _strict_response_validation=True,
        )
        gateway = Gateway(address, None, backend.url, url, proxy, client, folder / "journal")
        yield Clients(client, claude, gateway)
