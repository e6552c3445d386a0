"""The alias moves without anybody waiting: swaps, rollbacks, broken folders, restarted backends."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from store.errors import AdapterMismatch, RecordError
from store.integrity import readmit_version
from store.manifest import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    MANIFEST,
    ModelDigests,
    build_manifest,
    content_hash,
    hash_manifest,
)
from store.values import AdapterState, AdapterVersion, StepReport
from tests.proxy.conftest import Gateway, run_gateway, run_gateway_at
from tests.proxy.test_relay import get
from tests.proxy.upstream import Upstream, free_socket, running
from tests.waiting import until


def make_adapter(policy: str, version: int, parent: Path, *, created_at: float) -> AdapterVersion:
    """Return a version whose files, with a manifest, are in a folder of ``parent``, where that exists."""
    data = f"weights of {policy}@{version}".encode()
    head = json.dumps(
        {"note": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}
    ).encode()
    files = {
        ADAPTER_CONFIG: b'{"peft_type": "LORA", "r": 1}',
        ADAPTER_WEIGHTS: len(head).to_bytes(8, "little") + head + data,
    }
    manifest = build_manifest(files, name=f"{policy}@{version}", model=ModelDigests())
    folder = parent / f"{policy}@{version}"
    if parent.exists():
        folder.mkdir(exist_ok=True)
        for name, body in {**files, MANIFEST: manifest}.items():
            (folder / name).write_bytes(body)
    return AdapterVersion(
        policy=policy, version=version, path=str(folder), content_hash=content_hash(files),
        parent_version=version - 1, state=AdapterState.PUBLISHED, reason="", method="combine", metrics={},
        created_at=created_at, manifest_hash=hash_manifest(manifest),
    )  # fmt: skip


def publish(gateway: Gateway, version: int, folder: Path) -> None:
    """Publish a version as the trainer does; a folder that does not exist stays missing."""
    now = time.time()
    adapter = make_adapter("tiny", version, folder, created_at=now)
    step = StepReport(
        step_id=f"step{version}", policy="tiny", method="combine", started_at=now, finished_at=now, version=version,
        error=None, metrics={},
    )  # fmt: skip
    gateway.in_record(lambda record: record.publish(adapter, [], step, worker="w"))


def rollback(gateway: Gateway, version: int) -> None:
    gateway.in_record(lambda record: record.rollback("tiny", version))


def backend(gateway: Gateway) -> Any:
    return get(f"{gateway.url}/v1/patina/status")[1]["proxy"]["backend"]


def is_live(gateway: Gateway, version: int) -> None:
    until(
        lambda: get(f"{gateway.url}/v1/models")[1]["data"][0]["metadata"]["version"] == version,
        f"{version} is live",
    )


def test_a_published_version_goes_live_and_the_client_keeps_its_model_name(
    gateway: Gateway, tmp_path: Path
) -> None:
    assert gateway.ask("before").model == "tiny"
    publish(gateway, 1, tmp_path)
    is_live(gateway, 1)
    reply = gateway.ask("after")
    assert reply.model == "tiny"
    assert gateway.upstream.seen[-1].body["model"] == "tiny@1"
    chunks = list(gateway.ask("streamed", stream=True))
    assert {chunk.model for chunk in chunks} == {"tiny"}
    rows = gateway.rows(3)
    assert [row["adapter_version"] for row in rows] == [0, 1, 1]
    assert (
        "of tiny@1 to" in rows[1]["completion"]
    )  # the completion text is unchanged, only the field is edited


def test_a_stream_keeps_the_version_that_began_it_until_its_end(gateway: Gateway, tmp_path: Path) -> None:
    publish(gateway, 1, tmp_path)
    is_live(gateway, 1)
    gateway.upstream.events["go"] = threading.Event()
    stream = gateway.ask(
        "slow", stream=True, extra_body={"scripted": {"text": "one two three", "hold": "go"}}
    )
    assert gateway.upstream.held.wait(60)
    publish(gateway, 2, tmp_path)
    is_live(gateway, 2)
    assert gateway.ask("quick").choices[0].message.content.startswith("Answer 2 of tiny@2")
    assert backend(gateway)["leases"] == {"tiny@1": 1}
    assert ("unload", "tiny@1") not in gateway.upstream.admin
    gateway.upstream.events["go"].set()
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "one two three"
    until(lambda: ("unload", "tiny@1") in gateway.upstream.admin, "the old version is unloaded")
    rows = {row["messages"][0]["content"]: row["adapter_version"] for row in gateway.rows(2)}
    assert rows == {"slow": 1, "quick": 2}


def test_when_all_slots_are_in_use_the_new_version_waits_and_no_request_does(
    record_file: Path, tmp_path: Path
) -> None:
    with run_gateway(Upstream(slots=2), record_file) as gateway:
        _fill_the_slots(gateway, tmp_path)


def _fill_the_slots(gateway: Gateway, tmp_path: Path) -> None:
    gateway.upstream.events |= {"one": threading.Event(), "two": threading.Event()}
    streams = []
    for version, name in ((1, "one"), (2, "two")):
        publish(gateway, version, tmp_path)
        is_live(gateway, version)
        script = {"text": f"held by {name} for long", "hold": name}
        streams.append(gateway.ask(name, stream=True, extra_body={"scripted": script}))
        assert gateway.upstream.held.wait(60)
        gateway.upstream.held.clear()
    publish(gateway, 3, tmp_path)
    until(lambda: backend(gateway)["waits_for_slot"], "it waits for a slot")
    assert gateway.ask("quick").choices[0].message.content.startswith("Answer 3 of tiny@2")
    assert set(gateway.upstream.adapters) == {"tiny@1", "tiny@2"}  # what is in use is never unloaded
    gateway.upstream.events["one"].set()
    assert "".join(c.choices[0].delta.content or "" for c in streams[0]) == "held by one for long"
    is_live(gateway, 3)
    assert not backend(gateway)["waits_for_slot"]
    assert set(gateway.upstream.adapters) == {"tiny@2", "tiny@3"}
    gateway.upstream.events["two"].set()
    assert "".join(c.choices[0].delta.content or "" for c in streams[1]) == "held by two for long"


def test_status_tells_what_the_backend_can_do(gateway: Gateway) -> None:
    until(lambda: backend(gateway)["ready"], "it is ready")
    shown = backend(gateway)["capabilities"]
    assert (shown["logprob_mode"], shown["adapters"], shown["token_stream"]) == ("raw_logprobs", True, True)


def test_rollback_is_the_same_backwards(gateway: Gateway, tmp_path: Path) -> None:
    for version in (1, 2):
        publish(gateway, version, tmp_path)
        is_live(gateway, version)
    rollback(gateway, 1)
    is_live(gateway, 1)
    gateway.ask("again")
    assert gateway.upstream.seen[-1].body["model"] == "tiny@1"
    rollback(gateway, 0)
    is_live(gateway, 0)
    gateway.ask("base")
    assert gateway.upstream.seen[-1].body["model"] == "tiny"
    until(lambda: not gateway.upstream.adapters, "nothing stays loaded")


def test_requests_flow_while_versions_come_and_go(gateway: Gateway, tmp_path: Path) -> None:
    answers: list[str] = []
    done = threading.Event()

    def send_requests() -> None:
        while not done.is_set():
            answers.append(gateway.ask("hello").choices[0].message.content)

    threads = [threading.Thread(target=send_requests) for _ in range(4)]
    for thread in threads:
        thread.start()
    for version in (1, 2, 3):
        publish(gateway, version, tmp_path)
        is_live(gateway, version)
    rollback(gateway, 1)
    is_live(gateway, 1)
    done.set()
    for thread in threads:
        thread.join()
    rows = gateway.rows(len(answers))
    assert {row["drop_reason"] for row in rows} == {None}
    for row in rows:
        name = f"tiny@{row['adapter_version']}" if row["adapter_version"] else "tiny"
        assert f" of {name} to hello" in row["completion"]


def test_a_version_that_cannot_be_loaded_leaves_the_old_one_live(gateway: Gateway, tmp_path: Path) -> None:
    publish(gateway, 1, tmp_path)
    is_live(gateway, 1)
    gateway.upstream.broken_adapters = {"tiny@2"}
    publish(gateway, 2, tmp_path)
    until(lambda: backend(gateway)["load_errors"] >= 1, "the failure is counted")
    gateway.ask("still there")
    assert gateway.upstream.seen[-1].body["model"] == "tiny@1"
    state = backend(gateway)
    assert (state["live"], state["wanted"]) == (1, 2)
    assert "torn" in state["last_error"]
    gateway.upstream.broken_adapters = set()
    is_live(gateway, 2)  # tried again by itself


def test_a_missing_folder_is_reported_and_not_loaded(gateway: Gateway, tmp_path: Path) -> None:
    publish(gateway, 1, tmp_path / "nowhere")
    until(lambda: "does not exist" in (backend(gateway)["last_error"] or ""), "the error is shown")
    assert gateway.ask("hi there").model == "tiny"
    assert gateway.upstream.admin == []


def test_a_restarted_backend_gets_its_adapter_back_before_anything_is_routed_to_it(
    gateway: Gateway, tmp_path: Path
) -> None:
    publish(gateway, 1, tmp_path)
    is_live(gateway, 1)
    gateway.upstream.adapters.clear()  # as after a restart
    assert gateway.ask("hello").choices[0].message.content == "Answer 1 of tiny@1 to hello"
    assert gateway.upstream.admin.count(("load", "tiny@1")) == 2


def test_an_explicit_version_is_served_if_it_is_loaded(gateway: Gateway, tmp_path: Path) -> None:
    publish(gateway, 1, tmp_path)
    is_live(gateway, 1)
    for name in ("tiny@1", "tiny@0"):
        reply = gateway.client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": "x"}]
        )
        assert reply.model == name
    assert [seen.body["model"] for seen in gateway.upstream.seen[-2:]] == ["tiny@1", "tiny"]
    with pytest.raises(openai.NotFoundError):
        gateway.client.chat.completions.create(model="tiny@7", messages=[{"role": "user", "content": "x"}])


def test_requests_wait_for_a_backend_that_is_being_restarted(
    upstream: Upstream, record_file: Path, tmp_path: Path
) -> None:
    with free_socket() as listener:
        port = listener.getsockname()[1]
    answers: list[str] = []
    with run_gateway_at(f"http://127.0.0.1:{port}", upstream, record_file, backend_wait_s=30.0) as gateway:
        publish(gateway, 1, tmp_path)
        for _ in range(2):  # it starts, and it comes back after it was stopped
            asking = [
                threading.Thread(
                    target=lambda: answers.append(gateway.ask("hello").choices[0].message.content)
                )
                for _ in range(3)
            ]
            for thread in asking:
                thread.start()
            time.sleep(0.3)
            with running(upstream, free_socket(port)):
                for thread in asking:
                    thread.join()
            upstream.adapters.clear()
        assert len(answers) == 6
        assert all(" of tiny@1 to hello" in answer for answer in answers)


def test_a_backend_that_does_not_come_back_is_a_502(upstream: Upstream, record_file: Path) -> None:
    with run_gateway_at("http://127.0.0.1:9", upstream, record_file, backend_wait_s=0.2) as gateway:
        with pytest.raises(openai.InternalServerError, match=r"http://127\.0\.0\.1:9 is not up") as caught:
            gateway.ask("hello")
        assert caught.value.status_code == 502
        assert gateway.rows(1)[0]["drop_reason"] == "upstream_error"


@pytest.mark.parametrize("changed", [ADAPTER_WEIGHTS, MANIFEST, "added.bin"])
def test_a_version_whose_files_changed_is_refused_and_its_newest_intact_ancestor_goes_live(
    gateway: Gateway, tmp_path: Path, changed: str
) -> None:
    for version in (1, 2, 3):
        publish(gateway, version, tmp_path)
        is_live(gateway, version)
    rollback(gateway, 0)
    is_live(gateway, 0)
    until(lambda: not gateway.upstream.adapters, "nothing stays loaded")
    (tmp_path / "tiny@3" / changed).write_bytes(b"other")
    (tmp_path / "tiny@2" / ADAPTER_WEIGHTS).write_bytes(b"other")
    rollback(gateway, 3)
    is_live(gateway, 1)
    assert ("load", "tiny@2") in gateway.upstream.admin  # only from before
    assert gateway.upstream.admin.count(("load", "tiny@3")) == 1
    moves = gateway.in_record(lambda record: record.alias_moves("tiny"))
    assert [(move.version, move.actor) for move in moves[-2:]] == [(3, "rollback"), (1, "integrity")]
    refused = gateway.in_record(lambda record: record.adapter("tiny", 3))
    assert refused.state is AdapterState.REFUSED
    assert changed in refused.reason
    with pytest.raises(RecordError, match="it is refused"):
        rollback(gateway, 3)
    with pytest.raises(AdapterMismatch):
        gateway.in_record(lambda record: readmit_version(record, refused))
    if changed == "added.bin":
        (tmp_path / "tiny@3" / changed).unlink()
    else:
        repaired = make_adapter("tiny", 3, tmp_path, created_at=refused.created_at)  # writes its files again
        assert repaired.manifest_hash == refused.manifest_hash
    gateway.in_record(lambda record: readmit_version(record, refused))
    rollback(gateway, 3)
    is_live(gateway, 3)
    again = gateway.in_record(lambda record: record.adapter("tiny", 3))
    assert (again.state, again.reason) == (
        AdapterState.PUBLISHED,
        f"admitted again; it was refused: {refused.reason}",
    )


def test_a_version_from_before_manifests_is_checked_by_its_content_hash(
    gateway: Gateway, tmp_path: Path
) -> None:
    publish(gateway, 1, tmp_path)
    is_live(gateway, 1)
    rollback(gateway, 0)
    is_live(gateway, 0)
    (tmp_path / "tiny@1" / MANIFEST).unlink()
    old = replace(gateway.in_record(lambda record: record.adapter("tiny", 1)), version=2, manifest_hash="")
    step = StepReport(
        step_id="old", policy="tiny", method="combine", started_at=1.0, finished_at=2.0, version=2, error=None, metrics={}
    )  # fmt: skip
    old = replace(old, parent_version=0)
    gateway.in_record(lambda record: record.publish(old, [], step, worker="w"))
    is_live(gateway, 2)
    rollback(gateway, 1)  # the record knows that it had a manifest
    until(lambda: "lost its manifest.json" in (backend(gateway)["last_error"] or ""), "it is refused")
    is_live(gateway, 0)
