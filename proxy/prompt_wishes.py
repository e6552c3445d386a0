"""The active wishes of each policy, as the gateway adds them to requests.

The record says which wishes act in the prompt. A loop reads them again when the record changed, so that the next request after a verdict, an
edit or a removal has them as they are. A request reads them from memory. While the record is away they stay as they were read last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import orjson

from serving.protocol import BackendClient
from store.calibration import read_calibration
from store.change_notice import ChangeNotice
from store.errors import RecordError, UpstreamError
from store.record import Record
from store.record_handle import RecordHandle
from store.values import Json, WishesSeen
from wire.chat_request import ChatRequest
from wire.reply_strip import read_reply
from wire.wish_text import BEHIND, PLACES, join_wishes, prompt_text, splice_wishes

log = logging.getLogger(__name__)

#: Shortest and longest time between two looks, and the pause while the record cannot be read.
_INTERVAL_S, _REST_S, _RETRY_S = 0.05, 30.0, 0.5
#: Longest wait of a gateway's first requests for the first look.
_FIRST_LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class PromptText:
    """What is added to the prompts of a policy.

    Attributes:
        text: the wishes, one a line.
        count: number of wishes.
        tokens: that it adds; None: the backend cannot count them.
    """

    text: str
    count: int
    tokens: int | None = None


def read_placement(calibration: Path) -> str:
    """Return where wishes stand in the prompts of this model, as it was measured; behind the newest message where it was not."""
    try:
        return _placement_in(calibration, calibration.stat().st_mtime_ns)
    except OSError:
        return BEHIND


@lru_cache(maxsize=4)
def _placement_in(calibration: Path, changed_at: int) -> str:
    known = read_calibration(calibration.parent)
    return known.placement if known is not None and known.placement in PLACES else BEHIND


class PromptWishes:
    """Knows the active wishes, and adds them to a request.

    Args:
        record: opened here where it is not open yet; None: nothing is ever added.
        backend: counts the tokens of a text; None: it cannot.
        read_place: returns where wishes stand in a prompt (`wire.wish_text`); asked at each look.
    """

    def __init__(
        self,
        record: RecordHandle | None,
        backend: BackendClient | None = None,
        read_place: Callable[[], str] = lambda: BEHIND,
    ) -> None:
        self._record = record
        self._backend = backend
        self._read_place = read_place
        self._place = BEHIND
        self._texts: dict[str, PromptText] = {}
        self._seen: WishesSeen | None = None
        self._first_look = asyncio.Event()
        self._last_error: str | None = None

    async def find(
        self, policy: str, chat: ChatRequest, *, is_wanted: Callable[[], bool]
    ) -> PromptText | None:
        """Return what is added to a request for a policy; None: nothing.

        Args:
            is_wanted: whether this request takes wishes (`wire.wish_text.takes_wishes`); asked only where there are some.
        """
        if self._record is None or chat.unreadable:
            return None
        if not self._first_look.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_LOOK_S):
                    await self._first_look.wait()
        found = self._texts.get(policy)
        return found if found is not None and is_wanted() else None

    def add(self, raw: bytes, chat: ChatRequest, found: PromptText) -> tuple[bytes, str]:
        """Return a request's bytes with the wishes, and their place. Raises: ValueError: the request has no place for them."""
        return splice_wishes(raw, chat.messages, found.text, self._place), self._place

    async def run(self) -> None:
        """Follow the record until cancelled."""
        changes: ChangeNotice | None = None
        counting: asyncio.Task[None] | None = (
            None  # beside the loop: a backend that is busy must not delay a wish
        )
        if self._record is None:
            return
        try:
            while True:
                try:
                    record = await self._record.get()
                    # Watched before it is read: a change in between ends the next wait.
                    changes = changes or record.change_notice(poll_s=_RETRY_S, min_interval_s=_INTERVAL_S)
                    self._place = self._read_place()
                    await self._read(record)
                    self._last_error = None
                except RecordError as exc:
                    # The wishes stay as they are: a locked or missing record must not change replies.
                    self._last_error = str(exc)
                self._first_look.set()
                if counting is None or counting.done():
                    if counting is not None:
                        counting.result()  # an unexpected error ends this loop too
                    counting = asyncio.create_task(self._count())
                if changes is None or self._last_error is not None:
                    await asyncio.sleep(_RETRY_S)
                else:
                    await changes.wait(_REST_S)
        finally:
            if changes is not None:
                changes.close()
            if counting is not None:
                counting.cancel()

    async def _read(self, record: Record) -> None:
        self._seen, found = await record.wishes_since(self._seen)
        if found is None:
            return
        texts = {}
        for policy, wordings in found.items():
            text = PromptText(join_wishes(wordings), len(wordings))
            known = self._texts.get(policy)
            texts[policy] = known if known is not None and known.text == text.text else text
        self._texts = texts

    async def _count(self) -> None:
        """Count the tokens of new texts. They are in prompts already: a reply in between goes without the count."""
        tried: set[str] = set()
        while self._backend is not None:
            pending = [
                one for one in self._texts.items() if one[1].tokens is None and one[1].text not in tried
            ]
            if not pending:
                return
            for policy, text in pending:
                tried.add(text.text)
                tokens = await self._count_tokens(text.text)
                if self._texts.get(policy) == text:
                    self._texts[policy] = replace(text, tokens=tokens)

    async def _count_tokens(self, text: str) -> int | None:
        assert self._backend is not None
        body = orjson.dumps({"prompt": f"\n\n{prompt_text(text)}", "add_special_tokens": False})
        try:
            reply = await self._backend.open(
                "POST", "/tokenize", [(b"content-type", b"application/json")], body
            )
            try:
                found, _ = read_reply(await reply.read())
            finally:
                reply.close()
        except UpstreamError as exc:
            log.warning("the tokens of a policy's wishes are not counted: %s", exc)
            return None
        count = found.get("count") if isinstance(found, dict) and reply.status == 200 else None
        return count if isinstance(count, int) else None

    def state(self) -> Json:
        """Return the number of wishes in the prompt by policy, for `status`."""
        return {
            "is_on": self._record is not None,
            "place": self._place,
            "in_prompt": {policy: text.count for policy, text in sorted(self._texts.items())},
            "last_error": self._last_error,
        }
