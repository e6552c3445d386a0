"""Record a client against a scripted backend on loopback: `python lab/clients/record.py FILE [PORT]`; standard library only.

The driver of a client (`drivers.py`, `drivers.mjs`) says what happens before it happens: `POST /say` names the session, and the next words
of a dialogue or words of its own. The client itself is unmodified; only its base URL names the session: `/s/SESSION/v1`. A request is a side call
when it holds a text that stands in the client's own source as the prompt of that side call (`rules.json`; `POST /rules` replaces them);
such a request gets the scripted answer for it. Every other chat request is the person's turn that was said last in the session, or the tool loop
behind it. `POST /done` writes the file and names what was said but never asked for, and what was asked for without being said.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

DIALOGUES: dict[str, list[list[Any]]] = json.loads(
    Path(__file__).with_name("dialogues.json").read_text("utf-8")
)


class Script:
    """What was said, what is answered, and what was sent."""

    def __init__(self, rules: list[dict[str, Any]]) -> None:
        self.lock = threading.Lock()
        self.lines: list[dict[str, Any]] = []
        self.place: dict[tuple[str, str], int] = {}
        self.said: dict[str, str] = {}
        self.replies: dict[str, list[Any]] = {}
        self.rules = [{"asked": 0, **rule} for rule in rules]
        self.ambiguous: set[str] = set()
        self.unasked: list[str] = []
        self.unsaid: list[str] = []

    def say(self, order: dict[str, Any]) -> str:
        """Return the words that the person types now; queue the answers to them."""
        session, name = order["session"], order.get("dialogue", "")
        if order.get("again"):
            at = self.place[session, name] - 1
        else:
            at = self.place.get((session, name), 0)
            self.place[session, name] = at + 1
        text, reply, *calls = DIALOGUES[name][at] if name else (order["text"], order.get("reply"))
        text = str(order.get("text", text))
        reply = order.get("reply") or (f"{reply} Anything else?" if order.get("again") else reply)
        self.unasked += [f"{session}: {reply}" for reply in self.replies.get(session, [])]
        self.said[session] = text
        self.replies[session] = [
            *order.get("before", []),
            *({"calls": made} for made in order.get("calls") or (calls[0] if calls else [])),
            reply,
        ]
        return text

    def decide(self, session: str, body: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Return the label of a chat request and its scripted answer."""
        messages = body.get("messages") or []
        first, last = (json.dumps(messages[at], ensure_ascii=False) if messages else "" for at in (0, -1))
        every = json.dumps(messages, ensure_ascii=False)
        for rule in self.rules:
            where = {"first": first, "last": last, "any": every}[rule.get("in", "any")]
            if re.search(rule["marker"], where):
                label = {"session": session, "kind": "side", "reason": rule["reason"]}
                if rule.get("own_session"):
                    label |= {"session": f"{session}/{rule['reason']}", "parent": session}
                if rule.get("ambiguous"):
                    label["ambiguous"] = True
                answers = rule["answers"]
                rule["asked"] += 1
                return label, answers[(rule["asked"] - 1) % len(answers)]
        label = {"session": session, "kind": "main"}
        if session in self.said:
            label |= {"reason": "user_turn", "user_text": self.said.pop(session)}
        else:
            label["reason"] = "tool_result_continuation"
        queue = self.replies.get(session) or []
        if not queue:
            self.unsaid.append(f"{session}: {last[:160]}")
        return label, queue.pop(0) if queue else "Done."

    def left(self) -> dict[str, Any]:
        """Return what was said and not asked for, and the other way round; both are empty when the labels hold."""
        rest = [f"{session}: {reply}" for session, queue in self.replies.items() for reply in queue]
        return {"unasked": self.unasked + rest, "unsaid": self.unsaid}


