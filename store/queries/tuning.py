"""Uploaded training files and fine-tuning jobs, each of one key.

queued -> running -> succeeded | failed, and cancelled from the first two. The transaction that writes a job's version ends the job; a job whose
trainer died stays running and is begun again, `MOST_ATTEMPTS` times in all.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from store import schema
from store.errors import ClaimLost
from store.hashing import exact_json
from store.queries.common import moment, read_object, value_of
from store.queries.forget_jobs import ask
from store.values import (
    AdapterState,
    AdapterVersion,
    Selection,
    TrainingFile,
    TuningData,
    TuningJob,
    TuningStatus,
)

MOST_ATTEMPTS = 3
_OPEN = [TuningStatus.QUEUED.value, TuningStatus.RUNNING.value]


def add_file(connection: sa.Connection, file: TrainingFile) -> None:
    """Keep a file."""
    connection.execute(sa.insert(schema.training_files).values(**asdict(file)))


def files(connection: sa.Connection, key_name: str) -> list[TrainingFile]:
    """Return the files of a key, newest first, without their content."""
    f = schema.training_files
    columns = [column for column in f.c if column.name not in ("content", "deleted_at")]
    rows = connection.execute(
        sa.select(*columns, sa.literal("").label("content"))
        .where(f.c.key_name == key_name, f.c.deleted_at.is_(None))
        .order_by(f.c.created_at.desc(), f.c.file_id)
    )
    return [TrainingFile(**row._mapping) for row in rows]


def file(connection: sa.Connection, key_name: str, file_id: str) -> TrainingFile | None:
    """Return a file of a key, with its content."""
    f = schema.training_files
    columns = [column for column in f.c if column.name != "deleted_at"]
    row = connection.execute(
        sa.select(*columns).where(f.c.key_name == key_name, f.c.file_id == file_id, f.c.deleted_at.is_(None))
    ).one_or_none()
    return None if row is None else TrainingFile(**row._mapping)


def delete_file(connection: sa.Connection, key_name: str, file_id: str, now: float | None = None) -> bool:
    """Hide a file of a key, end its jobs, and ask for it and what learnt from it to be forgotten; returns whether it was there."""
    at, f, j = moment(now), schema.training_files, schema.tuning_jobs
    is_it = sa.and_(f.c.key_name == key_name, f.c.file_id == file_id, f.c.deleted_at.is_(None))
    if not connection.execute(sa.update(f).where(is_it).values(deleted_at=at)).rowcount:
        return False
    connection.execute(
        sa.update(j)
        .where(j.c.file_id == file_id, j.c.status.in_(_OPEN))
        .values(status=TuningStatus.CANCELLED.value, finished_at=at)
    )
    ask(connection, Selection(turn=file_id), key_name=key_name, now=at)
    return True


def add_job(connection: sa.Connection, job: TuningJob) -> None:
    """Queue a job."""
    connection.execute(
        sa.insert(schema.tuning_jobs).values(
            **{**asdict(job), "status": job.status.value, "detail": exact_json(job.detail)}
        )
    )


def jobs(connection: sa.Connection, key_name: str) -> list[TuningJob]:
    """Return the jobs of a key, newest first."""
    j, f = schema.tuning_jobs, schema.training_files
    rows = connection.execute(
        sa.select(j)
        .join(f, f.c.file_id == j.c.file_id)
        .where(j.c.key_name == key_name, f.c.deleted_at.is_(None))
        .order_by(j.c.created_at.desc(), j.c.job_id)
    )
    return [_job(row) for row in rows]


def cancel_job(connection: sa.Connection, job_id: str, now: float | None = None) -> bool:
    """Cancel a job; returns whether it was open."""
    return _end(connection, job_id, TuningStatus.CANCELLED, moment(now))


def open_jobs(connection: sa.Connection) -> dict[str, TuningJob]:
    """Return the oldest open job of each policy."""
    j = schema.tuning_jobs
    rows = connection.execute(
        sa.select(j).where(j.c.status.in_(_OPEN)).order_by(j.c.created_at.desc(), j.c.job_id.desc())
    )
    return {row.policy: _job(row) for row in rows}


def begin_job(connection: sa.Connection, job_id: str, now: float | None = None) -> bool:
    """Note that the trainer begins with a job; returns False when it must not: it is not open, or the trainer died with it too often."""
    at, j = moment(now), schema.tuning_jobs
    may = sa.and_(j.c.job_id == job_id, j.c.status.in_(_OPEN), j.c.attempts < MOST_ATTEMPTS)
    values: dict[str, Any] = {
        "status": TuningStatus.RUNNING.value,
        "attempts": j.c.attempts + 1,
        "started_at": sa.func.coalesce(j.c.started_at, at),
    }
    if connection.execute(sa.update(j).where(may).values(**values)).rowcount:
        return True
    _end(connection, job_id, TuningStatus.FAILED, at, error=f"the trainer died {MOST_ATTEMPTS} times with it")
    return False


def fail_job(
    connection: sa.Connection, job_id: str, error: str, *, is_final: bool, now: float | None = None
) -> None:
    """Note that an attempt failed; after the last one, or where another would not help, the job ends."""
    j = schema.tuning_jobs
    done = connection.execute(sa.select(j.c.attempts).where(j.c.job_id == job_id)).scalar_one_or_none()
    if is_final or (done or 0) >= MOST_ATTEMPTS:
        _end(connection, job_id, TuningStatus.FAILED, moment(now), error=error)


def settle(connection: sa.Connection, adapter: AdapterVersion) -> None:
    """End the job that made a version, in the version's transaction.

    Raises:
        ClaimLost: the job was cancelled meanwhile.
    """
    job_id = adapter.metrics.get("tuning_job")
    if job_id is None:
        return
    is_rejected = adapter.state is not AdapterState.PUBLISHED
    to = TuningStatus.FAILED if is_rejected else TuningStatus.SUCCEEDED
    error = adapter.reason if is_rejected else ""
    if not _end(connection, job_id, to, adapter.created_at, version=adapter.version, error=error):
        raise ClaimLost(f"the job {job_id} was cancelled: its version is not kept")


def data(
    connection: sa.Connection, policy: str, job_id: str | None, *, with_earlier: bool
) -> list[TuningData]:
    """Return the examples that a version of a policy learns, oldest job first: of a job, and of those that succeeded before."""
    j, f = schema.tuning_jobs, schema.training_files
    wanted = j.c.job_id == (job_id or "")
    if with_earlier:
        wanted |= j.c.status == TuningStatus.SUCCEEDED.value
    rows = connection.execute(
        sa.select(j.c.job_id, j.c.file_id, j.c.method, j.c.epochs, j.c.beta, f.c.content)
        .join(f, f.c.file_id == j.c.file_id)
        .where(j.c.policy == policy, f.c.deleted_at.is_(None), wanted)
        .order_by(j.c.created_at, j.c.job_id)
    )
    return [TuningData(**row._mapping) for row in rows]


def _end(
    connection: sa.Connection,
    job_id: str,
    to: TuningStatus,
    at: float,
    *,
    version: int | None = None,
    error: str = "",
) -> bool:
    j = schema.tuning_jobs
    query = sa.update(j).where(j.c.job_id == job_id, j.c.status.in_(_OPEN))
    values = {"status": to.value, "finished_at": at, "version": version, "error": error}
    return bool(connection.execute(query.values(**values)).rowcount)


def _job(row: Row[Any]) -> TuningJob:
    return value_of(TuningJob, row, status=TuningStatus(row.status), detail=read_object(row.detail))
