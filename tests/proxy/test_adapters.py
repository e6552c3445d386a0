"""The alias moves without anybody waiting: swaps, rollbacks, broken folders, restarted backends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from store.values import AdapterState, AdapterVersion, StepReport
from tests.proxy.conftest import House, house_at, make_house
from tests.proxy.test_relay import get
from tests.proxy.upstream import Upstream, free_socket, running


def publish(house: House, version: int, folder: Path) -> None:
    """Publish a version as the trainer does."""
    now = time.time()
    adapter = AdapterVersion(
        policy="tiny", version=version, path=str(folder), content_hash="x", parent_version=version - 1,
        state=AdapterState.PUBLISHED, reason="", method="combine", metrics={}, created_at=now,
    )  # fmt: skip
    step = StepReport(
        step_id=f"step{version}", policy="tiny", method="combine", started_at=now, finished_at=now, version=version,
        error=None, metrics={},
    )  # fmt: skip
    house.in_record(lambda record: record.publish(adapter, [], step))


def rollback(house: House, version: int) -> None:
    house.in_record(lambda record: record.rollback("tiny", version))


def until(holds: Callable[[], bool], what: str) -> None:
    for _ in range(800):
        if holds():
            return
        time.sleep(0.025)
    raise AssertionError(f"never: {what}")


def backend(house: House) -> Any:
    return get(f"{house.url}/v1/patina/status")[1]["proxy"]["backend"]


def is_live(house: House, version: int) -> None:
    until(
        lambda: get(f"{house.url}/v1/models")[1]["data"][0]["metadata"]["version"] == version,
        f"{version} is live",
    )


def test_a_published_version_goes_live_and_the_client_keeps_its_model_name(
    house: House, tmp_path: Path
) -> None:
    assert house.ask("before").model == "tiny"
    publish(house, 1, tmp_path)
    is_live(house, 1)
    reply = house.ask("after")
    assert reply.model == "tiny"
    assert house.upstream.seen[-1].body["model"] == "tiny@1"
    chunks = list(house.ask("streamed", stream=True))
    assert {chunk.model for chunk in chunks} == {"tiny"}
    rows = house.rows(3)
    assert [row["adapter_version"] for row in rows] == [0, 1, 1]
    assert "of tiny@1 to" in rows[1]["completion"]  # what was said is not edited, only the field


def test_a_stream_keeps_the_version_that_began_it_until_its_end(house: House, tmp_path: Path) -> None:
    publish(house, 1, tmp_path)
    is_live(house, 1)
    house.upstream.events["go"] = threading.Event()
    stream = house.ask("slow", stream=True, extra_body={"scripted": {"text": "one two three", "hold": "go"}})
    assert house.upstream.held.wait(10)
    publish(house, 2, tmp_path)
    is_live(house, 2)
    assert house.ask("quick").choices[0].message.content.startswith("Answer 2 of tiny@2")
    assert backend(house)["leases"] == {"tiny@1": 1}
    assert ("unload", "tiny@1") not in house.upstream.admin
    house.upstream.events["go"].set()
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "one two three"
    until(lambda: ("unload", "tiny@1") in house.upstream.admin, "the old version is unloaded")
    rows = {row["messages"][0]["content"]: row["adapter_version"] for row in house.rows(2)}
    assert rows == {"slow": 1, "quick": 2}


def test_when_all_slots_are_in_use_the_new_version_waits_and_no_request_does(
    record_file: Path, tmp_path: Path
) -> None:
    with make_house(Upstream(slots=2), record_file) as house:
        _fill_the_slots(house, tmp_path)


def _fill_the_slots(house: House, tmp_path: Path) -> None:
    house.upstream.events |= {"one": threading.Event(), "two": threading.Event()}
    streams = []
    for version, name in ((1, "one"), (2, "two")):
        publish(house, version, tmp_path)
        is_live(house, version)
        script = {"text": f"held by {name} for long", "hold": name}
        streams.append(house.ask(name, stream=True, extra_body={"scripted": script}))
        assert house.upstream.held.wait(10)
        house.upstream.held.clear()
    publish(house, 3, tmp_path)
    until(lambda: backend(house)["waits_for_slot"], "it waits for a slot")
    assert house.ask("quick").choices[0].message.content.startswith("Answer 3 of tiny@2")
    assert set(house.upstream.adapters) == {"tiny@1", "tiny@2"}  # what is in use is never unloaded
    house.upstream.events["one"].set()
    assert "".join(c.choices[0].delta.content or "" for c in streams[0]) == "held by one for long"
    is_live(house, 3)
    assert not backend(house)["waits_for_slot"]
    assert set(house.upstream.adapters) == {"tiny@2", "tiny@3"}
    house.upstream.events["two"].set()
    assert "".join(c.choices[0].delta.content or "" for c in streams[1]) == "held by two for long"


def test_status_tells_what_the_backend_can_do(house: House) -> None:
    until(lambda: backend(house)["ready"], "it is ready")
    shown = backend(house)["capabilities"]
    assert (shown["logprob_mode"], shown["adapters"], shown["token_stream"]) == ("raw_logprobs", True, True)


def test_rollback_is_the_same_backwards(house: House, tmp_path: Path) -> None:
    for version in (1, 2):
        publish(house, version, tmp_path)
        is_live(house, version)
    rollback(house, 1)
    is_live(house, 1)
    house.ask("again")
    assert house.upstream.seen[-1].body["model"] == "tiny@1"
    rollback(house, 0)
    is_live(house, 0)
    house.ask("base")
    assert house.upstream.seen[-1].body["model"] == "tiny"
    until(lambda: not house.upstream.adapters, "nothing stays loaded")


def test_requests_flow_while_versions_come_and_go(house: House, tmp_path: Path) -> None:
    answers: list[str] = []
    done = threading.Event()

    def talk() -> None:
        while not done.is_set():
            answers.append(house.ask("hello").choices[0].message.content)

    threads = [threading.Thread(target=talk) for _ in range(4)]
    for thread in threads:
        thread.start()
    for version in (1, 2, 3):
        publish(house, version, tmp_path)
        is_live(house, version)
    rollback(house, 1)
    is_live(house, 1)
    done.set()
    for thread in threads:
        thread.join()
    rows = house.rows(len(answers))
    assert {row["drop_reason"] for row in rows} == {None}
    for row in rows:
        name = f"tiny@{row['adapter_version']}" if row["adapter_version"] else "tiny"
        assert f" of {name} to hello" in row["completion"]


def test_a_version_that_cannot_be_loaded_leaves_the_old_one_live(house: House, tmp_path: Path) -> None:
    publish(house, 1, tmp_path)
    is_live(house, 1)
    house.upstream.broken_adapters = {"tiny@2"}
    publish(house, 2, tmp_path)
    until(lambda: backend(house)["load_errors"] >= 1, "the failure is counted")
    house.ask("still there")
    assert house.upstream.seen[-1].body["model"] == "tiny@1"
    state = backend(house)
    assert (state["live"], state["wanted"]) == (1, 2)
    assert "torn" in state["last_error"]
    house.upstream.broken_adapters = set()
    is_live(house, 2)  # tried again by itself


def test_a_folder_that_is_gone_is_told_and_not_loaded(house: House, tmp_path: Path) -> None:
    publish(house, 1, tmp_path / "nowhere")
    until(lambda: "is not there" in (backend(house)["last_error"] or ""), "the sentence is shown")
    assert house.ask("hi there").model == "tiny"
    assert house.upstream.admin == []


def test_a_restarted_backend_gets_its_adapter_back_before_anything_is_routed_to_it(
    house: House, tmp_path: Path
) -> None:
    publish(house, 1, tmp_path)
    is_live(house, 1)
    house.upstream.adapters.clear()  # as after a restart
    assert house.ask("hello").choices[0].message.content == "Answer 1 of tiny@1 to hello"
    assert house.upstream.admin.count(("load", "tiny@1")) == 2


def test_an_explicit_version_is_served_if_it_is_loaded(house: House, tmp_path: Path) -> None:
    publish(house, 1, tmp_path)
    is_live(house, 1)
    for name in ("tiny@1", "tiny@0"):
        reply = house.client.chat.completions.create(model=name, messages=[{"role": "user", "content": "x"}])
        assert reply.model == name
    assert [seen.body["model"] for seen in house.upstream.seen[-2:]] == ["tiny@1", "tiny"]
    with pytest.raises(openai.NotFoundError):
        house.client.chat.completions.create(model="tiny@7", messages=[{"role": "user", "content": "x"}])


def test_requests_wait_for_a_backend_that_is_being_restarted(
    upstream: Upstream, record_file: Path, tmp_path: Path
) -> None:
    with free_socket() as listener:
        port = listener.getsockname()[1]
    answers: list[str] = []
    with house_at(f"http://127.0.0.1:{port}", upstream, record_file, patience_s=30.0) as house:
        publish(house, 1, tmp_path)
        for _ in range(2):  # it starts, and it comes back after it was stopped
            asking = [
                threading.Thread(target=lambda: answers.append(house.ask("hello").choices[0].message.content))
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
    with house_at("http://127.0.0.1:9", upstream, record_file, patience_s=0.2) as house:
        with pytest.raises(openai.InternalServerError, match=r"http://127\.0\.0\.1:9 is not up") as caught:
            house.ask("hello")
        assert caught.value.status_code == 502
        assert house.rows(1)[0]["drop_reason"] == "upstream_error"
