"""OpenClaw from its package: an agent turn, feedback of two people, a version that goes live, background runs marked as side turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.backend import ClientBackend
from tests.clients.openclaw_gateway import OTHER, OWNER, OpenClaw, running_openclaw
from tests.clients.telegram import TOKEN, BotApi, running_bot_api
from tests.proxy.conftest import Gateway, run_gateway_at
from tests.proxy.upstream import running

pytestmark = [pytest.mark.slow, pytest.mark.clients, pytest.mark.long_run, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def stack(
    empty_record: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Gateway, BotApi, OpenClaw]]:
    folder = tmp_path_factory.mktemp("openclaw")
    record_file = folder / "patina.db"
    record_file.write_bytes(empty_record.read_bytes())
    backend = ClientBackend()
    with (
        running(backend) as url,
        run_gateway_at(url, backend, record_file) as gateway,
        running_bot_api() as bot_api,
        running_openclaw(folder, gateway.url, bot_api.url, TOKEN) as program,
    ):
        yield gateway, bot_api, program


def test_try(stack: tuple[Gateway, BotApi, OpenClaw]) -> None:
    gateway, bot, program = stack
    print(bot.converse(OWNER, "What is the capital of Norway?"))
    print(bot.converse(OWNER, "/feedback answer shorter"))
    print(bot.texts, bot.methods)
    for row in gateway.rows(1):
        print(row["kind"], row["kind_reason"], row["turn_id"], row["completion"])
    print((program.state.parent / "gateway.log").read_text()[-3000:])
    assert 0
