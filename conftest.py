"""Fixtures that several packages share, the model of the tests, and the Hypothesis profiles."""

from __future__ import annotations

import os
import resource
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from migrations import upgrade
from store.record import Record
from tests.fixtures import PATINA_TINY
from tests.tiny import make_tiny_adapter, make_tiny_model

# The model of every test that chooses no other, in this process and in those that tests start, with the settings that suit its size. It does
# not follow a judge's instructions.
os.environ |= {
    "MODEL_NAME": str(PATINA_TINY),
    "LEARNING_RATE": "5e-3",
    "PATINA_JUDGE": "none",
}

# No property depends on the clock: the tests share a busy machine with training runs. In CI the examples are Hypothesis's fixed ones.
hypothesis_settings.register_profile(
    "tests", hypothesis_settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.register_profile("quick", hypothesis_settings.get_profile("tests"), max_examples=10)
hypothesis_settings.register_profile("local", hypothesis_settings.get_profile("tests"), max_examples=30)
hypothesis_settings.load_profile("tests")


#: Files that take longest, longest first (`--durations`): one that begins at the end keeps the other workers waiting.
LONGEST = (
    "tests/e2e/test_readme.py", "tests/e2e/test_loop.py", "tests/e2e/test_wheel.py", "tests/contract/test_contract.py", "tests/clients/test_clients.py",
    "tests/clients/test_frameworks.py", "tests/trainer/test_worker.py", "lab/tests/evals/test_experiment.py", "tests/trainer/test_version_trainer.py",
    "tests/trainer/tinker/test_worker.py", "tests/e2e/test_bad_input.py", "tests/e2e/test_store_in_trouble.py", "tests/trainer/remote/test_remote_training.py",
    "tests/proxy/test_record_outage.py", "tests/trainer/test_gate.py", "tests/trainer/test_worker_policies.py", "tests/dashboard/test_app.py",
    "tests/trainer/tinker/test_version_trainer.py", "tests/proxy/test_completions.py", "tests/trainer/tinker/test_step.py", "tests/proxy/test_main.py",
    "tests/proxy/test_malformed_traffic.py", "tests/proxy/test_relay.py",
)  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the files by how long they take; where workers share them, each takes the next one."""
    order = {config.rootpath / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--max-cpu-s", type=float, default=None, help="fail a test whose call uses more CPU time (make check)"
    )


def _cpu_s() -> float:
    """The CPU time of this process and of its finished children, which a busy machine does not lengthen as it does wall time."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@pytest.fixture(scope="session", autouse=True)
def _hypothesis_tables() -> None:
    """Let Hypothesis read our sources for constants: 2 s of CPU time in a fresh clone, which is no test's own."""

    @hypothesis_settings(max_examples=1)
    @given(st.from_regex("[a-z]"))
    def draw(_: str) -> None:
        pass

    draw()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Keep the quick tier quick: fixtures, often shared, do not count."""
    limit: float | None = item.config.getoption("--max-cpu-s")
    before = _cpu_s()
    yield
    used = _cpu_s() - before
    if limit is not None and used > limit:
        pytest.fail(f"used {used:.1f} s of CPU time, quick tests may use {limit:g} s", pytrace=False)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random Qwen3 with its tokenizer."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def tiny_adapters(tiny_model: Path) -> tuple[Path, Path]:
    """Two adapters of the tiny model that change its greedy outputs, of different rank."""
    folder = tiny_model.parent
    return (
        make_tiny_adapter(folder / "one", tiny_model, 1, rank=4),
        make_tiny_adapter(folder / "two", tiny_model, 2, rank=8),
    )


@pytest.fixture
def record_url(tmp_path: Path) -> str:
    """A fresh, migrated SQLite record."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'patina.db'}"
    upgrade(url)
    return url


@pytest_asyncio.fixture
async def record(record_url: str) -> AsyncIterator[Record]:
    opened = await Record.open(record_url)
    yield opened
    await opened.close()
