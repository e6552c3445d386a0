"""Does a model call tools that its chat template does not show? A few checkable cases with Patina's own tool prompt.

They run once for each model and tool prompt, after the first request that offers such a model tools, and while no other request runs: until then, and
where the model does not call, optional tools are left out of its prompt. A tool call that a request forces needs no check: a grammar holds it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.openai_server.chat_template import tool_prompt
from serving.openai_server.toolcalls import CLOSE, ToolCall, ToolCallParser
from store.errors import PatinaError

log = logging.getLogger("patina.serving")

#: A reply in words ends at its first sentence: it is no call any more.
STOPS = (". ", ".\n", "\n\n", "```", CLOSE)
MAX_TOKENS = 48
#: With more misses than this a model does not call tools.
_MISSES = 1


def _tool(name: str, description: str, argument: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


_WEATHER = _tool("get_weather", "Get the current weather of a city.", "city")
_FILE = _tool("read_file", "Read a file of this computer.", "path")
_SEARCH = _tool("web_search", "Search the web.", "query")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCase:
    """A question with tools: the call that it needs, with a word of its argument; "": none."""

    question: str
    name: str = ""
    argument: str = ""
    tools: Sequence[dict[str, Any]] = (_WEATHER, _FILE, _SEARCH)

    def is_passed(self, text: str) -> bool:
        """Whether a reply calls what it should."""
        parser = ToolCallParser()
        calls = [part for part in (*parser.feed(text), *parser.flush()) if isinstance(part, ToolCall)]
        if not self.name:
            return not calls
        return [call.name for call in calls] == [self.name] and self.argument in calls[0].arguments.lower()


CASES = (
    CallCase(question="What is the weather in Oslo right now?", name="get_weather", argument="oslo"),
    CallCase(question="Read the file notes.txt and tell me what is in it.", name="read_file", argument="notes.txt"),
    CallCase(question="Search the web for the newest release of Python.", name="web_search", argument="python"),
    CallCase(question="What is 2 plus 3?"),
    CallCase(question="Is it raining in Lima at the moment?", name="get_weather", argument="lima"),
    CallCase(question="Thank you, that was helpful."),
)  # fmt: skip


class ToolCheck:
    """The result of the check, kept in a file by model.

    Args:
        file: of the results; None: they are not kept.
        digest: of the model; blocks.
    """

    def __init__(self, file: Path | None = None, digest: Callable[[], str] = str) -> None:
        self._file = file
        self._digest = digest
        self._task: asyncio.Task[None] | None = None
        self.passed = 0
        self.cases = 0
        self.is_done = False

    @property
    def is_passed(self) -> bool:
        """Whether the model calls tools that Patina's own prompt shows it; False until it is known."""
        return self.is_done and self.cases - self.passed <= _MISSES

    def sentence(self) -> str:
        """Return the result in words."""
        if not self.is_done:
            return "its chat template shows none, and whether it calls them by Patina's own prompt is not known yet"
        result = f"its chat template shows none, and by Patina's own prompt it passed {self.passed} of {self.cases} checks"
        return result if self.is_passed else f"{result}: optional tools are left out"

    def recall(self) -> None:
        """Read the result of an earlier start in the background, if there is one."""
        if self._task is None and self._read():
            self._task = asyncio.create_task(self._run(None), name="tool check")

    def start(self, ask: Callable[[CallCase], Awaitable[str]]) -> None:
        """Run it in the background unless it runs or is done.

        Args:
            ask: returns the model's reply, greedy, at most `MAX_TOKENS` long and ended by `STOPS`, which it includes.
        """
        if not self.is_done and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run(ask), name="tool check")

    def cancel(self) -> None:
        """Stop it; the next start of the engine runs it again."""
        if self._task is not None:
            self._task.cancel()

    async def _recall(self) -> str:
        """Read the known result; returns the key of this model's."""
        key = await asyncio.to_thread(self._key)
        known = self._read().get(key)
        if known is not None:
            self.passed, self.cases, self.is_done = int(known["passed"]), int(known["cases"]), True
        return key

    async def _run(self, ask: Callable[[CallCase], Awaitable[str]] | None) -> None:
        passed = number = 0
        try:
            key = await self._recall()
            if self.is_done or ask is None:
                return
            for number, case in enumerate(CASES, 1):
                passed += case.is_passed(await ask(case))
                if number - passed > _MISSES:
                    break
        except PatinaError as error:
            log.warning("the tool check is run again after the next request with tools: %s", error)
            return
        self.passed, self.cases, self.is_done = passed, number, True
        log.warning("tools: %s", self.sentence())
        self._keep(key)

    def _key(self) -> str:
        prompt = hashlib.sha256((tool_prompt([_WEATHER]) + repr(CASES)).encode()).hexdigest()
        return f"{self._digest()}-{prompt[:16]}"

    def _read(self) -> dict[str, Any]:
        if self._file is None or not self._file.exists():
            return {}
        try:
            found = json.loads(self._file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            log.warning("the results of earlier tool checks cannot be read: %s", error)
            return {}
        return found if isinstance(found, dict) else {}

    def _keep(self, key: str) -> None:
        if self._file is None:
            return
        found = {**self._read(), key: {"passed": self.passed, "cases": self.cases}}
        try:
            beside = self._file.with_suffix(".new")
            beside.write_text(json.dumps(found, indent=1), "utf-8")
            beside.replace(self._file)
        except OSError as error:
            log.warning("the result of the tool check cannot be kept: %s", error)
