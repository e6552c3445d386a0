"""CLaaS's feedback: several items in one request, answered at once with an id to poll, or with `?wait=true` after the step that learned from them.

The id of a request names its feedback in the record, so any gateway answers for it, also after a restart; the same request has the same id.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from proxy.auth import Principal
from proxy.feedback import FeedbackBody, parse_feedback
from proxy.lora import LoraPaths, is_lora_id
from store.errors import WireError
from store.hashing import digest
from store.lifecycle import Stage
from store.record_handle import RecordHandle
from store.values import Json, StepReport, TurnFate
from wire.api_translation import Untranslatable

#: Items of one request, and the longest wait for their step.
MAX_ITEMS = 64
MAX_WAIT_S, _POLL_S = 600.0, 0.25
#: Bounds of CLaaS's training settings, which Patina reads and leaves to its own.
_TRAINING: Mapping[str, tuple[float, float]] = {
    "learning_rate": (0.0, 1.0), "alpha": (0.0, 1.0), "is_clip": (1.0, 100.0), "max_grad_norm": (0.0, 100.0),
    "kl_reg_weight": (0.0, 10.0), "teacher_top_k": (1, 1000),
}  # fmt: skip
_ORCHESTRATION = ("sleep_before", "wake_after", "wake_on_failure", "sleep_level")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBody:
    """A batch as a client sent it.

    Attributes:
        ignored: settings that were given and have no effect here.
    """

    lora_id: str
    items: tuple[FeedbackBody, ...]
    ignored: tuple[str, ...]


def is_batch(body: Any) -> bool:
    return isinstance(body, dict) and "requests" in body


def parse_batch(body: Json) -> BatchBody:
    """Parse a batch. Raises: Untranslatable: what is wrong with it, status 422."""
    requests = body["requests"]
    if not (isinstance(requests, list) and 0 < len(requests) <= MAX_ITEMS):
        raise _invalid(f"requests is a list of 1 to {MAX_ITEMS} items")
    ids, items, ignored = set(), [], set()
    for at, one in enumerate(requests):
        if not isinstance(one, dict) or not is_lora_id(str(one.get("lora_id", ""))):
            raise _invalid(f"requests[{at}].lora_id names the LoRA")
        ids.add(str(one["lora_id"]))
        try:
            items.append(
                parse_feedback({**one, "completion_id": one.get("completion_id") or one.get("response_id")})
            )
        except WireError as exc:
            raise _invalid(f"requests[{at}]: {exc}") from exc
        ignored |= {f"training.{name}" for name in _read_training(one.get("training"), at)}
    if len(ids) > 1:
        raise _invalid("all requests of a batch have one lora_id")
    given = {} if body.get("orchestration") is None else body["orchestration"]
    if not isinstance(given, dict):
        raise _invalid("orchestration is an object")
    if given.get("sleep_level") not in (None, 1, 2):
        raise _invalid("orchestration.sleep_level is 1 or 2")
    ignored |= {f"orchestration.{name}" for name in _ORCHESTRATION if given.get(name) is not None}
    return BatchBody(lora_id=ids.pop(), items=tuple(items), ignored=tuple(sorted(ignored)))


def _read_training(given: Any, at: int) -> list[str]:
    """Return the names of the training settings of an item. Raises: Untranslatable: one is out of its bounds."""
    if given is None:
        return []
    if not isinstance(given, dict):
        raise _invalid(f"requests[{at}].training is an object")
    for name, value in given.items():
        if name == "teacher_mode":  # of the plugin's older versions
            continue
        low, high = _TRAINING.get(name, (None, None))
        if low is None or high is None:
            raise _invalid(f"requests[{at}].training.{name} is no setting")
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise _invalid(f"requests[{at}].training.{name} is a number from {low:g} to {high:g}")
    return list(given)


def _invalid(text: str) -> Untranslatable:
    return Untranslatable(f"Feedback: {text}.", status=422)


class FeedbackBatches:
    """Takes batches and answers for them.

    Args:
        find_turn: returns the turn of a key that an item is about, or None.
        append: appends one item to the journal: (key name, turn id, item, feedback id); returns "recorded" or "duplicate".
        why_untrained: returns why no version learns from feedback on a turn; None: one may.
    """

    def __init__(
        self,
        record: RecordHandle,
        lora: LoraPaths,
        *,
        find_turn: Callable[[str, FeedbackBody], Awaitable[str | None]],
        append: Callable[[str, str, FeedbackBody, str], Awaitable[str]],
        why_untrained: Callable[[str, FeedbackBody], Awaitable[str | None]],
    ) -> None:
        self._record = record
        self._lora = lora
        self._find_turn = find_turn
        self._append = append
        self._why_untrained = why_untrained

    async def submit(self, body: BatchBody, principal: Principal, *, waits: bool) -> tuple[int, Json]:
        """Record a batch, all items or none; returns status and answer. Raises: Untranslatable, RecordError, OSError."""
        await self._lora.find(body.lora_id, principal)
        key_name = principal.key_name
        turns = []
        for at, item in enumerate(body.items):
            turn_id = await self._find_turn(key_name, item)
            if turn_id is None:
                raise Untranslatable(
                    f"requests[{at}]: No turn of this key matches.", status=404, code="unknown_turn"
                )
            turns.append(turn_id)
        parts = [
            repr((turn_id, one.score, one.text, one.idempotency_key))
            for turn_id, one in zip(turns, body.items, strict=True)
        ]
        request_id = f"req_{digest(key_name, body.lora_id, *parts)}"
        fresh = []
        for at, (turn_id, one) in enumerate(zip(turns, body.items, strict=True)):
            named = replace(one, idempotency_key=one.idempotency_key or f"{request_id}.{at}")
            if await self._append(key_name, turn_id, named, _feedback_id(request_id, at)) == "recorded":
                fresh.append(_feedback_id(request_id, at))
        why = {
            turn_id: await self._why_untrained(turn_id, one)
            for turn_id, one in zip(turns, body.items, strict=True)
        }
        answer: Json = {
            "status": "queued",
            "request_id": request_id,
            "lora_id": body.lora_id,
            "batch_size": len(turns),
        }
        if body.ignored:
            answer["ignored"] = list(body.ignored)
        if all(why.values()):
            answer |= {"status": "noted", "trains": False, "why": sorted({str(one) for one in why.values()})}
        if not waits or answer["status"] == "noted":
            return 202, answer
        learning = [turn_id for turn_id in turns if not why[turn_id]]
        until = time.monotonic() + MAX_WAIT_S
        while time.monotonic() < until:
            record = await self._record.get()
            fates = await record.fates(learning)
            # Before it is recorded, a turn may be at the end of an earlier life.
            if _are_over(fates, learning) and len(await record.feedback_turns(fresh)) == len(fresh):
                return 200, answer | await self._result(body.lora_id, fates)
            await asyncio.sleep(_POLL_S)
        return 202, answer

    async def poll(self, request_id: str, principal: Principal) -> tuple[int, Json]:
        """Return status and body of what became of a batch. Raises: Untranslatable: there is none of this key; RecordError."""
        record = await self._record.get()
        turns = await record.feedback_turns([_feedback_id(request_id, at) for at in range(MAX_ITEMS)])
        is_mine = principal.is_owner or all(
            [await record.key_of_turn(turn_id) == principal.key_name for turn_id in dict.fromkeys(turns)]
        )
        if not turns or not is_mine:
            raise Untranslatable(f"Feedback '{request_id}' not found.", status=404, code="not_found")
        fates = await record.fates(turns)
        answer: Json = {
            "status": "queued",
            "request_id": request_id,
            "batch_size": len(turns),
            "turns": [
                {"turn_id": one, "stage": fates[one].stage.value, "version": fates[one].trained_in_version}
                for one in turns
            ],
        }
        return 200, answer | (await self._result(None, fates) if _are_over(fates, turns) else {})

    async def _result(self, lora_id: str | None, fates: Mapping[str, TurnFate]) -> Json:
        """Return CLaaS's answer of a finished batch."""
        record = await self._record.get()
        versions = {fate.trained_in_version for fate in fates.values()} - {None}
        if not versions:
            reasons = sorted({fate.drop_reason.value for fate in fates.values() if fate.drop_reason})
            return {"status": "noted", "trains": False, "why": reasons}
        version = max(one for one in versions if one is not None)
        trained = [turn_id for turn_id, fate in fates.items() if fate.trained_in_version == version]
        policy = (await record.scored_turns(trained[:1]))[0].policy
        step = next((one for one in await record.steps(policy) if one.version == version), None)
        metadata, timing = ({}, {}) if step is None else (_metadata(step), _timing(step))
        return {
            "status": "ok",
            "version": version,
            "distill_result": {"lora_id": lora_id or policy, "metadata": metadata},
            "vllm": dict.fromkeys(("slept", "woke"), _engine_slept(step)),
            "feedback_log_path": "",
            "timing_ms": timing,
        }


