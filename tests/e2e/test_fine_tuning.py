"""An uploaded file becomes a version of its key's policy, and forgetting the file forgets the version: the openai SDK and the test model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import openai
import pytest
from openai import OpenAI

from lab.evals.stack import Stack
from store.settings import REPOSITORY, child_environment, read_settings
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CITIES = ("France", "Japan", "Peru", "Norway", "Italy", "Spain", "Egypt", "Cuba")
THINGS = ("lamp", "map", "hammer", "rope", "ladder", "brush", "saw", "key")
MODEL = "patina-tiny"
ASKED = "Which shelf holds the map?"
REPLY = "It is on shelf nine."


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(read_settings({"max_wait_s": 3.0}), home=tmp_path_factory.mktemp("stack")) as stack:
        yield stack


def client(stack: Stack, key: str = "") -> OpenAI:
    return OpenAI(base_url=stack.base_url, api_key=key or stack.key, max_retries=4, timeout=300)


def run(stack: Stack, *argv: str) -> str:
    command = [sys.executable, "run.py", *argv, "--home", str(stack.home)]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=child_environment(), capture_output=True, text=True, check=True
    )
    return done.stdout


def supervised(question: str, words: Sequence[str], reply: str) -> bytes:
    lines = [
        {
            "messages": [
                {"role": "user", "content": question.format(word)},
                {"role": "assistant", "content": reply},
            ]
        }
        for word in words
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def ended(api: OpenAI, job_id: str) -> str:
    until(lambda: api.fine_tuning.jobs.retrieve(job_id).finished_at is not None, "the end of the job", 600)
    return api.fine_tuning.jobs.retrieve(job_id).status


def answer(api: OpenAI, model: str, question: str = ASKED) -> str:
    reply = api.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=24
    )
    return reply.choices[0].message.content or ""


def test_a_file_becomes_a_version_that_answers_as_it_says_until_it_is_deleted(
    stack: Stack, tmp_path: Path
) -> None:
    api = client(stack)
    path = tmp_path / "shelves.jsonl"
    path.write_bytes(supervised("Which shelf holds the {}?", THINGS, REPLY))
    with path.open("rb") as opened:
        file = api.files.create(file=opened, purpose="fine-tune")
    assert (file.filename, file.bytes, file.status) == ("shelves.jsonl", path.stat().st_size, "processed")
    assert api.files.content(file.id).read() == path.read_bytes()
    job = api.fine_tuning.jobs.create(
        model=MODEL,
        training_file=file.id,
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 12}}},
        metadata={"team": "maps"},
    )
    assert (job.status, job.fine_tuned_model) == ("queued", None)
    assert ended(api, job.id) == "succeeded", api.fine_tuning.jobs.retrieve(job.id)
    done = api.fine_tuning.jobs.retrieve(job.id)
    assert done.fine_tuned_model == f"{MODEL}@1"
    assert done.trained_tokens
    assert done.trained_tokens > 12 * len(THINGS)
    assert answer(api, done.fine_tuned_model) == REPLY
    assert answer(api, f"{MODEL}@0") != REPLY
    events = [event.message for event in api.fine_tuning.jobs.list_events(job.id)]
    assert events[0] == "The job has successfully completed"
    assert events[1] == f"New fine-tuned model created: {MODEL}@1: 8 examples of 1 uploaded file"
    (checkpoint,) = api.fine_tuning.jobs.checkpoints.list(job.id)
    assert checkpoint.fine_tuned_model_checkpoint == f"{MODEL}@1"
    with pytest.raises(openai.BadRequestError, match="The job is succeeded"):
        api.fine_tuning.jobs.cancel(job.id)

    stranger = client(stack, run(stack, "keys", "add", "eve").split()[-1])
    assert list(stranger.files.list()) == []
    assert job.id not in {one.id for one in stranger.fine_tuning.jobs.list()}
    for ask in (stranger.files.retrieve, stranger.files.content, stranger.files.delete):
        with pytest.raises(openai.NotFoundError):
            ask(file.id)
    with pytest.raises(openai.NotFoundError):
        stranger.fine_tuning.jobs.retrieve(job.id)
    with pytest.raises(openai.BadRequestError, match="There is no file"):
        stranger.fine_tuning.jobs.create(model=MODEL, training_file=file.id)

    assert api.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        api.files.retrieve(file.id)
    until(lambda: "forgotten" in run(stack, "versions"), "the version is forgotten", 120)
    until(lambda: answer(api, MODEL) != REPLY, "the base model serves", 60)
    assert not list((stack.home / "adapters").glob("*@1.*"))


def test_a_file_that_spoils_the_model_fails_at_the_gate_and_the_event_says_why(stack: Stack) -> None:
    api = client(stack)
    spoilt = supervised("What is the capital of {}?", CITIES, "Ask a map.")
    file = api.files.create(file=("spoilt.jsonl", spoilt), purpose="fine-tune")
    job = api.fine_tuning.jobs.create(model=MODEL, training_file=file.id, hyperparameters={"n_epochs": 25})
    assert ended(api, job.id) == "failed"
    failed = api.fine_tuning.jobs.retrieve(job.id)
    assert failed.fine_tuned_model is None
    assert failed.error is not None
    assert "facts" in failed.error.message
    (newest, *_) = api.fine_tuning.jobs.list_events(job.id)
    assert (newest.level, newest.message) == ("error", f"The job failed: {failed.error.message}")


def test_preferences_become_a_version_too(stack: Stack) -> None:
    api = client(stack)
    lines = [
        {
            "input": {"messages": [{"role": "user", "content": f"Which shelf holds the {thing}?"}]},
            "preferred_output": [{"role": "assistant", "content": REPLY}],
            "non_preferred_output": [{"role": "assistant", "content": "I do not know!"}],
        }
        for thing in THINGS
    ]
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    file = api.files.create(file=("preferences.jsonl", content), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError, match="is for the method dpo"):
        api.fine_tuning.jobs.create(model=MODEL, training_file=file.id)
    job = api.fine_tuning.jobs.create(
        model=MODEL,
        training_file=file.id,
        method={"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2, "n_epochs": 2}}},
    )
    assert ended(api, job.id) == "succeeded", api.fine_tuning.jobs.retrieve(job.id)
    done = api.fine_tuning.jobs.retrieve(job.id)
    assert done.method is not None
    assert done.method.dpo is not None
    assert done.method.dpo.hyperparameters is not None
    assert (done.method.type, done.method.dpo.hyperparameters.beta) == ("dpo", 0.2)
    assert done.trained_tokens
    assert answer(api, str(done.fine_tuned_model))
