"""Several keys on a whole Patina: what one of them is taught changes nothing that another is served."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import openai
import pytest

from lab.bench.people import Person, live_versions, probe, react, settle
from lab.evals.stack import Stack
from store.keys import KeyFile
from store.settings import read_settings
from tests.fixtures import PATINA_TINY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long_run,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(
        not (PATINA_TINY / "model.safetensors").exists(), reason="the test model is not there"
    ),
]


def test_complaints_of_one_key_change_no_reply_of_another_to_the_last_bit(tmp_path: Path) -> None:
    """The attempt to poison: before keys had policies, it changed what every key was served within 67 s."""
    with Stack(read_settings({"max_wait_s": 2.0}), home=tmp_path / "home") as stack:
        file = KeyFile(stack.home / "keys.json")
        keys = {
            "ann": file.add("ann"),
            "bob": file.add("bob"),
            "eve": file.add("eve", adapter=""),
            "default": stack.key,
        }
        people = {
            name: Person(
                name=name,
                wish="spanish",
                client=openai.OpenAI(base_url=stack.base_url, api_key=key, timeout=600),
            )
            for name, key in keys.items()
        }
        before = {name: probe(person) for name, person in people.items()}
        assert before["ann"][1] < 0.3
        complaints = sum(react(people["ann"], seed) for seed in range(4))
        assert complaints >= 1  # from then on the wish is in the prompt
        settle(stack)
        assert live_versions(stack.status())["patina-tiny.ann"] >= 1
        after = {name: probe(person) for name, person in people.items()}
        assert after["ann"][1] > before["ann"][1] + 0.3
        for name in ("bob", "eve", "default"):
            assert after[name] == before[name]
        url = f"file:{stack.home / 'patina.db'}?mode=ro"
        with contextlib.closing(sqlite3.connect(url, uri=True)) as record:
            trained = record.execute("SELECT DISTINCT policy FROM turn_states WHERE stage = 'trained'")
            assert trained.fetchall() == [("patina-tiny.ann",)]