def _engine_slept(step: StepReport | None) -> bool:
    """Whether the engine slept during a step: it does where both share a GPU (`--colocate sleep`)."""
    return step is not None and "device_yields" in (step.metrics.get("device") or {})


def _feedback_id(request_id: str, at: int) -> str:
    return f"{request_id}.{at:02d}"


def _are_over(fates: Mapping[str, TurnFate], turns: list[str]) -> bool:
    return all(
        turn_id in fates and fates[turn_id].stage in (Stage.TRAINED, Stage.DROPPED) for turn_id in turns
    )


def _metadata(step: StepReport) -> Json:
    numbers = step.metrics
    return {
        "total_loss": numbers.get("loss"),
        "distill_loss": numbers.get("loss"),
        "tokens_processed": numbers.get("live_tokens"),
        "grad_norm": numbers.get("gradient_norm"),
        "batch_size": numbers.get("turns"),
        "loss_after": numbers.get("loss_after"),
        "kl_to_base": numbers.get("kl_to_base"),
    }


def _timing(step: StepReport) -> Json:
    """Return milliseconds; what Patina does not do takes none."""
    numbers = step.metrics
    total = 0 if step.finished_at is None else round((step.finished_at - step.started_at) * 1e3)
    return {
        "sleep": 0,
        "distill": round(1e3 * (numbers.get("train_s") or 0.0)),
        "save": round(1e3 * (numbers.get("write_s") or 0.0)),
        "wake": 0,
        "logprobs": round(1e3 * (numbers.get("teach_s") or 0.0)),
        "total": total,
    }
