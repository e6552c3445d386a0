"""A stand-in of Telegram's Bot API on loopback: what a user writes, and what the bot answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

from tests.waiting import until

TOKEN = "1234567:patina-telegram-test-token"
_BOT = {"id": 7, "is_bot": True, "first_name": "Patina", "username": "patina_test_bot"}
_LONG_POLL_S = 1.0


class BotApi:
    """The Bot API of one bot: updates are queued, messages of the bot are kept."""

    def __init__(self) -> None:
        self.url = ""
        self.texts: dict[int, list[str]] = {}  #: by chat, what the bot's messages read now
        self.methods: list[str] = []
        self._messages: dict[int, tuple[int, int]] = {}
        self._updates: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._number = 0

    def write(self, user: int, text: str) -> None:
        """Let a user write to the bot."""
        person = {"id": user, "is_bot": False, "first_name": f"User {user}"}
        message: dict[str, Any] = {
            "date": int(time.time()), "text": text, "from": person, "chat": {**person, "type": "private"},
        }  # fmt: skip
        if text.startswith("/"):
            message["entities"] = [{"type": "bot_command", "offset": 0, "length": len(text.split()[0])}]
        with self._news:
            self._number += 1
            self._updates.append(
                {"update_id": self._number, "message": {"message_id": self._number, **message}}
            )
            self._news.notify_all()

    def react(self, user: int, part: str, emoji: str) -> None:
        """Let a user react to the bot's newest message to them that holds a text."""
        person = {"id": user, "is_bot": False, "first_name": f"User {user}"}
        with self._news:
            found = max(number for number, (chat, place) in self._messages.items() if chat == user and part in self.texts[chat][place])  # fmt: skip
            self._number += 1
            reaction = {
                "chat": {**person, "type": "private"}, "message_id": found, "user": person, "date": int(time.time()),
                "old_reaction": [], "new_reaction": [{"type": "emoji", "emoji": emoji}],
            }  # fmt: skip
            self._updates.append({"update_id": self._number, "message_reaction": reaction})
            self._news.notify_all()

    def converse(self, user: int, text: str, part: str = "") -> str:
        """Let a user write, and return the first answer that holds ``part``."""
        before = len(self.texts.get(user, []))
        self.write(user, text)

        def answer() -> str | None:
            return next((each for each in self.texts.get(user, [])[before:] if each and part in each), None)

        found: str = until(answer, f"an answer to {text!r}; the bot wrote {self.texts}", 240)
        return found

    def call(self, method: str, given: dict[str, Any]) -> Any:
        """Answer one call of the bot."""
        with self._news:
            if method == "getMe":
                return _BOT
            if method == "getUpdates":
                offset = int(given.get("offset") or 0)
                self._updates = [update for update in self._updates if update["update_id"] >= offset]
                if not self._updates:
                    self._news.wait(_LONG_POLL_S)
                return list(self._updates)
            self.methods.append(method)
            if method == "sendMessage":
                self._number += 1
                chat = int(given["chat_id"])
                texts = self.texts.setdefault(chat, [])
                texts.append(given["text"])
                self._messages[self._number] = (chat, len(texts) - 1)
                return {"message_id": self._number, "date": int(time.time()), "chat": {"id": chat, "type": "private"}, "text": given["text"]}  # fmt: skip
            if method == "editMessageText":
                chat, place = self._messages[int(given["message_id"])]
                self.texts[chat][place] = given["text"]
            return True


@contextmanager
def running_bot_api() -> Iterator[BotApi]:
    """Serve a Bot API on a port of its own."""
    api = BotApi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            is_json = "json" in (self.headers.get("content-type") or "")
            given = json.loads(raw or b"{}") if is_json else dict(parse_qsl(raw.decode("latin-1")))
            result = api.call(self.path.partition("?")[0].rpartition("/")[2], given)
            body = json.dumps({"ok": True, "result": result}).encode()
            try:
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except ConnectionError:
                self.close_connection = True  # the bot gave up this long poll, as it does when it stops

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
