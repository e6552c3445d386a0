"""The README is correct: its commands run, its snippet works against a running stack, its query has its columns."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from cli.arguments import build_parser, given_settings
from lab.evals.client import NO_TRAINING
from lab.evals.stack import Stack
from serving.ports import free_port
from store.schema import TRAJECTORY_COLUMNS
from store.settings import REPOSITORY, child_environment, read_settings
from tests.waiting import recorded as until_recorded
from tests.waiting import until

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
SHELL = [
    line.split("#")[0].strip()
    for kind, block in BLOCKS
    if kind == "sh"
    for line in block.splitlines()
    if line.strip()
]
RUN = [shlex.split(line)[1:] for line in SHELL if "run.py" in line]
#: Commands for a running stack; the test below runs them against one. The rest start a stack of their own.
STEERING = [argv for argv in RUN if len(argv) > 1 and not argv[1].startswith("-")]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(
        read_settings({"batch_size": 2, "max_wait_s": 1.0}), home=tmp_path_factory.mktemp("stack")
    ) as stack:
        yield stack


def test_the_two_commands_of_the_start_are_the_makefiles() -> None:
    targets = set(
        re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    named = {line.split()[1] for line in SHELL if line.startswith("make ")}
    assert named == {"run", "test", "test-all"} <= targets
    assert "exec make test-all" in (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")


def test_the_makefile_starts_what_the_readme_says() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "run"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert "run.py --method combine" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not (Path(sys.prefix) / ".installed").exists(),
    reason="these tests do not run in an environment that make made",
)
def test_make_run_prints_a_snippet_that_answers_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    home = tmp_path / "home"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["make", "run", f"VENV={sys.prefix}", f"ARGS=--home={home} --proxy-port={free_port()}"],
            cwd=REPOSITORY,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal gives Ctrl-C to all of them
        )
    try:
        until(
            lambda: process.poll() is not None or "stop with Ctrl-C" in log.read_text(encoding="utf-8"),
            "the start",
        )
        text = log.read_text(encoding="utf-8")
        assert process.poll() is None, text
        base_url = re.search(r"http://127\.0\.0\.1:\d+/v1", text)
        key = re.search(r'api_key="([^"]+)"', text)
        assert base_url, text
        assert key, text
        with OpenAI(base_url=base_url[0], api_key=key[1], max_retries=8) as client:
            model = client.models.list().data[0].id
            reply = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "What is the capital of France?"}]
            )
        assert reply.choices[0].message.content
        until_recorded(home)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(120)
    with sqlite3.connect(home / "patina.db") as connection:
        ((recorded,),) = connection.execute("SELECT count(*) FROM trajectories WHERE completion <> ''")
    assert recorded == 1


@pytest.mark.parametrize("argv", RUN, ids=" ".join)
def test_every_run_py_line_is_a_command_line_that_is_understood(argv: list[str]) -> None:
    arguments = build_parser().parse_args(argv[1:])
    assert read_settings(given_settings(arguments))


def test_every_document_and_file_the_readme_links_to_is_there() -> None:
    links = [target for target in re.findall(r"\]\(([^)]+)\)", README) if not target.startswith("http")]
    assert links
    assert [target for target in links if not (REPOSITORY / target).exists()] == []


def test_the_query_of_the_readme_names_columns_that_exist() -> None:
    (query,) = [block for kind, block in BLOCKS if kind == "sql"]
    named = set(re.findall(r"\b[a-z_]+\b", query.replace("trajectories", "").replace("main", "")))
    assert named <= set(TRAJECTORY_COLUMNS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_snippet_and_the_commands_work_against_a_running_stack(stack: Stack, tmp_path: Path) -> None:
    (snippet,) = [block for kind, block in BLOCKS if kind == "python"]
    assert 'base_url="http://127.0.0.1:30000/v1"' in snippet
    code = snippet.replace("http://127.0.0.1:30000/v1", stack.base_url)
    code = re.sub(r'api_key="[^"]*"', f'api_key="{stack.key}"', code)
    program = tmp_path / "snippet.py"
    for _ in range(3):
        program.write_text(code, encoding="utf-8")
        done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    connection = sqlite3.connect(until_recorded(stack.home))
    (query,) = [block for kind, block in BLOCKS if kind == "sql"]
    answered = [row for row in connection.execute(query) if row[3] is not None]
    connection.close()
    assert {row[3] for row in answered} == {"Shorter, please."}
    until(lambda: stack.status()["live"], "a version going live", 240)

    def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *argv, "--home", str(stack.home)],
            cwd=REPOSITORY,
            env=child_environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    for argv in STEERING:
        if argv[1] in ("demo", "eval"):
            continue  # have tests of their own
        done = run(argv)
        if argv[1] == "status" and done.returncode == 1:
            # a recorder without processor time for five seconds counts as stopped
            done = until(lambda: (one := run(["run.py", "status"])).returncode == 0 and one, "a good status")
        assert done.returncode == 0, (argv, done.stdout, done.stderr)
        assert done.stdout.strip()


def test_a_request_may_opt_out_with_the_header_the_readme_names() -> None:

    (name,) = NO_TRAINING
    assert f"`{name}: {NO_TRAINING[name]}`" in README
