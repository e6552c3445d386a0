"""``/v1/fine_tuning/jobs``: the jobs that clients create (`proxy.fine_tuning.created_jobs`), and one open job for each policy, which trains on
what is recorded. Its checkpoints are the policy's versions, its events what the gate decided about them; it is paused and resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from starlette.types import Receive, Scope, Send

from proxy.adapters import Alias, ServedPolicy
from proxy.answers import answering_errors
from proxy.asgi import read_json, send_json
from proxy.auth import Principal
from proxy.fine_tuning.created_jobs import answer_job, create_job, find_job, shown_job
from proxy.item_pages import page, read_query
from store.errors import RecordError
from store.record import Record
from store.record_handle import RecordHandle
from store.values import (
    BASE_VERSION,
    AdapterState,
    AdapterVersion,
    Json,
    StepReport,
    adapter_name,
    numbers_of,
)
from wire.api_translation import Untranslatable, read_object

PREFIX = "/v1/fine_tuning/jobs"
_JOB = "ftjob-"
_STAYS_OPEN = "This job trains its policy on what is recorded, and stays open. Pause it instead."


class FineTuningJobs:
    """Serves ``/v1/fine_tuning/jobs``.

    Args:
        shared_policy: paused and resumed by owners only.
        created_at: time of a job whose policy has no version yet.
        refusal: why no jobs are created here; "": they are.
    """

    def __init__(
        self, record: RecordHandle, alias: Alias, shared_policy: str, *, created_at: float, refusal: str
    ) -> None:
        self._refusal = refusal
        self._record = record
        self._alias = alias
        self._shared_policy = shared_policy
        self._created_at = created_at

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, *, principal: Principal, path: str
    ) -> None:
        job_id, _, action = path.removeprefix(PREFIX).removeprefix("/").partition("/")
        async with answering_errors(send, "training could not be read or changed"):
            if (scope["method"], job_id) == ("POST", ""):
                answer = await create_job(
                    await self._record.get(),
                    read_object(await read_json(receive, scope["headers"])),
                    principal=principal,
                    alias=self._alias,
                    shared_policy=self._shared_policy,
                    refusal=self._refusal,
                )
                await send_json(send, 200, answer)
                return
            answer = await self._answer(
                scope["method"], job_id, action, read_query(scope.get("query_string") or b""), principal
            )
            await send_json(send, 200, answer)

    async def _answer(
        self, method: str, job_id: str, action: str, options: Mapping[str, str], principal: Principal
    ) -> Json:
        served = {
            f"{_JOB}{one.policy}": one
            for one in self._alias.served(group=principal.adapter, is_owner=principal.is_owner)
        }
        record = await self._record.get()
        if not job_id:
            if method != "GET":
                raise Untranslatable("Jobs are created with POST and listed with GET.", status=405)
            created = [await shown_job(record, one) for one in await record.tuning_jobs(principal.key_name)]
            return page([*created, *[await self._job(record, one) for one in served.values()][::-1]], options)
        if (job := await find_job(record, principal.key_name, job_id)) is not None:
            return await answer_job(record, job, method, action, options)
        one = served.get(job_id)
        if one is not None and action == "cancel":
            raise Untranslatable(_STAYS_OPEN)
        if one is None or (method, action) not in _ACTIONS:
            raise Untranslatable(f"Fine-tuning job '{job_id}' not found.", status=404, code="not_found")
        if action == "events":
            # Reasons can quote what the people behind other keys wrote.
            is_mine = principal.is_owner or one.policy != self._shared_policy
            events = [
                *(_step_event(step, is_mine) for step in await record.steps(one.policy) if step.error),
                *(_version_event(each, is_mine) for each in await record.adapters(one.policy)),
            ]
            return page(sorted(events, key=lambda event: -event["created_at"]), options)
        if action == "checkpoints":
            versions = await record.adapters(one.policy)
            return page(
                [_checkpoint(job_id, each) for each in versions[::-1] if _is_published(each)], options
            )
        if action:
            if one.policy == self._shared_policy and not principal.is_owner:
                raise Untranslatable(
                    "Several keys share this policy: only an owner's key changes it.", status=403
                )
            if action == "rollback":
                return await self._job(record, await _roll_back(record, one))
            await record.set_paused(action == "pause", policy=one.policy)
        return await self._job(record, one)

    async def _job(self, record: Record, one: ServedPolicy) -> Json:
        versions = await record.adapters(one.policy)
        is_paused = await record.is_paused(one.policy)
        return {
            "id": f"{_JOB}{one.policy}",
            "object": "fine_tuning.job",
            "created_at": int(versions[0].created_at if versions else self._created_at),
            "model": adapter_name(one.policy, BASE_VERSION),
            "fine_tuned_model": adapter_name(one.policy, one.version) if one.version else None,
            # OpenAI's SDK knows no state for a pause.
            "status": "queued" if is_paused else "running",
            "metadata": {"paused": str(is_paused).lower()},
            "error": None,
            "finished_at": None,
            "hyperparameters": {"batch_size": "auto", "learning_rate_multiplier": "auto", "n_epochs": "auto"},
            "organization_id": "patina",
            "result_files": [],
            "seed": 0,
            "trained_tokens": None,
            "training_file": "record",
            "validation_file": None,
        }


_ACTIONS = frozenset(
    {
        ("GET", ""), ("GET", "events"), ("GET", "checkpoints"), ("POST", "pause"), ("POST", "resume"), ("POST", "rollback"),
    }
)  # fmt: skip


async def _roll_back(record: Record, one: ServedPolicy) -> ServedPolicy:
    """Make the version that the live one was trained from live again.

    Raises:
        Untranslatable: no version is live, or its parent cannot serve any more.
    """
    version = await record.adapter(one.policy, await record.live_version(one.policy))
    if version is None:
        raise Untranslatable("The base model is live: there is no version to take back.", status=409)
    try:
        await record.rollback(one.policy, version.parent_version, actor="client")
    except RecordError as exc:
        raise Untranslatable(f"It was not rolled back: {exc}.", status=409) from exc
    return replace(one, version=version.parent_version)


def _is_published(version: AdapterVersion) -> bool:
    return version.state is AdapterState.PUBLISHED


def _version_event(version: AdapterVersion, with_reason: bool) -> Json:
    message = f"{adapter_name(version.policy, version.version)} {version.state.value}"
    return {
        "object": "fine_tuning.job.event",
        "id": f"ftevent-{version.policy}@{version.version}",
        "created_at": int(version.created_at),
        "level": "info" if _is_published(version) else "warn",
        "message": f"{message}: {version.reason}" if with_reason and version.reason else message,
        "type": "metrics",
        "data": numbers_of(version.metrics),
    }


def _step_event(step: StepReport, with_reason: bool) -> Json:
    """Return the event of a step that failed; the others end in a version."""
    return {
        "object": "fine_tuning.job.event",
        "id": f"ftevent-{step.step_id}",
        "created_at": int(step.finished_at or step.started_at),
        "level": "error",
        "message": f"a step failed: {step.error}" if with_reason else "a step failed",
        "type": "message",
    }


def _checkpoint(job_id: str, version: AdapterVersion) -> Json:
    loss = version.metrics.get("loss")
    return {
        "object": "fine_tuning.job.checkpoint",
        "id": f"ftckpt-{version.policy}@{version.version}",
        "created_at": int(version.created_at),
        "fine_tuned_model_checkpoint": adapter_name(version.policy, version.version),
        "fine_tuning_job_id": job_id,
        "step_number": version.version,
        "metrics": {
            "step": version.version,
            **({"train_loss": loss} if isinstance(loss, int | float) else {}),
        },
    }
