"""The demo: what it counts and says, its end for every outcome, and one run on a real system."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from cli import demo
from serving.ports import free_port
from store.errors import ConfigError
from store.examples import HELD_OUT
from store.settings import REPOSITORY, child_environment, read_settings
from store.values import Json
from tests.fixtures import PATINA_TINY
from tests.proxy.upstream import free_socket, running
from tests.waiting import until

POLICY = "some-model"
IDLE: Json = {"last_step": None, "live": {}, "stages": {}, "drop_reasons": {}, "processes": {}}


def test_replies_are_compared_by_words_and_about_equal_ones_count_for_neither() -> None:
    found = demo.compare(["a b c d", "a " * 20, "a", "a b c"], ["a b", "a " * 19, "a b c", "a"])
    assert {name: found[name] for name in ("n", "shorter", "longer", "learned")} == {
        "n": 4, "shorter": 2, "longer": 1, "learned": False,
    }  # fmt: skip
    assert (found["words_before"], found["words_now"]) == (7.0, 6.25)
    assert demo.sentence(found) == (
        "It did not learn it yet: of 4 replies 2 are clearly shorter than before and 1 longer; 7 words on average before, 6 now."
    )


@pytest.mark.parametrize(
    ("now", "learned"), [(["a"] * 3, True), (["a", "a", "a b"], True), (["a", "a b", "a b"], False)]
)
def test_more_than_half_of_the_replies_must_be_shorter(now: list[str], learned: bool) -> None:
    found = demo.compare(["a b"] * 3, now)
    assert found["learned"] is learned
    assert demo.sentence(found).startswith("It learned it: " if learned else "It did not learn it yet: ")


def test_two_replies_stand_beside_each_other_within_the_width_and_a_long_one_is_cut() -> None:
    shown = demo.side_by_side("Why?", "many words " * 200, "few", 80).splitlines()
    assert shown[0] == "  Why?"
    assert shown[1].split() == ["before,", "400", "words", "|", "now,", "1", "word"]
    assert shown[3].endswith("| few")
    assert max(map(len, shown)) <= 80
    assert len(shown) <= 18
    assert "…" in shown[-1]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, ""),
        ({"last_step": {"error": "version 1 was rejected: facts"}}, "version 1 was rejected: facts"),
        ({"drop_reasons": {"opted_out": 6, "no_signal": 2}}, ""),
        ({"drop_reasons": {"opted_out": 6, "no_signal": 3, "stale": 1}}, "the complaints were not used: 3 no_signal, 1 stale"),
        ({"drop_reasons": {"no_signal": 4}, "stages": {"claimed": 4}}, ""),
    ],
)  # fmt: skip
def test_why_there_is_no_version_is_said_once_there_can_be_none(more: Json, why: str) -> None:
    assert demo.why_none(IDLE | more) == why


class Scripted:
    """A gateway whose replies to held-out questions are short once a version is live.

    Attributes:
        trained: whether each chat request may train.
    """

    def __init__(self, **after: Any) -> None:
        self.trained: list[bool] = []
        self._after = after
        self._looks = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/v1/chat/completions":
            self.trained.append((b"x-patina-train", b"on") in scope["headers"])
            content = "short" if self._looks else "a much longer reply"
            found: Json = {"choices": [{"message": {"content": content}}]}
        else:
            self._looks += 1
            found = IDLE | (self._after if self._looks > 1 else {"stages": {"scored": 4}})
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": orjson.dumps(found)})


@contextmanager
def scripted(home: Path, gateway: Scripted) -> Iterator[demo._Patina]:
    settings = read_settings({"home": home, "served_model_name": POLICY, "proxy_port": free_port()})
    (home / "run").mkdir()
    settings.dump(home / "run" / "settings.json")
    with running(gateway, free_socket(settings.proxy_port)):
        yield demo._Patina(home)


def test_a_version_that_goes_live_is_compared_and_the_held_out_questions_train_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = Scripted(live={POLICY: 1})
    with scripted(tmp_path, gateway) as patina:
        result = demo._show(patina)
    assert (result["learned"], result["shorter"], result["n"]) == (True, len(HELD_OUT), len(HELD_OUT))
    assert (gateway.trained.count(False), gateway.trained.count(True)) == (2 * len(HELD_OUT), 8)
    shown = capsys.readouterr().out
    assert demo.sentence(result) in shown
    assert "rollback 0" in shown


@pytest.mark.parametrize(
    "after",
    [{"last_step": {"error": "version 1 was rejected: facts"}}, {"drop_reasons": {"no_signal": 4}}],
)
def test_without_a_version_the_demo_says_why_and_compares_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], after: Json
) -> None:
    with scripted(tmp_path, Scripted(**after)) as patina:
        result = demo._show(patina)
    assert (result["learned"], result["version"]) == (False, 0)
    assert f"No version went live, and nothing changed: {result['why_not']}" in capsys.readouterr().out
    assert "n" not in result


def test_a_version_that_does_not_come_ends_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_VERSION_S", 0.5)
    with scripted(tmp_path, Scripted()) as patina:
        version, why = demo._wait_for_version(patina)
    assert version == 0
    assert why.startswith("none was made in ")


def test_an_endpoint_that_does_not_learn_is_refused(tmp_path: Path) -> None:
    settings = read_settings({"home": tmp_path, "upstream": "https://api.example/v1"})
    with pytest.raises(ConfigError, match="alone does not learn"):
        demo.run_demo(settings, argparse.Namespace(json=None))


def test_a_patina_that_does_not_start_ends_the_demo_with_its_own_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    given = argparse.Namespace(json=None, model_name=str(tmp_path / "no-model"))
    with pytest.raises(ConfigError, match=r"did not start: .*no-model"):
        demo.run_demo(read_settings({"model_name": given.model_name}), given)
    assert list(tmp_path.iterdir()) == []


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    (folder / "tmp").mkdir()
    return subprocess.Popen(
        [sys.executable, "run.py", "--model-name", str(PATINA_TINY), "--served-model-name", POLICY, "demo", *flags],
        cwd=REPOSITORY, env=child_environment(TMPDIR=str(folder / "tmp")), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_on_a_real_system_ends_with_what_happened_and_leaves_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, f"--json={tmp_path / 'demo.json'}")
    shown, _ = process.communicate(timeout=550)
    result = json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))
    assert process.returncode == (0 if result["learned"] else 1), shown
    assert result["model"] == POLICY
    if result["version"]:
        assert demo.sentence(result) in shown
        assert f"{POLICY} without adapter is live" in shown.partition("Undo:")[2]
    else:
        assert result["why_not"] in shown
    assert list((tmp_path / "tmp").glob("patina-demo-*")) == []


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_and_what_it_started(tmp_path: Path) -> None:
    process = start(tmp_path)
    until(lambda: list((tmp_path / "tmp").glob("patina-demo-*/run/lock")), "the start")
    (lock,) = (tmp_path / "tmp").glob("patina-demo-*/run/lock")
    until(lock.read_text, "the lock's process")
    supervisor = int(lock.read_text())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert process.returncode == 130
    assert list((tmp_path / "tmp").glob("patina-demo-*")) == []
    with pytest.raises(ProcessLookupError):
        os.kill(supervisor, 0)
