"""Training files and fine-tuning jobs in the record: of one key, ended by the transaction of their version, and forgotten."""

from __future__ import annotations

import pytest

from store.errors import ClaimLost
from store.record import Record
from store.values import (
    AdapterState,
    Selection,
    StepInputs,
    StepReport,
    StepRole,
    TrainingFile,
    TuningJob,
    TuningStatus,
)
from tests.making import make_adapter, make_turn

POLICY = "patina-tiny"
WORDS = "The password of the cellar is hawthorn-77."


async def add(
    record: Record, name: str, *, key: str = "ann", content: str = "{}", at: float = 1.0
) -> TuningJob:
    file = TrainingFile(
        file_id=f"file-{name}", key_name=key, filename="a", size=2, method="supervised", content=content, created_at=at
    )  # fmt: skip
    job = TuningJob(
        job_id=f"job-{name}", key_name=key, policy=POLICY, file_id=file.file_id, method="supervised", epochs=3, beta=0.1,
        status=TuningStatus.QUEUED, detail={"suffix": None, "metadata": {}}, created_at=at,
    )  # fmt: skip
    await record.add_training_file(file)
    await record.add_tuning_job(job)
    return job


async def train(record: Record, job: TuningJob, version: int, *files: str, rejected: bool = False) -> None:
    adapter = make_adapter(
        POLICY,
        version,
        parent_version=0,
        metrics={"tuning_job": job.job_id},
        state=AdapterState.REJECTED if rejected else AdapterState.PUBLISHED,
        reason="it forgot facts" if rejected else "",
    )
    step = StepReport(
        step_id=f"s{version}", policy=POLICY, method="combine", started_at=1.0, finished_at=2.0, version=version, error=None, metrics={},
        inputs=StepInputs(turns={StepRole.FILE: tuple((one, 0) for one in files or (job.file_id,))}, settings={}),
    )  # fmt: skip
    if rejected:
        await record.reject(adapter, step, worker="w")
    else:
        await record.publish(adapter, [], step, worker="w", live=await record.live_version(POLICY))


async def status(record: Record, job: TuningJob) -> TuningStatus | None:
    return next(
        (one.status for one in await record.tuning_jobs(job.key_name) if one.job_id == job.job_id), None
    )


async def test_a_job_ends_with_the_transaction_of_its_version(record: Record) -> None:
    first, second = await add(record, "a"), await add(record, "b", at=2.0)
    assert (await record.open_tuning_jobs())[POLICY].job_id == "job-a"
    assert await record.begin_tuning_job("job-a")
    await train(record, first, 1)
    assert await status(record, first) is TuningStatus.SUCCEEDED
    assert (await record.open_tuning_jobs())[POLICY].job_id == "job-b"
    assert [one.job_id for one in await record.tuning_data(POLICY, "job-b", with_earlier=True)] == [
        "job-a",
        "job-b",
    ]
    assert [one.job_id for one in await record.tuning_data(POLICY, "job-b", with_earlier=False)] == ["job-b"]
    await train(record, second, 2, rejected=True)
    (found,) = [one for one in await record.tuning_jobs("ann") if one.job_id == "job-b"]
    assert (found.status, found.version, found.error) == (TuningStatus.FAILED, 2, "it forgot facts")
    assert await record.open_tuning_jobs() == {}


async def test_the_version_of_a_cancelled_job_is_not_kept(record: Record) -> None:
    job = await add(record, "a")
    await record.begin_tuning_job("job-a")
    assert await record.cancel_tuning_job("job-a")
    assert not await record.cancel_tuning_job("job-a")
    with pytest.raises(ClaimLost, match="was cancelled"):
        await train(record, job, 1)
    assert await record.adapters(POLICY) == []
    assert await status(record, job) is TuningStatus.CANCELLED


async def test_a_job_that_the_trainer_dies_with_ends_after_three_attempts(record: Record) -> None:
    job = await add(record, "a")
    assert [await record.begin_tuning_job("job-a") for _ in range(4)] == [True, True, True, False]
    assert await status(record, job) is TuningStatus.FAILED


async def test_an_error_ends_a_job_at_its_last_attempt_or_at_once(record: Record) -> None:
    job, other = await add(record, "a"), await add(record, "b")
    await record.begin_tuning_job("job-a")
    await record.fail_tuning_job("job-a", "no memory", is_final=False)
    assert await status(record, job) is TuningStatus.RUNNING
    await record.fail_tuning_job("job-b", "too long", is_final=True)
    assert await status(record, other) is TuningStatus.FAILED


async def test_a_deleted_file_takes_its_jobs_and_every_version_that_learnt_from_it(record: Record) -> None:
    first, second = await add(record, "a", content=WORDS), await add(record, "b", at=2.0)
    await train(record, first, 1)
    await train(record, second, 2, "file-a", "file-b")
    assert not await record.delete_training_file("bob", "file-a")
    assert await record.delete_training_file("ann", "file-a")
    assert [one.file_id for one in await record.training_files("ann")] == ["file-b"]
    assert await record.holds_training()
    (asked,) = await record.open_forget_jobs()
    found = await record.delete_asked(asked.job_id, key=b"k")
    receipt = found.detail["receipt"]
    assert (receipt["files"], receipt["tainted"]) == (["file-a"], {POLICY: [1, 2]})
    assert set(receipt["turns"]) == {"file-a"}
    assert await record.live_version(POLICY) == 0
    assert {one.state for one in await record.adapters(POLICY)} == {AdapterState.FORGOTTEN}
    # what another file taught is to be learnt again, without the forgotten one
    assert await status(record, second) is TuningStatus.QUEUED
    assert [one.file_id for one in await record.tuning_data(POLICY, "job-b", with_earlier=True)] == ["file-b"]
    assert await record.found_again(["file-a"], [], b"k") == []


async def test_a_key_and_a_text_take_the_files_that_are_theirs(record: Record) -> None:
    await add(record, "a", content=f'{{"a": "{WORDS}"}}')
    await add(record, "b", key="bob", content=f'{{"a": "{WORDS}"}}')
    await add(record, "c")
    assert (await record.find_closure(Selection(match="HAWTHORN-77"))).files == ("file-a", "file-b")
    assert (await record.find_closure(Selection(match="hawthorn-77", key_name="bob"))).files == ("file-b",)
    assert (await record.find_closure(Selection(key_name="ann"))).files == ("file-a", "file-c")
    assert (await record.find_closure(Selection(turns=("file-c",)))).files == ("file-c",)


async def test_a_file_that_repeats_a_line_of_a_forgotten_turn_goes_with_it(record: Record) -> None:
    await record.write_turns([make_turn("said", [{"role": "user", "content": WORDS}], key_name="ann")])
    await add(record, "a", content=f'{{"a": "{WORDS}"}}')
    await add(record, "b", key="bob", content=f'{{"a": "{WORDS}"}}')
    assert (await record.find_closure(Selection(turn="said"))).files == ("file-a",)
