"""A small Tinker server as a process of its own, and what trains on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.tinker.service import base_model
from store.settings import Settings, read_settings
from tests.tinker.running import SkyrlServer, TinkerServer
from trainer.tinker.capabilities import find_capabilities
from trainer.tinker.link import TinkerConnection
from trainer.tinker.policy import TinkerPolicy

Make = Callable[..., TinkerPolicy]


@pytest.fixture(scope="package")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerServer]:
    """One that knows all that Tinker's documents promise."""
    made = TinkerServer(tiny_model, tmp_path_factory.mktemp("tinker"), more=["--logprobs", "raw"])
    yield made.start()
    made.stop()


@pytest.fixture(scope="package")
def poor_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerServer]:
    """One that tells the log-probabilities of single tokens only, and samples' after temperature."""
    made = TinkerServer(tiny_model, tmp_path_factory.mktemp("poor"), more=["--lacks", "top_logprobs"])
    yield made.start()
    made.stop()


def settings_of(server: TinkerServer | SkyrlServer, home: Path, **given: Any) -> Settings:
    return read_settings(
        {
            "backend": "tinker",
            "tinker_base_url": server.url,
            "model_name": server.name,
            "served_model_name": "patina-tiny",
            "home": home,
            "learning_rate": 1e-4,
            "seed": 3,
            "threads": 1,
            **given,
        }
    )


@pytest.fixture
def make_policy(tmp_path: Path) -> Iterator[Make]:
    """A policy on a server, as the trainer makes it."""
    links = []

    def make(server: TinkerServer, **given: Any) -> TinkerPolicy:
        settings = settings_of(server, tmp_path / "home", **given)
        link = TinkerConnection(settings)
        links.append(link)
        name, context = base_model(settings)
        policy = TinkerPolicy(settings, link, name, context)
        policy.abilities = find_capabilities(link, settings, name, policy.training())
        return policy

    yield make
    for link in links:
        link.drop()
