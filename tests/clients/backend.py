"""A scripted backend with a large context, for real clients that cannot script it: what it replies follows from what it is asked.

* After a tool result it answers with a text that quotes the result.
* A user who asks to "use the tool" gets a call of the first suitable tool, with arguments made from its schema.
* Anyone else gets a numbered text with white space that must survive.
"""

from __future__ import annotations

import json
from typing import Any

from tests.proxy.upstream import Json, Seen, Upstream

#: Tools of agents that run a command, the best first; then any other tool.
_SHELLS = ("exec_command", "shell", "shell_command", "Bash", "bash", "run_shell_command", "local_shell")
#: It goes on a moment after its output: one client loses the output of a command that ends at once on a busy machine.
_COMMAND = "echo patina-$((40 + 2)); sleep 1"


class ClientBackend(Upstream):
    """The scripted backend."""

    async def _chat(self, seen: Seen, receive: Any, send: Any) -> None:
        body = seen.body
        script = script_for(body.get("messages") or [], body.get("tools") or [], self.count + 1)
        seen.raw = json.dumps({**body, "scripted": script}).encode()
        await super()._chat(seen, receive, send)


def text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def script_for(messages: list[Json], tools: list[Json], number: int) -> Json:
    """Return the script of one reply (`tests.proxy.upstream`)."""
    last = next((m for m in reversed(messages) if m.get("role") in ("user", "tool")), {})
    text = text_of(last.get("content"))
    if last.get("role") == "tool":
        return {"text": f"The tool says:  {text.strip()[-200:]}"}
    if "use the tool" in text and tools:
        return {"text": "", "tool_calls": [call_of(tools, number)]}
    return {"text": f"Reply {number}:\n\n  as you  wish. "}


def call_of(tools: list[Json], number: int) -> Json:
    """Return a call of the first suitable tool."""
    functions = [tool["function"] for tool in tools]
    by_name = {function["name"]: function for function in functions}
    function = next((by_name[name] for name in _SHELLS if name in by_name), functions[0])
    schema = function.get("parameters") or {}
    properties = schema.get("properties") or {}
    names = schema.get("required") or list(properties)[:1]
    arguments = {name: _value(name, properties.get(name) or {}) for name in names}
    written = json.dumps(arguments, indent=1)  # white space that must survive
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": function["name"], "arguments": written},
    }


def _value(name: str, schema: Json) -> Any:
    kind = schema.get("type")
    if kind == "array":
        return ["bash", "-lc", _COMMAND]
    if kind in ("number", "integer"):
        return 1
    if kind == "boolean":
        return False
    return _COMMAND if name in ("cmd", "command") else "Oslo"
