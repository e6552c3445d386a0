"""The chat panel: sends a person's words through the gateway, as any client does, and shows a second version's answer beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from dashboard.gateway import Gateway
from store.errors import UpstreamError
from store.examples import COMPLAINTS, QUESTIONS, THANKS
from store.values import Json

#: Finds the name of the version that a recorded turn was sampled by, by the turn's id; "": the turn is not recorded yet.
FindVersion = Callable[[str], Awaitable[str]]
#: A reply comes before its turn is recorded: how long to wait, and how often to look.
_RECORD_WAIT_S, _LOOK_S = 5.0, 0.1
_MAX_TEXT, _MAX_TOKENS = 4_000, 400


@dataclass(frozen=True, slots=True)
class Exchange:
    """What was asked, the answer of the chosen version, and that of the version beside it.

    Attributes:
        version: `POLICY@N` once the turn is recorded, before the model's name.
        turn_id: of the chosen version's turn.
        beside: name and answer of the other version; None: none was asked.
    """

    asked: str
    answer: str
    version: str
    turn_id: str
    beside: tuple[str, str] | None


class ChatPanel:
    """One conversation. It is kept in memory, and recorded like any other.

    A reply carries the model name that was asked for: only the record knows which version sampled it.

    Attributes:
        version, beside: of the newest question: the version that was asked ("": the live one), and the one beside it ("": none).
    """

    def __init__(self, gateway: Gateway, policy: str, find_version: FindVersion) -> None:
        self._gateway = gateway
        self._find_version = find_version
        self._policy = policy
        self.exchanges: list[Exchange] = []
        self.version, self.beside = "", "0"

    def suggestions(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return what a click may send, by title: reactions once there is a reply, and the questions that were not asked yet."""
        asked = {one.asked for one in self.exchanges}
        left = tuple(one for one in QUESTIONS if one not in asked)
        found: list[tuple[str, tuple[str, ...]]] = []
        if self.exchanges:
            found.append(("React to the reply", (*COMPLAINTS, THANKS)))
        if left:
            found.append(("Ask something else" if self.exchanges else "Ask something", left))
        return found

    def clear(self) -> None:
        self.exchanges.clear()

    def refusal(self, text: str, version: str, beside: str, versions: Collection[str]) -> str:
        """Keep the choices of a question, and return why it cannot be asked; "" where it can.

        Args:
            versions: that answer.
        """
        self.version, self.beside = version, beside
        if not text:
            return "Write something first."
        if len(text) > _MAX_TEXT:
            return f"The text has {len(text)} characters; at most {_MAX_TEXT} are sent."
        for one in (version, beside):
            if one and one not in versions:
                return f"There is no version {one[:20]} that answers. Choose another."
        return ""

    async def send(self, text: str, version: str, beside: str) -> str:
        """Ask a version, the live one when it is "", and version ``beside`` unless it is "" or the one that answered.

        Returns what went wrong; "" when all went well.

        Raises:
            RecordError: the record cannot be read.
        """
        messages: list[Json] = []
        for one in self.exchanges:
            messages += [{"role": "user", "content": one.asked}, {"role": "assistant", "content": one.answer}]
        messages.append({"role": "user", "content": text})
        try:
            answer, turn_id, name = await self._ask(self._name(version), messages)
            name = await self._wait_for_version(turn_id) or name
            other = None
            if beside.isdecimal() and self._name(beside) != name:
                other = (self._name(beside), (await self._ask(self._name(beside), messages, trains=False))[0])
        except UpstreamError as exc:
            return str(exc)
        except ValueError as exc:
            return f"The gateway answered: {exc}"
        self.exchanges.append(Exchange(text, answer, name, turn_id, other))
        return ""

    def _name(self, version: str) -> str:
        return f"{self._policy}@{version}" if version.isdecimal() else self._policy

    async def _wait_for_version(self, turn_id: str) -> str:
        """Return the name of the version that sampled a turn; "": it is not recorded, or not in time."""
        if not turn_id:
            return ""
        for _ in range(round(_RECORD_WAIT_S / _LOOK_S)):
            if found := await self._find_version(turn_id):
                return found
            await asyncio.sleep(_LOOK_S)
        return ""

    async def _ask(self, model: str, messages: list[Json], *, trains: bool = True) -> tuple[str, str, str]:
        """Return (answer, turn id, version). Raises: ValueError: an error reply. UpstreamError: the gateway cannot be reached."""
        body: Json = {"model": model, "messages": messages, "max_tokens": _MAX_TOKENS}
        found, headers = await self._gateway.post("/v1/chat/completions", body, trains=trains)
        answer = found["choices"][0]["message"].get("content") or ""
        return answer, headers.get(b"x-patina-turn", b"").decode(), found.get("model", model)


async def score_reply(gateway: Gateway, policy: str, story: Json) -> Json:
    """Return the log-probabilities of a recorded reply under the live version; {}: it has no text.

    Raises:
        ValueError: the backend does not score it.
        UpstreamError: the gateway cannot be reached.
    """
    if not story["completion"]:
        return {}
    template = {
        name: story["request"][name] for name in ("tools", "chat_template_kwargs") if name in story["request"]
    }
    body = {"model": policy, "messages": story["messages"], "completion": story["completion"], **template}
    return (await gateway.post("/v1/score", body))[0]
