"""Training as the openai SDK shows fine-tuning."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from store.values import AdapterState, StepReport
from tests.proxy.test_adapters import make_adapter
from tests.proxy.test_policies import People, people_at
from tests.proxy.upstream import Upstream


@pytest.fixture(scope="module")
def people(empty_record: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    """Two policies: the shared one with a version and a rejected one, and ann's with a version and a failed step."""
    folder = tmp_path_factory.mktemp("fine_tuning")
    record_file = folder / "patina.db"
    record_file.write_bytes(empty_record.read_bytes())
    with people_at(record_file, Upstream()) as made:
        made.publish("tiny", 1, folder)
        made.publish("tiny.ann", 1, folder)
        step = StepReport(
            step_id="s", policy="tiny", method="combine", started_at=1.0, finished_at=2.0, version=2, error=None, metrics={},
        )  # fmt: skip
        rejected = dataclasses.replace(
            make_adapter("tiny", 2, folder, created_at=9e9),
            state=AdapterState.REJECTED,
            reason="it forgot 'short answers'",
            metrics={"loss": 0.5, "words": "short answers"},
        )
        failed = dataclasses.replace(
            step, step_id="f", policy="tiny.ann", version=None, error="out of memory"
        )
        made.gateway.in_record(lambda record: record.reject(rejected, step, worker="w"))
        made.gateway.in_record(lambda record: record.write_step(failed))
        yield made


def jobs(people: People, name: str) -> Any:
    return people.client(name).fine_tuning.jobs


def test_an_owner_has_a_job_for_each_policy_and_another_key_its_own(people: People) -> None:
    assert {job.id for job in jobs(people, "boss").list()} >= {
        "ftjob-tiny.boss",
        "ftjob-tiny",
        "ftjob-tiny.ann",
    }
    (job,) = jobs(people, "ann").list()
    assert (job.id, job.status, job.model, job.fine_tuned_model) == (
        "ftjob-tiny.ann",
        "running",
        "tiny.ann@0",
        "tiny.ann@1",
    )
    with pytest.raises(openai.NotFoundError):
        jobs(people, "ann").retrieve("ftjob-tiny")


def test_checkpoints_are_versions_and_events_what_the_gate_said(people: People) -> None:
    owner = jobs(people, "boss")
    (checkpoint,) = owner.checkpoints.list("ftjob-tiny")
    with pytest.raises(openai.NotFoundError, match="no item 'absent'"):
        owner.checkpoints.list("ftjob-tiny", after="absent")
    assert (checkpoint.fine_tuned_model_checkpoint, checkpoint.step_number) == ("tiny@1", 1)
    newest, first = owner.list_events("ftjob-tiny")
    assert (newest.level, newest.message) == ("warn", "tiny@2 rejected: it forgot 'short answers'")
    assert newest.data == {"loss": 0.5}
    assert (first.level, first.message.partition(":")[0]) == ("info", "tiny@1 published")
    (page,) = [owner.list_events("ftjob-tiny", limit=1)]
    assert (len(page.data), page.has_more) == (1, True)
    assert [event.level for event in jobs(people, "ann").list_events("ftjob-tiny.ann")] == ["info", "error"]


def test_reasons_of_a_shared_policy_are_its_owners(people: People) -> None:
    events = list(jobs(people, "eve").list_events("ftjob-tiny"))
    assert [event.message for event in events] == ["tiny@2 rejected", "tiny@1 published"]


def test_a_job_is_paused_and_resumed_by_those_who_own_its_policy(people: People) -> None:
    mine = jobs(people, "ann")
    assert mine.pause("ftjob-tiny.ann").status == "queued"
    assert people.gateway.in_record(lambda record: record.is_paused("tiny.ann"))
    assert mine.retrieve("ftjob-tiny.ann").metadata == {"paused": "true"}
    assert mine.resume("ftjob-tiny.ann").status == "running"
    assert not people.gateway.in_record(lambda record: record.is_paused("tiny.ann"))
    with pytest.raises(openai.PermissionDeniedError, match="Several keys share"):
        jobs(people, "eve").pause("ftjob-tiny")
    assert jobs(people, "boss").pause("ftjob-tiny").status == "queued"
    jobs(people, "boss").resume("ftjob-tiny")


def test_the_job_of_a_policy_is_not_cancelled(people: People) -> None:
    with pytest.raises(openai.BadRequestError, match="Pause it instead"):
        jobs(people, "ann").cancel("ftjob-tiny.ann")


def test_the_version_before_the_live_one_serves_again(people: People) -> None:
    url = people.gateway.url

    def roll_back(name: str, policy: str) -> tuple[int, Any]:
        reply = httpx.post(
            f"{url}/v1/fine_tuning/jobs/ftjob-{policy}/rollback",
            headers={"authorization": f"Bearer {people.client(name).api_key}"},
            verify=False,
        )
        return reply.status_code, reply.json()

    assert roll_back("eve", "tiny")[0] == 403
    status, job = roll_back("ann", "tiny.ann")
    assert (status, job["fine_tuned_model"]) == (200, None)
    moves = people.gateway.in_record(lambda record: record.alias_moves("tiny.ann"))
    assert [(move.version, move.actor) for move in moves][-1] == (0, "client")
    status, answer = roll_back("ann", "tiny.ann")
    assert (status, answer["error"]["message"].partition(":")[0]) == (409, "The base model is live")
