"""Python frameworks and programs from their packages: the conversation of `test_clients`, and the requests that they send on their own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.backend import ClientBackend
from tests.clients.packages import pip, run
from tests.clients.test_clients import HERE, TEXTS, check_record
from tests.proxy.conftest import KEY, Gateway, run_gateway_at, score
from tests.proxy.upstream import running

#: One environment: their requirements agree, and most of what they need is the same.
LIGHT = (
    "autogen-agentchat==0.7.5",
    "autogen-ext[openai]==0.7.5",
    "instructor==1.17.0",
    "langchain==1.5.2",
    "langchain-openai==1.7.4",
    "litellm==1.110.2",
    "llm==0.36",
    "smolagents[openai]==1.26.0",
)
#: These do not install beside the others.
MEMORY = ("llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1", "mem0ai==2.2.1")

CREWAI = ("crewai==1.15.30",)
AIDER = ("aider-chat==0.86.2",)
GPTME = ("gptme==0.35.1",)

pytestmark = [pytest.mark.slow, pytest.mark.clients, pytest.mark.timeout(900)]


@contextmanager
def client_gateway(record_file: Path, *replies: tuple[str, str]) -> Iterator[Gateway]:
    """Run a gateway before a backend that knows these replies."""
    backend = ClientBackend(replies)
    with running(backend) as url, run_gateway_at(url, backend, record_file) as gateway:
        yield gateway


def run_script(
    packages: tuple[str, ...], name: str, gateway: Gateway, folder: Path, **environment: str
) -> str:
    command = [str(pip(*packages)), str(HERE / f"{name}_client.py"), gateway.url, KEY]
    return run(command, folder, HOME=str(folder), **environment)


def rows_of(gateway: Gateway, at_least: int, part: str) -> list[dict[str, Any]]:
    """Return the turns whose newest message contains a text."""
    return [row for row in gateway.rows(at_least) if part in json.dumps(row["messages"][-1])]


# ---- light ones, which CI runs


def test_litellm(record_file: Path, tmp_path: Path) -> None:
    with client_gateway(record_file) as gateway:
        printed = run_script(LIGHT, "litellm", gateway, tmp_path)
        # LiteLLM prints its own advice between the two.
        assert "beyond the context\n" in printed
        assert printed.endswith("a wrong key is recognised\n")
        check_record(gateway, "chat", others=1)


def test_langchain(record_file: Path, tmp_path: Path) -> None:
    with client_gateway(record_file) as gateway:
        printed = run_script(LIGHT, "langchain", gateway, tmp_path)
        assert printed.endswith("title='Oslo'\nbeyond the context\n")
        check_record(gateway, "chat", sides=1, others=1)


def test_llm(record_file: Path, tmp_path: Path) -> None:
    """Its command line: each turn is a process of its own."""
    program = str(pip(*LIGHT).with_name("llm"))
    weather = 'def weather(city: str) -> str:\n    return f"5 degrees in {city}"'
    with client_gateway(record_file) as gateway:
        (tmp_path / "extra-openai-models.yaml").write_text(
            f"- {{model_id: tiny, model_name: tiny, api_base: '{gateway.url}/v1', supports_tools: true, api_key_name: patina}}"
        )
        for number, text in enumerate(TEXTS):
            how = ["--continue"] if number else ["--model", "tiny", "--functions", weather]
            run([program, *how, "--key", KEY, text], tmp_path, LLM_USER_PATH=str(tmp_path))
        check_record(gateway, "chat")


def test_smolagents(record_file: Path, tmp_path: Path) -> None:
    """It ends each task with a tool; its plan before the third one is a side turn."""
    with client_gateway(record_file) as gateway:
        run_script(LIGHT, "smolagents", gateway, tmp_path)
        check_record(gateway, "chat", sides=1, end=json.dumps("\n\n  as you  wish. ")[1:] + "\n}")


def test_autogen(record_file: Path, tmp_path: Path) -> None:
    """The selection of a speaker, and its repetition, are side turns, and what one agent says to another is no person's."""
    with client_gateway(record_file, ("^No valid name was mentioned", "writer")) as gateway:
        printed = run_script(LIGHT, "autogen", gateway, tmp_path)
        assert printed.endswith("['user', 'writer', 'critic']\n")
        check_record(gateway, "chat", sides=3, others=1)
        [selection] = rows_of(gateway, 8, "Only return the role")
        assert (selection["kind"], selection["verdict"]) == ("side", None)