def message_of(answer: Any) -> dict[str, Any]:
    if isinstance(answer, str):
        return {"role": "assistant", "content": answer}
    calls = [
        {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for name, arguments in answer["calls"]
    ]
    return {"role": "assistant", "content": answer.get("text"), "tool_calls": calls}


def chunks(reply: dict[str, Any], usage: bool) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a completion: role, words, calls, end, usage."""
    frame = {k: reply[k] for k in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    message = reply["choices"][0]["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": part} for part in re.findall(r"\s*\S+\s*", message["content"] or "")]
    deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(message.get("tool_calls", []))]
    for delta in deltas:
        yield frame | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield frame | {
        "choices": [{"index": 0, "delta": {}, "finish_reason": reply["choices"][0]["finish_reason"]}]
    }
    if usage:
        yield frame | {"choices": [], "usage": reply["usage"]}


def completion(model: str, message: dict[str, Any], prompt: str) -> dict[str, Any]:
    sent, made = len(prompt) // 4, len(json.dumps(message)) // 4
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex[:24]}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            }
        ],
        "usage": {"prompt_tokens": sent, "completion_tokens": made, "total_tokens": sent + made},
    }


def embedding(text: str, size: int) -> list[float]:
    """Return a bag of hashed words of length 1: texts that share words are near each other."""
    found = [0.001] * size
    for word in re.findall(r"\w+", text.lower()):
        found[int(hashlib.md5(word.encode()).hexdigest(), 16) % size] += 1.0
    norm = sum(x * x for x in found) ** 0.5
    return [x / norm for x in found]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Script
    target: Path
    aliases: tuple[tuple[str, str], ...] = ()

    def log_message(self, *_: Any) -> None:
        """Be silent."""

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if "chunked" in (self.headers.get("transfer-encoding") or ""):
            while size := int(self.rfile.readline().split(b";")[0], 16):
                raw += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        body = json.loads(raw) if raw else {}
        if self.path == "/say":
            with self.script.lock:
                self.answer({"text": self.script.say(body)})
        elif self.path == "/rules":
            asked = {rule["reason"]: rule.get("asked", 0) for rule in self.script.rules}
            self.script.rules = [{"asked": asked.get(rule["reason"], 0), **rule} for rule in body]
            self.answer({})
        elif self.path == "/dialogues":
            self.answer({"dialogues": DIALOGUES})
        elif self.path == "/done":
            self.write()
            self.answer(self.script.left())
        else:
            self.record(body)

    def record(self, body: dict[str, Any]) -> None:
        found = re.match(r"/s/([^/]+)(/.*)", self.path)
        session, path = (found[1], found[2]) if found else (self.headers.get("x-lab-session", "?"), self.path)
        chat = path.split("?")[0].endswith("/chat/completions")
        with self.script.lock:
            label: dict[str, Any] = {"session": None, "kind": "none", "reason": path.rsplit("/", 1)[-1]}
            answer: Any = None
            if chat:
                label, answer = self.script.decide(session, body)
            hidden = ("authorization", "x-lab-session", "x-api-key")
            line = {
                "client": self.target.name.split(".")[0],
                "seq": len(self.script.lines) + 1,
                "time": time.time(),
                "method": self.command,
                "path": path,
                "headers": {k.lower(): v for k, v in self.headers.items() if k.lower() not in hidden},
                "body": body,
                "response": None,
                "answered_by": "scripted",
                "label": label,
            }
            self.script.lines.append(line)
        if not chat:
            self.answer(self.other(path, body))
            return
        reply = completion(str(body.get("model")), message_of(answer), json.dumps(body))
        line["response"] = reply
        if not body.get("stream"):
            self.answer(reply)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for chunk in chunks(reply, bool((body.get("stream_options") or {}).get("include_usage"))):
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    @staticmethod
    def other(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/embeddings"):
            texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
            size = body.get("dimensions") or 256
            rows = [
                {"object": "embedding", "index": i, "embedding": embedding(str(t), size)}
                for i, t in enumerate(texts)
            ]
            return {
                "object": "list",
                "model": body.get("model"),
                "data": rows,
                "usage": {"prompt_tokens": 1, "total_tokens": 1},
            }
        return {
            "object": "list",
            "data": [{"id": "qwen3-8b", "object": "model", "created": 1, "owned_by": "lab"}],
        }

    def answer(self, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def write(self) -> None:
        """Write the file, with neutral paths."""
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in self.script.lines)
        for old, new in self.aliases:
            text = text.replace(old, new)
        self.target.write_bytes(
            lzma.compress(text.encode(), preset=9)
        )  # gzip sees 32 KiB back, less than one request of an agent


def main() -> None:
    target = Path(sys.argv[1])
    rules = json.loads(Path(__file__).with_name("rules.json").read_text("utf-8"))
    Handler.script, Handler.target = Script(rules[target.name.split(".")[0]]), target
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 18123
    Handler.aliases = tuple((a, b) for a, b in (pair.split("=") for pair in sys.argv[3:]))
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
