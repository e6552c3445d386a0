"""``/v1/files`` and created jobs as the openai SDK uses them: what is taken, what is refused and how, and limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from proxy.fine_tuning import files
from tests.proxy.test_policies import People, people_at
from tests.proxy.upstream import Upstream

LINE = json.dumps({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hö."}]})
PAIR = json.dumps({
    "input": {"messages": [{"role": "user", "content": "Hi"}]},
    "preferred_output": [{"role": "assistant", "content": "Hello."}],
    "non_preferred_output": [{"role": "assistant", "content": "No."}],
})  # fmt: skip


@pytest.fixture(scope="module")
def people(empty_record: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    record_file = tmp_path_factory.mktemp("files") / "patina.db"
    record_file.write_bytes(empty_record.read_bytes())
    with people_at(record_file, Upstream()) as made:
        yield made


def upload(people: People, content: bytes | str, name: str = "ann", **more: Any) -> Any:
    api = people.client(name).files
    content = content.encode() if isinstance(content, str) else content
    return api.create(file=("own.jsonl", content), purpose=more.pop("purpose", "fine-tune"), **more)


def create(people: People, file_id: str, name: str = "ann", **more: Any) -> Any:
    wanted = {"model": "tiny", "training_file": file_id, **more}
    return people.client(name).fine_tuning.jobs.create(**wanted)


def test_a_file_is_kept_to_the_byte_and_listed_and_deleted(people: People) -> None:
    content = LINE.encode() + b"\r\n\r\n" + LINE.encode()
    file = upload(people, content)
    api = people.client("ann").files
    assert (file.object, file.filename, file.bytes, file.purpose) == (
        "file",
        "own.jsonl",
        len(content),
        "fine-tune",
    )
    assert api.content(file.id).read() == content
    assert [one.id for one in api.list()] == [file.id]
    assert list(api.list(purpose="batch")) == []
    assert list(people.client("boss").files.list()) == []
    job = create(people, file.id)
    assert api.delete(file.id).deleted
    assert list(api.list()) == []
    with pytest.raises(openai.NotFoundError):
        people.client("ann").fine_tuning.jobs.retrieve(job.id)
    (asked,) = people.gateway.in_record(lambda record: record.open_forget_jobs())
    assert (asked.key_name, asked.asked) == ("ann", f"turn {file.id}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"{LINE}\n{{", "Line 2: it is not valid JSON"),
        (b"a\n\xff", "Line 2: it is not UTF-8"),
        (LINE.replace("Hi", "\\u0000"), ""),
        (f"{LINE}\n{LINE}\0", "Line 2: it holds a NUL"),
        (f"{LINE}\n{PAIR}", "Line 2: it is for the method dpo"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_line(people: People, content: str | bytes, message: str) -> None:
    if not message:
        assert upload(people, content).status == "processed"
        return
    with pytest.raises(openai.BadRequestError) as caught:
        upload(people, content)
    assert isinstance(caught.value.body, dict)
    assert (caught.value.code, caught.value.param) == ("invalid_file", "file")
    assert caught.value.body["message"].startswith(message)


def test_other_purposes_and_forms_are_refused(people: People) -> None:
    with pytest.raises(openai.BadRequestError, match="fine-tuning only"):
        upload(people, LINE, purpose="assistants")
    key = {"authorization": f"Bearer {people.client('ann').api_key}"}
    url = f"{people.gateway.url}/v1/files"
    for request, status in (
        (httpx.Request("POST", url, headers=key, json={}), 415),
        (
            httpx.Request("POST", url, headers={**key, "content-type": "multipart/form-data"}, content=b"x"),
            400,
        ),
        (httpx.Request("POST", url, headers=key, files={"purpose": (None, "fine-tune")}), 400),
    ):
        with httpx.Client(verify=False) as client:
            assert client.send(request).status_code == status


def test_files_have_limits(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", len(LINE.encode()) - 1)
    with pytest.raises(openai.APIStatusError, match="the limit is") as caught:
        upload(people, LINE, "bob")
    assert caught.value.status_code == 413
    monkeypatch.undo()
    monkeypatch.setattr(files, "MOST_LINES", 1)
    with pytest.raises(openai.BadRequestError, match="Line 2: a file holds at most 1 lines"):
        upload(people, f"{LINE}\n{LINE}", "bob")
    monkeypatch.setattr(files, "MOST_FILES", 1)
    upload(people, LINE, "bob")
    with pytest.raises(openai.BadRequestError, match="at most 1 files"):
        upload(people, LINE, "bob")


def test_a_job_is_created_shown_and_cancelled(people: People) -> None:
    file = upload(people, LINE)
    assert create(people, file.id).hyperparameters.n_epochs == 25  # one example
    assert create(people, upload(people, "\n".join([LINE] * 50)).id).hyperparameters.n_epochs == 3
    job = create(people, file.id, suffix="mine", metadata={"a": "b"}, hyperparameters={"n_epochs": 2})
    assert (job.status, job.model, job.training_file, job.hyperparameters.n_epochs) == (
        "queued",
        "tiny.ann@0",
        file.id,
        2,
    )
    assert (job.metadata, job.method.type, job.trained_tokens) == ({"a": "b"}, "supervised", None)
    api = people.client("ann").fine_tuning.jobs
    assert api.list(limit=1).data[0].id == job.id
    assert [event.message for event in api.list_events(job.id)] == [f"Created fine-tuning job: {job.id}"]
    assert list(api.checkpoints.list(job.id)) == []
    for other in ("bob", "boss"):
        with pytest.raises(openai.NotFoundError):
            people.client(other).fine_tuning.jobs.cancel(job.id)
    assert api.cancel(job.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="The job is cancelled"):
        api.cancel(job.id)
    assert api.list_events(job.id).data[0].message == "The job was cancelled"


def test_what_a_job_cannot_do_is_refused_with_its_field(people: People) -> None:
    file = upload(people, LINE).id
    pair = upload(people, PAIR).id
    for wrong, param in (
        ({"training_file": "file-none"}, "training_file"),
        ({"training_file": pair}, "training_file"),
        ({"model": "tiny@9"}, "model"),
        ({"validation_file": file}, "validation_file"),
        ({"seed": 7}, "seed"),
        ({"suffix": "x" * 65}, "suffix"),
        ({"method": {"type": "reinforcement"}}, "method"),
        ({"hyperparameters": {"n_epochs": 0}}, "n_epochs"),
        ({"hyperparameters": {"n_epochs": True}}, "n_epochs"),
        ({"hyperparameters": {"batch_size": 4}}, "batch_size"),
        ({"metadata": {"a": 1}}, "metadata"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            create(people, file, **wrong)
        assert caught.value.param == param
    with pytest.raises(openai.PermissionDeniedError, match="Several keys share"):
        create(people, upload(people, LINE, "eve").id, "eve")