def test_instructor(record_file: Path, tmp_path: Path) -> None:
    """A conversation in objects is one of main turns; an extraction, which has the same form, and its repetition have no verdict."""
    with client_gateway(record_file) as gateway:
        run_script(LIGHT, "instructor", gateway, tmp_path)
        gateway.rows(5)
        gateway.in_record(score)
        rows = gateway.rows(5)
        assert [row["kind"] for row in rows[:3]] == ["main", "main", "main"]
        first, complained, thanked, extracted, repeated = rows
        assert [row["parent_turn_id"] for row in (complained, thanked)] == [
            first["turn_id"],
            complained["turn_id"],
        ]
        assert [row["next_text"] for row in rows[:2]] == list(TEXTS[1:])
        assert [row["verdict"] for row in rows] == [-1, 1, None, None, None]
        assert "shorter" in first["hint"]
        assert repeated["parent_turn_id"] == extracted["turn_id"]
        assert len({row["session_id"] for row in rows}) == 2


def test_llama_index(record_file: Path, tmp_path: Path) -> None:
    """The question that it makes stand-alone is a side turn of the chat over a document."""
    with client_gateway(record_file) as gateway:
        run_script(MEMORY, "llamaindex", gateway, tmp_path)
        check_record(gateway, "chat", sides=1, others=2)
        first, condensed, second = gateway.rows(7)[4:]
        assert (condensed["kind"], condensed["parent_turn_id"]) == ("side", first["turn_id"])
        assert (second["relation"], second["parent_turn_id"]) == ("next", first["turn_id"])
        assert first["next_text"] == "And how warm is it?"


def test_mem0(record_file: Path, tmp_path: Path) -> None:
    """Extractions of memories are side turns of the conversation; its embeddings are forwarded."""
    liked = {"id": "0", "text": "The person likes short answers", "attributed_to": "user"}
    with client_gateway(record_file, ("# Output:", json.dumps({"memory": [liked]}))) as gateway:
        printed = run_script(MEMORY, "mem0", gateway, tmp_path, MEM0_TELEMETRY="False")
        assert printed.endswith("['The person likes short answers']\n")
        rows = check_record(gateway, "chat", sides=3)
        sides = rows_of(gateway, 7, "Recently Extracted Memories")
        assert {row["session_id"] for row in (*sides, *rows)} == {rows[0]["session_id"]}
        assert "likes short answers" in rows[2]["messages"][0]["content"]
        status = gateway.client.get("/patina/status", cast_to=dict[str, Any])["proxy"]
        assert status["unrecorded_by_path"]["/v1/embeddings"] > 3


# ---- heavy ones: `pytest -m heavy_client`


@pytest.mark.heavy_client
def test_crewai(record_file: Path, tmp_path: Path) -> None:
    """A crew's plan and what its agents do for each other are side turns."""
    with client_gateway(record_file) as gateway:
        run_script(CREWAI, "crewai", gateway, tmp_path)
        check_record(gateway, "chat", sides=2, others=1)  # a crew's first task may be a person's
        assert [row["kind"] for row in rows_of(gateway, 7, "This is the context")] == ["side"]


@pytest.mark.heavy_client
def test_aider(record_file: Path, tmp_path: Path) -> None:
    """It writes files from texts, without tools; the messages of its two commits are side turns."""
    program = str(pip(*AIDER).with_name("aider"))
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    options = ("--no-pretty", "--no-fancy-input", "--yes-always", "--no-check-update", "--analytics-disable")
    written = "I wrote it down.\n\nnotes.txt\n```\nOslo\n```\n"
    with client_gateway(record_file, ("^Please use the tool", written)) as gateway:
        run(
            [program, *options, "--model", "openai/tiny", "notes.txt"], tmp_path, "\n".join(TEXTS) + "\n",
            HOME=str(tmp_path), OPENAI_API_BASE=f"{gateway.url}/v1", OPENAI_API_KEY=KEY,
        )  # fmt: skip
        rows = check_record(gateway, "chat", sides=2, has_tool=False)
        assert {row["client"].partition(" ")[0] for row in rows} == {"aider"}
    assert (tmp_path / "notes.txt").read_text() == "Oslo\n"


@pytest.mark.heavy_client
def test_gptme(record_file: Path, tmp_path: Path) -> None:
    """Its title is a side turn; it asks twice on its own for the tool call that its last reply lacks, which is no person's complaint."""
    program = str(pip(*GPTME).with_name("gptme"))
    first, second, third = TEXTS
    with client_gateway(record_file) as gateway:
        run(
            [program, "--non-interactive", "--no-confirm", "--model", "local/tiny", "--tool-format", "tool",
             first, "-", second, "-", third],
            tmp_path, HOME=str(tmp_path), OPENAI_BASE_URL=f"{gateway.url}/v1", OPENAI_API_KEY=KEY,
        )  # fmt: skip
        rows = check_record(gateway, "chat", sides=1, repeats=2)
        assert {row["client"].partition(" ")[0] for row in rows} == {"gptme"}
