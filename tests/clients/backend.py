"""A scripted backend with a large context, for real clients that cannot script it: what it replies follows from what it is asked.

The first rule that fits decides:

* `ClientBackend.replies` fits the newest text: its own reply, for programs that only read a form of theirs.
* The request asks for a schema, or forces a function: an object made from the schema.
* The newest message is a tool's result: a text that quotes it.
* A user who asks to "use the tool" gets a call of the first suitable tool, with arguments made from its schema.
* Anyone else gets a numbered text with white space that must survive; an agent that ends with a tool gets the text in that tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tests.proxy.upstream import Json, Seen, Upstream

#: Tools of agents that run a command, the best first; then any other tool.
_SHELLS = ("exec_command", "shell", "shell_command", "Bash", "bash", "run_shell_command", "local_shell")
#: It goes on a moment after its output: one client loses the output of a command that ends at once on a busy machine.
_COMMAND = "echo patina-$((40 + 2)); sleep 1"
#: The tool with which an agent ends.
_LAST_TOOL = "final_answer"
#: How a request begins that is longer than the context.
TOO_LONG = "This is too long:"
_REFUSAL = (
    "This model's maximum context length is 200000 tokens. However, your prompt contains 300000 input tokens."
)


class ClientBackend(Upstream):
    """The scripted backend; `replies` are pairs of a pattern and what is replied to a newest text that contains it."""

    def __init__(self, replies: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__()
        self.replies = replies

    async def _chat(self, seen: Seen, receive: Any, send: Any) -> None:
        body = seen.body
        script = script_for(body, self.count + 1, self.replies)
        seen.raw = json.dumps({**body, "scripted": script}).encode()
        await super()._chat(seen, receive, send)

    async def _other(self, seen: Seen, send: Any) -> None:
        if seen.path != "/v1/embeddings":
            await super()._other(seen, send)
            return
        asked = seen.body["input"]
        count = len(asked) if isinstance(asked, list) else 1
        data = [
            {"object": "embedding", "index": i, "embedding": [1.0, 0.5, 0.25, 0.125]} for i in range(count)
        ]
        usage = {"prompt_tokens": count, "total_tokens": count}
        await self._json(send, 200, {"object": "list", "model": "tiny", "data": data, "usage": usage})


def text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def script_for(body: Json, number: int, replies: Sequence[tuple[str, str]] = ()) -> Json:
    """Return the script of one reply (`tests.proxy.upstream`)."""
    messages, tools = body.get("messages") or [], body.get("tools") or []
    last: Json = next((m for m in reversed(messages) if m.get("role") in ("user", "tool")), {})
    text = text_of(last.get("content")).rpartition("New task:\n")[
        2
    ]  # smolagents puts it behind an observation
    if text.startswith(TOO_LONG):
        error = {"message": _REFUSAL, "type": "BadRequestError", "code": 400}
        return {
            "status": 400,
            "headers": {"content-type": "application/json"},
            "body": json.dumps({"error": error}),
        }
    for pattern, reply in replies:
        if re.search(pattern, text):
            return {"text": reply}
    chosen = body.get("tool_choice")
    if chosen == "required" and len(tools) == 1:
        chosen = tools[0]
    if isinstance(chosen, dict):
        name = chosen["function"]["name"]
        return {
            "text": "",
            "tool_calls": [call_of([t for t in tools if t["function"]["name"] == name], number)],
        }
    schema = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema")
    if schema:
        return {"text": json.dumps(_value("", _expanded(schema, schema)))}
    if last.get("role") == "tool" or text.startswith("Observation:"):
        found = {"text": f"The tool says:  {text.strip()[-200:]}"}
    elif "use the tool" in text and tools:
        return {"text": "", "tool_calls": [call_of(tools, number)]}
    else:
        found = {"text": f"Reply {number}:\n\n  as you  wish. "}
    endings = [tool for tool in tools if tool["function"]["name"] == _LAST_TOOL]
    if endings:
        return {"text": "", "tool_calls": [call_of(endings, number, found["text"])]}
    return found


def call_of(tools: list[Json], number: int, text: str = "Oslo") -> Json:
    """Return a call of the first suitable tool, with `text` where its schema asks for a text."""
    functions = [tool["function"] for tool in tools]
    by_name = {function["name"]: function for function in functions}
    function = next((by_name[name] for name in _SHELLS if name in by_name), functions[0])
    arguments = _value("", function.get("parameters") or {}, text)
    written = json.dumps(arguments, indent=1)  # white space that must survive
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": function["name"], "arguments": written},
    }


def _expanded(schema: Any, root: Json) -> Any:
    """Return a schema with what its references name."""
    if isinstance(schema, list):
        return [_expanded(each, root) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _expanded(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    return {name: _expanded(each, root) for name, each in schema.items() if name != "$defs"}


def _value(name: str, schema: Json, text: str = "Oslo") -> Any:
    kind = schema.get("type")
    properties = schema.get("properties") or {}
    if properties or kind == "object" or not name:
        names = schema.get("required") or list(properties)[:1]
        return {each: _value(each, properties.get(each) or {}, text) for each in names}
    items = schema.get("items") or {}
    if kind == "array" and items.get("properties"):
        return [_value(name, items, text)]
    if kind == "array":
        return ["bash", "-lc", _COMMAND]
    if kind in ("number", "integer"):
        return 1
    if kind == "boolean":
        return False
    return _COMMAND if name in ("cmd", "command") else text
