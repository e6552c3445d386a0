"""Open WebUI's thumbs become feedback: its export is polled, and each rating is stored once for each of its states.

This is a task of the scorer, which a home has once and which reads feedback anyway: no further process, no port. What is stored already is
read back from the record, so that a restart repeats nothing. A changed rating is new feedback, and the newest counts; a removed one becomes
feedback with score 0, which trains nothing.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import time
import urllib.request
from typing import Any

from scorers.ratings import RatedTurn, Rating, find_turn, parse_rating
from store.errors import RecordError
from store.record import Record
from store.settings import Settings
from store.values import Feedback, new_feedback_id

log = logging.getLogger(__name__)

_PATH = "/api/v1/evaluations/feedbacks/all/export"
_EVERY_S = 15.0
_TIMEOUT_S = 20.0
_REMOVED = "removed"


async def poll_ratings(record: Record, settings: Settings, *, every_s: float = _EVERY_S) -> None:
    """Poll until cancelled. An error is logged when it is new, and the next round tries again."""
    last = ""
    while True:
        problem = ""
        try:
            items = await asyncio.to_thread(fetch_ratings, settings.open_webui_url, settings.open_webui_token)
            await take_ratings(record, items, settings.open_webui_key)
        except (OSError, ValueError, http.client.HTTPException, RecordError) as exc:
            problem = f"ratings of Open WebUI at {settings.open_webui_url} cannot be read: {exc}"
        if problem and problem != last:
            log.warning("%s", problem)
        last = problem
        await asyncio.sleep(every_s)


def fetch_ratings(url: str, token: str) -> list[Any]:
    """Return the export. Raises: OSError (urllib's errors too), ValueError: it is no list."""
    request = urllib.request.Request(url.rstrip("/") + _PATH, headers={"authorization": f"Bearer {token}"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by way of a web proxy
    with opener.open(request, timeout=_TIMEOUT_S) as reply:
        found = json.load(reply)
    if not isinstance(found, list):
        raise ValueError("the export is no list")
    return found


async def take_ratings(record: Record, items: list[Any], key_name: str) -> int:
    """Store what is new in an export; returns how many ratings were stored or withdrawn.

    Raises:
        RecordError: the record cannot be read or written.
    """
    prefix = f"{key_name}:open-webui:"
    stored: dict[str, tuple[str, str]] = {}  # by rating: its newest state and its turn
    counts: dict[str, int] = {}
    for key, turn_id in await record.feedback_keys(prefix):
        _, rating_id, state = key.removeprefix(prefix).split(":", 2)
        stored[rating_id] = (state, turn_id)
        counts[rating_id] = counts.get(rating_id, 0) + 1

    async def store(rating_id: str, turn_id: str, score: float, text: str, state: str) -> None:
        number = counts.get(rating_id, 0)  # a rating may return to an earlier state
        key = f"{prefix}{number}:{rating_id}:{state}"
        await record.add_feedback(
            Feedback(
                feedback_id=new_feedback_id(), turn_id=turn_id, score=score, text=text, idempotency_key=key,
                created_at=time.time(),
            )
        )  # fmt: skip

    changed = 0
    ratings = [rating for item in items if (rating := parse_rating(item)) is not None]
    for rating in ratings:
        state, known = stored.get(rating.rating_id, ("", ""))
        if state == rating.state:
            continue
        found = known or await _turn_of(record, rating, key_name)
        if found is not None:  # else its turn may be recorded later, or it went to another model
            await store(rating.rating_id, found, rating.score, rating.text, rating.state)
            changed += 1
    present = {item.get("id") for item in items if isinstance(item, dict)}
    for rating_id, (state, known) in stored.items():
        if rating_id not in present and state != _REMOVED:
            await store(rating_id, known, 0.0, "", _REMOVED)
            changed += 1
    return changed


async def _turn_of(record: Record, rating: Rating, key_name: str) -> str | None:
    found = await record.turns_answering(key_name, rating.spoken[-1][1])
    return find_turn(
        rating, [RatedTurn(turn_id=one, created_at=at, messages=messages) for one, at, messages in found]
    )
