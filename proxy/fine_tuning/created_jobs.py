"""Jobs that a client creates: a version of its policy that learns the examples of an uploaded file."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from proxy.adapters import Alias, UnknownModel
from proxy.auth import Principal
from proxy.item_pages import page, read_metadata
from store.record import Record
from store.values import (
    BASE_VERSION,
    AdapterVersion,
    Json,
    TuningJob,
    TuningMethod,
    TuningStatus,
    adapter_name,
)
from wire.api_translation import Untranslatable
from wire.training_file import read_examples

#: Epochs by themselves: 3, and of few examples as many as make 100 in all, at most 25. Source: OpenAI's cookbook, "Data preparation and
#: analysis for chat model fine-tuning".
_EPOCHS, _LEAST_EXAMPLES, _MOST_AUTO = 3, 100, 25
_MOST_EPOCHS = 50
_BETA = 0.1
#: Fields of OpenAI's that change nothing here; to take them would promise what does not happen.
_UNUSED = {
    "seed": "--seed sets it for all training",
    "validation_file": "each version is tested by Patina's own requests",
    "integrations": "--wandb-project logs to Weights & Biases",
}


async def create_job(
    record: Record, body: Json, *, principal: Principal, alias: Alias, shared_policy: str, refusal: str
) -> Json:
    """Queue a job.

    Args:
        refusal: why there is no such training here; "": there is.

    Raises:
        Untranslatable: the request cannot be met.
    """
    if refusal:
        raise Untranslatable(refusal)
    if not principal.trains:
        raise Untranslatable("This key does not train (keys add --no-train).", status=403)
    for name, instead in _UNUSED.items():
        if body.get(name):
            raise Untranslatable(f"{name} is not used here: {instead}.", param=name)
    policy = _policy(body, principal, alias)
    if policy == shared_policy and not principal.is_owner:
        raise Untranslatable(
            "Several keys share this policy: only an owner's key changes it.", status=403, param="model"
        )
    file = await record.training_file(principal.key_name, str(body.get("training_file")))
    if file is None:
        raise Untranslatable(
            f"There is no file '{body.get('training_file')}': upload it to /v1/files with purpose 'fine-tune'.",
            code="invalid_training_file",
            param="training_file",
        )
    method, options = _method(body)
    if method != file.method:
        raise Untranslatable(
            f"The file {file.file_id} is for the method {file.method}, not {method}.",
            code="invalid_training_file",
            param="training_file",
        )
    _, examples = await asyncio.to_thread(read_examples, file.content, most_lines=file.size)
    suffix = body.get("suffix")
    if suffix is not None and (not isinstance(suffix, str) or len(suffix) > 64):
        raise Untranslatable("suffix is a text of at most 64 characters.", param="suffix")
    job = TuningJob(
        job_id=f"ftjob-{uuid4().hex}",
        key_name=principal.key_name,
        policy=policy,
        file_id=file.file_id,
        method=method,
        epochs=_number(options, "n_epochs", _auto_epochs(len(examples)), least=1, most=_MOST_EPOCHS),
        beta=_number(options, "beta", _BETA, least=0.0, most=2.0),
        status=TuningStatus.QUEUED,
        detail={"suffix": suffix, "metadata": read_metadata(body)},
        created_at=time.time(),
    )
    await record.add_tuning_job(job)
    return await shown_job(record, job)


def _auto_epochs(count: int) -> int:
    """Return the epochs of so many examples."""
    return max(_EPOCHS, min(_MOST_AUTO, _LEAST_EXAMPLES // count))


def _policy(body: Json, principal: Principal, alias: Alias) -> str:
    """Return the policy that a request means."""
    model = body.get("model")
    try:
        if not isinstance(model, str):
            raise UnknownModel("model is the name of a model of this server.")
        policy, version = alias.resolve(model, group=principal.adapter, is_owner=principal.is_owner)
    except UnknownModel as exc:
        raise Untranslatable(str(exc), status=404, code="model_not_found", param="model") from exc
    if version not in (None, BASE_VERSION):
        raise Untranslatable(
            f"A job begins at the base model and learns what the live version has learnt as well: name {policy}.",
            param="model",
        )
    return policy


def _method(body: Json) -> tuple[TuningMethod, Mapping[str, Any]]:
    """Return the method of a request and its hyperparameters."""
    given: Any = body.get("method") or {"type": "supervised"}
    kind = given.get("type") if isinstance(given, dict) else None
    if kind not in ("supervised", "dpo"):
        raise Untranslatable("method.type is 'supervised' or 'dpo'.", param="method")
    own = given.get(kind) or {}
    options = (
        (own.get("hyperparameters") if isinstance(own, dict) else None) or body.get("hyperparameters") or {}
    )
    if not isinstance(options, dict):
        raise Untranslatable("hyperparameters is an object.", param="hyperparameters")
    for name in ("batch_size", "learning_rate_multiplier"):
        if options.get(name, "auto") != "auto":
            raise Untranslatable(f"{name} must be 'auto': a setting of the server decides.", param=name)
    return kind, options


def _number(options: Mapping[str, Any], name: str, default: Any, *, least: float, most: float) -> Any:
    value = options.get(name, "auto")
    if value == "auto":
        return default
    kinds = (int, float) if isinstance(default, float) else (int,)
    if (
        isinstance(value, bool)
        or not isinstance(value, kinds)
        or not (math.isfinite(value) and least <= value <= most)
    ):
        raise Untranslatable(f"{name} is 'auto' or a number from {least} to {most}.", param=name)
    return value


async def find_job(record: Record, key_name: str, job_id: str) -> TuningJob | None:
    """Return a job of a key."""
    return next((one for one in await record.tuning_jobs(key_name) if one.job_id == job_id), None)


async def answer_job(
    record: Record, job: TuningJob, method: str, action: str, options: Mapping[str, str]
) -> Json:
    """Answer a request about a job. Raises: Untranslatable."""
    version = await _version(record, job)
    if (method, action) == ("GET", "events"):
        return page(_events(job, version), options)
    if (method, action) == ("GET", "checkpoints"):
        return page(
            [_checkpoint(job, version)] if version and job.status == TuningStatus.SUCCEEDED else [], options
        )
    if (method, action) == ("POST", "cancel"):
        if not await record.cancel_tuning_job(job.job_id):
            raise Untranslatable(f"The job is {job.status}: it cannot be cancelled.")
        job = await find_job(record, job.key_name, job.job_id) or job
    elif (method, action) != ("GET", ""):
        raise Untranslatable(f"A job has no '{action}' here: send GET, or POST to cancel.", status=404)
    return await shown_job(record, job)


async def shown_job(record: Record, job: TuningJob) -> Json:
    """Return a job as OpenAI shows it."""
    version = await _version(record, job)
    hyper: Json = {"batch_size": "auto", "learning_rate_multiplier": "auto", "n_epochs": job.epochs}
    if job.method == "dpo":
        hyper["beta"] = job.beta
    succeeded = job.status == TuningStatus.SUCCEEDED and job.version is not None
    failed = job.status == TuningStatus.FAILED
    return {
        "id": job.job_id,
        "object": "fine_tuning.job",
        "created_at": int(job.created_at),
        "model": adapter_name(job.policy, BASE_VERSION),
        "fine_tuned_model": adapter_name(job.policy, job.version or 0) if succeeded else None,
        "status": job.status.value,
        "error": {"code": "job_failed", "message": job.error, "param": None} if failed else None,
        "finished_at": None if job.finished_at is None else int(job.finished_at),
        "hyperparameters": hyper,
        "method": {"type": job.method, job.method: {"hyperparameters": hyper}},
        "metadata": job.detail["metadata"],
        "user_provided_suffix": job.detail["suffix"],
        "organization_id": "patina",
        "result_files": [],
        "seed": 0,
        "trained_tokens": version.metrics.get("trained_tokens") if succeeded and version else None,
        "training_file": job.file_id,
        "validation_file": None,
    }


async def _version(record: Record, job: TuningJob) -> AdapterVersion | None:
    return None if job.version is None else await record.adapter(job.policy, job.version)


def _events(job: TuningJob, version: AdapterVersion | None) -> list[Json]:
    """Return what happened to a job, newest first."""
    moments: list[tuple[float | None, str, str]] = [
        (job.created_at, "info", f"Created fine-tuning job: {job.job_id}"),
        (job.started_at, "info", "Fine-tuning job started"),
    ]
    if job.status == TuningStatus.SUCCEEDED and job.version is not None:
        reason = f": {version.reason}" if version is not None and version.reason else ""
        moments.append(
            (
                job.finished_at,
                "info",
                f"New fine-tuned model created: {adapter_name(job.policy, job.version)}{reason}",
            )
        )
        moments.append((job.finished_at, "info", "The job has successfully completed"))
    elif job.status == TuningStatus.FAILED:
        moments.append((job.finished_at, "error", f"The job failed: {job.error}"))
    elif job.status == TuningStatus.CANCELLED:
        moments.append((job.finished_at, "warn", "The job was cancelled"))
    return [
        {
            "object": "fine_tuning.job.event",
            "id": f"ftevent-{job.job_id}-{number}",
            "created_at": int(at),
            "level": level,
            "message": message,
            "type": "message",
        }
        for number, (at, level, message) in enumerate(moments)
        if at is not None
    ][::-1]


def _checkpoint(job: TuningJob, version: AdapterVersion) -> Json:
    return {
        "object": "fine_tuning.job.checkpoint",
        "id": f"ftckpt-{job.job_id}",
        "created_at": int(version.created_at),
        "fine_tuned_model_checkpoint": adapter_name(version.policy, version.version),
        "fine_tuning_job_id": job.job_id,
        "step_number": version.version,
        "metrics": {"step": version.version, "train_loss": version.metrics.get("loss_after")},
    }
