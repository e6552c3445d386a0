"""Several policies on one gateway: each key has its own, the engine's slots are shared, and no key reaches another's."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from proxy.endpoints import ENDPOINTS
from store.keys import KeyFile, Keyring
from store.values import StepReport
from tests.proxy.conftest import KEY, Gateway, run_gateway_at
from tests.proxy.test_adapters import make_adapter
from tests.proxy.test_security import ask, bearer
from tests.proxy.upstream import Upstream, running
from tests.waiting import until


@dataclass
class People:
    gateway: Gateway
    keys: dict[str, str]

    def client(self, name: str) -> openai.OpenAI:
        return self.gateway.client.with_options(api_key=self.keys[name])

    def served(self, name: str, model: str = "tiny", **more: Any) -> str:
        """Ask as this person; return what the backend was asked for."""
        text = f"from {name}"
        reply = self.client(name).chat.completions.create(
            model=model, messages=[{"role": "user", "content": text}], **more
        )
        assert reply.model == model
        return str(reply.choices[0].message.content).split()[3]

    def state(self) -> Any:
        return self.json("boss", "/v1/patina/status")["proxy"]["backend"]

    def json(self, name: str, target: str) -> Any:
        seen = ask(self.gateway.url, bearer(self.keys[name]), method="GET", target=target, body=b"")
        assert seen.status == 200
        return json.loads(seen.body)

    def publish(self, policy: str, version: int, folder: Path) -> None:
        now = time.time()
        adapter = make_adapter(policy, version, folder, created_at=now)
        step = StepReport(
            step_id=f"{policy}{version}", policy=policy, method="combine", started_at=now, finished_at=now,
            version=version, error=None, metrics={},
        )  # fmt: skip
        self.gateway.in_record(lambda record: record.publish(adapter, [], step, worker="w"))
        until(lambda: self.live(policy) == version, f"{policy}@{version} is live")

    def live(self, policy: str) -> int:
        state = self.state()
        one = state if policy == "tiny" else state["policies"].get(policy, {"live": 0})
        return int(one["live"])


@contextmanager
def people_at(record_file: Path, upstream: Upstream, **more: Any) -> Iterator[People]:
    file = KeyFile(record_file.with_name("keys.json"))
    keys = {name: file.add(name) for name in ("ann", "bob", "dan")}
    keys |= {"boss": file.add("boss", is_owner=True), "eve": file.add("eve", adapter="")}
    keys |= {name: file.add(name, adapter="team") for name in ("cai", "cat")}
    keys["default"] = KEY
    with (
        running(upstream) as url,
        run_gateway_at(url, upstream, record_file, keys=Keyring(KEY, named=file), **more) as gateway,
    ):
        yield People(gateway, keys)


@pytest.fixture
def people(record_file: Path) -> Iterator[People]:
    with people_at(record_file, Upstream()) as made:
        yield made


def test_each_key_is_served_its_own_policy_under_the_name_it_asked_for(
    people: People, tmp_path: Path
) -> None:
    for policy, version in (("tiny", 1), ("tiny.ann", 1), ("tiny.ann", 2), ("tiny.team", 1)):
        people.publish(policy, version, tmp_path)
    assert people.served("ann") == "tiny.ann@2"
    assert people.served("bob") == "tiny"  # no version of his yet: the base model, not the shared version
    assert people.served("cai") == people.served("cat") == "tiny.team@1"
    assert people.served("eve") == people.served("default") == "tiny@1"
    for model in ("tiny.ann", "tiny:ann", "tiny.ann@2", "tiny:ann@2", "tiny@2", "patina"):
        assert people.served("ann", model) == "tiny.ann@2"
    assert people.served("ann", "tiny@0") == "tiny"
    rows = people.gateway.rows(13)
    assert [(row["policy"], row["adapter_version"]) for row in rows[:6]] == [
        ("tiny.ann", 2), ("tiny.bob", 0), ("tiny.team", 1), ("tiny.team", 1), ("tiny", 1), ("tiny", 1),
    ]  # fmt: skip


def test_a_key_reaches_no_other_policy_and_does_not_learn_that_there_is_one(
    people: People, tmp_path: Path
) -> None:
    for policy in ("tiny", "tiny.ann"):
        people.publish(policy, 1, tmp_path)
    refused = []
    for name, model in (
        ("bob", "tiny.ann"), ("bob", "tiny:ann"), ("bob", "tiny.ann@1"), ("bob", "tiny.absent"), ("eve", "tiny.ann"),
        ("ann", "tiny.bob"), ("boss", "tiny.absent"), ("bob", "tiny@1"),
    ):  # fmt: skip
        with pytest.raises(openai.NotFoundError) as caught:
            people.served(name, model)
        refused.append(str(caught.value).replace(model, "?"))
    assert len(set(refused[:-1])) == 1
    assert "not loaded" in refused[-1]  # of bob's own policy there is no version 1


def test_an_owner_may_use_another_policy_and_teaches_it_nothing(people: People, tmp_path: Path) -> None:
    people.publish("tiny.ann", 1, tmp_path)
    assert people.served("boss", "tiny.ann") == "tiny.ann@1"
    assert people.served("boss") == "tiny"
    rows = people.gateway.rows(2)
    assert [(row["policy"], row["drop_reason"]) for row in rows] == [
        ("tiny.ann", "opted_out"),
        ("tiny.boss", None),
    ]


def test_cold_policies_share_the_slots_and_come_back_with_their_next_request(
    record_file: Path, tmp_path: Path
) -> None:
    with people_at(record_file, Upstream(slots=2)) as people:
        for policy in ("tiny", "tiny.ann", "tiny.bob", "tiny.dan"):
            people.publish(policy, 1, tmp_path)
        for _ in range(2):
            for name in ("ann", "bob", "dan", "default"):
                expected = "tiny@1" if name == "default" else f"tiny.{name}@1"
                assert people.served(name) == expected
                assert len(people.gateway.upstream.adapters) <= 2
        assert people.state()["cold_loads"] >= 5  # each time but where the slot was still theirs
        assert people.state()["refused"] == people.state()["by_base"] == 0
        # the shared policy keeps its slot
        assert people.gateway.upstream.admin.count(("load", "tiny@1")) == 1


@contextmanager
def slots_in_use(record_file: Path, tmp_path: Path, wait_s: float) -> Iterator[People]:
    """Two slots: one is the shared policy's, a reply of ann is under way in the other."""
    with people_at(record_file, Upstream(slots=2)) as people:
        for policy in ("tiny", "tiny.ann", "tiny.bob"):
            people.publish(policy, 1, tmp_path)
        alias: Any = people.gateway.proxy._alias
        alias._cold_wait_s = wait_s
        people.gateway.upstream.events["go"] = threading.Event()
        script = {"scripted": {"text": "held for long", "hold": "go"}}
        stream = people.client("ann").chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "slow"}], stream=True, extra_body=script
        )
        assert people.gateway.upstream.held.wait(60)
        yield people
        people.gateway.upstream.events["go"].set()
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "held for long"


def test_while_every_slot_is_in_use_a_request_is_refused_and_never_answered_by_other_weights(
    record_file: Path, tmp_path: Path
) -> None:
    with slots_in_use(record_file, tmp_path, 0.3) as people:
        seen = len(people.gateway.upstream.seen)
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "from bob"}],
            "completion": "x",
            "max_tokens": 9,
            "input": "hi",
        }
        targets = [
            "/v1/chat/completions",
            "/v1/responses",
            "/v1/messages",
            "/v1/score",
            "/v1/messages/count_tokens",
            "/v1/responses/input_tokens",
        ]
        for model in ("tiny", "tiny@1"):
            for target in targets:
                raw = json.dumps({**body, "model": model}).encode()
                refused = ask(people.gateway.url, bearer(people.keys["bob"]), target=target, body=raw)
                assert (refused.status, refused.header("retry-after")) == (503, "5"), (target, refused.body)
                assert b"adapter slot" in refused.body
        assert people.state()["refused"] == 2 * len(targets)
        assert people.gateway.upstream.seen[seen:] == []
        assert people.served("default") == "tiny@1"  # the shared policy keeps its slot
        assert people.state()["by_base"] == 0


def test_no_more_requests_wait_for_a_slot_than_a_bound(
    record_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.adapters.MOST_WAITING", 3)
    with slots_in_use(record_file, tmp_path, 30.0) as people, ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(people.served, "bob") for _ in range(3)]
        until(lambda: people.state()["waiting"] == 3, "three wait")
        with pytest.raises(openai.APIStatusError) as caught:
            people.served("bob")
        assert caught.value.status_code == 503
        people.gateway.upstream.events["go"].set()
        assert [one.result(60) for one in waiting] == ["tiny.bob@1"] * 3
        assert (people.state()["refused"], people.state()["waiting"]) == (1, 0)


def test_policies_in_use_all_the_time_give_their_slots_to_those_who_wait(
    record_file: Path, tmp_path: Path
) -> None:
    """Each of four people always has two requests in flight, and two slots are left for their versions."""
    with people_at(record_file, Upstream(slots=3)) as people, ThreadPoolExecutor(8) as pool:
        names = ("ann", "bob", "dan", "cai")
        for name in names:
            people.publish("tiny.team" if name == "cai" else f"tiny.{name}", 1, tmp_path)

        def keep_asking(name: str) -> set[str]:
            return {people.served(name, extra_body={"scripted": {"delay_s": 0.05}}) for _ in range(12)}

        served = {name: [pool.submit(keep_asking, name) for _ in range(2)] for name in names}
        for name, both in served.items():
            own = "tiny.team@1" if name == "cai" else f"tiny.{name}@1"
            assert [one.result(120) for one in both] == [{own}, {own}]
        assert people.state()["refused"] == 0
        assert not people.state()["leases"]


def test_each_reply_names_the_weights_that_answered(people: People, tmp_path: Path) -> None:
    people.publish("tiny.ann", 1, tmp_path)
    ask_as = {"ann": "tiny.ann@1", "bob": "tiny.bob@0", "default": "tiny@0"}
    for name, version in ask_as.items():
        for target in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
            for stream in (False, True):
                body = {
                    "model": "tiny",
                    "messages": [{"role": "user", "content": "hi"}],
                    "input": "hi",
                    "max_tokens": 9,
                    "stream": stream,
                }
                raw = json.dumps(body).encode()
                seen = ask(people.gateway.url, bearer(people.keys[name]), target=target, body=raw)
                assert (seen.status, seen.header("x-patina-version")) == (200, version), target
    pinned = json.dumps({"model": "tiny@0", "messages": [{"role": "user", "content": "hi"}]}).encode()
    seen = ask(people.gateway.url, bearer(people.keys["ann"]), target="/v1/chat/completions", body=pinned)
    assert seen.header("x-patina-version") == "tiny.ann@0"
    people.gateway.upstream.adapters.clear()
    people.gateway.upstream.broken_adapters = {"tiny.ann@1"}
    raw = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}).encode()
    seen = ask(people.gateway.url, bearer(people.keys["ann"]), target="/v1/chat/completions", body=raw)
    assert (seen.status, seen.header("x-patina-version")) == (200, "tiny.ann@0")
    assert people.state()["by_base"] == 1


def test_a_version_that_cannot_be_loaded_costs_no_reply_and_no_other_policy(
    record_file: Path, tmp_path: Path
) -> None:
    upstream = Upstream(slots=2)
    with people_at(record_file, upstream) as people:
        for policy in ("tiny", "tiny.ann", "tiny.bob"):
            people.publish(policy, 1, tmp_path)
        upstream.broken_adapters = {"tiny.ann@1"}
        assert people.served("bob") == "tiny.bob@1"  # takes the slot
        assert people.served("ann") == "tiny"
        assert "torn" in people.state()["last_error"]
        upstream.broken_adapters = set()
        until(lambda: people.served("ann") == "tiny.ann@1", "it is tried again")


def test_a_restarted_backend_gets_a_cold_version_back_with_its_next_request(
    people: People, tmp_path: Path
) -> None:
    people.publish("tiny.ann", 1, tmp_path)
    assert people.served("ann") == "tiny.ann@1"
    people.gateway.upstream.adapters.clear()
    assert people.served("ann") == "tiny.ann@1"


def test_an_earlier_version_of_ones_own_is_loaded_on_demand(people: People, tmp_path: Path) -> None:
    people.publish("tiny.ann", 1, tmp_path)
    people.publish("tiny.ann", 2, tmp_path)
    until(lambda: people.state()["policies"]["tiny.ann"]["loaded"] == [2], "version 1 is unloaded")
    assert people.served("ann", "tiny@1") == "tiny.ann@1"
    assert people.served("ann") == "tiny.ann@2"


# ------------------------------------------------------------------ all routes x keys


def fate_statuses(people: People, turn: str) -> dict[str, int]:
    """Return the status with which each key is answered what became of ann's turn."""
    target = f"/v1/patina/turns/{turn}"
    return {
        name: ask(people.gateway.url, bearer(people.keys[name]), method="GET", target=target, body=b"").status
        for name in ("bob", "eve", "ann")
    }


#: Routes whose body names a model.
_MODEL_TARGETS = (
    "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses/input_tokens", "/v1/score",
)  # fmt: skip


def test_every_route_shows_a_key_only_what_is_its_own(people: People, tmp_path: Path) -> None:
    for policy in ("tiny", "tiny.ann", "tiny.bob"):
        people.publish(policy, 1, tmp_path)
    for name in ("ann", "ann", "bob", "default"):
        people.served(name)
    people.gateway.settle()
    checked = {"/v1/chat/completions": None}  # by the tests above
    # status: an owner sees the processes and all policies
    assert set(people.json("boss", "/v1/patina/status")["live"]) == {"tiny", "tiny.ann", "tiny.bob"}
    assert people.json("default", "/v1/patina/status")["turns"] == 4
    for name, turns in (("ann", 2), ("bob", 1), ("dan", 0), ("eve", 0)):
        shown = people.json(name, "/v1/patina/status")
        policy = "tiny" if name == "eve" else f"tiny.{name}"
        assert (shown["turns"], shown["policy"]) == (turns, policy)
        assert set(shown["live"]) <= {policy}
        assert not {"processes", "heartbeats", "proxy", "store"} & set(shown)
        assert not [other for other in ("ann", "bob", "dan", "boss") if other != name and other in str(shown)]
    checked["/v1/patina/status"] = None
    # models
    for name, names in (
        ("ann", {"tiny": "tiny.ann@1", "tiny@1": "tiny.ann@1"}),
        ("eve", {"tiny": "tiny@1", "tiny@1": "tiny@1"}),
        ("dan", {"tiny": "tiny.dan@0"}),
    ):
        cards = people.json(name, "/v1/models")["data"]
        assert {card["id"]: card["metadata"]["name"] for card in cards} == names
    assert len(people.json("boss", "/v1/models")["data"]) == 4 + 3  # policies, and their retained versions
    checked["/v1/models"] = None
    for name, target, status in (
        ("ann", "tiny", 200), ("bob", "tiny.ann", 404), ("eve", "tiny.ann", 404), ("boss", "tiny.ann", 200),
    ):  # fmt: skip
        seen = ask(
            people.gateway.url,
            bearer(people.keys[name]),
            method="GET",
            target=f"/v1/models/{target}",
            body=b"",
        )
        assert seen.status == status
    checked["/v1/models/*"] = None
    # feedback: on one's own turns only, an owner's key too
    turn = next(row["turn_id"] for row in people.gateway.rows(4) if row["policy"] == "tiny.ann")
    for name, status in (("bob", 404), ("eve", 404), ("default", 404), ("boss", 404), ("ann", 200)):
        body = b'{"turn_id": "%s", "score": -1, "text": "shorter"}' % turn.encode()
        assert (
            ask(people.gateway.url, bearer(people.keys[name]), target="/v1/feedback", body=body).status
            == status
        )
    assert fate_statuses(people, turn) == {"bob": 404, "eve": 404, "ann": 200}
    checked["/v1/patina/turns/*"] = None
    checked["/v1/feedback"] = checked["/v1/feedback/*"] = None  # batches: tests/proxy/test_lora.py
    checked["/v1/lora*"] = None
    # responses and conversations: of one's own key only, an owner's key too; another key's policy does not exist
    response = people.client("ann").responses.create(model="tiny", input="a")
    conversation = people.client("ann").conversations.create()
    for name, status in (("bob", 404), ("boss", 404), ("ann", 200)):
        for target in (f"/v1/responses/{response.id}", f"/v1/conversations/{conversation.id}"):
            seen = ask(people.gateway.url, bearer(people.keys[name]), method="GET", target=target, body=b"")
            assert seen.status == status
    _check_stored(people)
    checked["/v1/chat/completions/*"] = checked["/v1/fine_tuning/jobs*"] = None
    checked["/v1/files*"] = None
    foreign = b'{"model": "tiny.ann@1", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}], "input": "a", "completion": "b"}'
    for target in _MODEL_TARGETS:
        assert ask(people.gateway.url, bearer(people.keys["bob"]), target=target, body=foreign).status == 404
        checked[target] = None
    prompt = foreign.replace(b'"input"', b'"prompt"')
    seen = ask(people.gateway.url, bearer(people.keys["bob"]), target="/v1/completions", body=prompt)
    assert seen.status == 404
    checked["/v1/completions"] = None
    checked["/v1/responses/*"] = checked["/v1/conversations*"] = None
    # health needs no key: it names no key
    for target in ("/healthz", "/health", "/"):
        assert "ann" not in ask(people.gateway.url, method="GET", target=target, body=b"").body.decode()
        checked[target] = None
    assert set(checked) == {endpoint.path for endpoint in ENDPOINTS}


def _check_stored(people: People) -> None:
    """Check stored completions of one's own key; a training job of the key's own policy, an owner of all."""
    stored = people.client("ann").chat.completions.list().data[0].id
    for name, status in (("bob", 404), ("boss", 404), ("ann", 200)):
        for target in (f"/v1/chat/completions/{stored}", f"/v1/chat/completions/{stored}/messages"):
            seen = ask(people.gateway.url, bearer(people.keys[name]), method="GET", target=target, body=b"")
            assert seen.status == status
    assert not people.json("dan", "/v1/chat/completions")["data"]
    for name, status in (("bob", 404), ("eve", 404), ("ann", 200), ("boss", 200)):
        target = "/v1/fine_tuning/jobs/ftjob-tiny.ann/events"
        seen = ask(people.gateway.url, bearer(people.keys[name]), method="GET", target=target, body=b"")
        assert seen.status == status
    line = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
    file = people.client("ann").files.create(file=("a.jsonl", line), purpose="fine-tune")
    job = people.client("ann").fine_tuning.jobs.create(model="tiny", training_file=file.id)
    for name, status in (("bob", 404), ("eve", 404), ("boss", 404), ("ann", 200)):
        for target in (
            f"/v1/files/{file.id}",
            f"/v1/files/{file.id}/content",
            f"/v1/fine_tuning/jobs/{job.id}",
        ):
            seen = ask(people.gateway.url, bearer(people.keys[name]), method="GET", target=target, body=b"")
            assert seen.status == status


@pytest.mark.parametrize("target", ["/v1/embeddings", "/v1/responses", "/v1/messages"])
def test_a_forwarded_path_does_not_reach_another_keys_adapter(
    record_file: Path, upstream: Upstream, target: str
) -> None:
    with people_at(record_file, upstream, native_apis=True) as people:
        _check_forwarded_path(people, target)


def _check_forwarded_path(people: People, target: str) -> None:
    url = people.gateway.url
    foreign = (
        b'{"model": "tiny.ann@1"}', b'{"model": "tiny.\\u0061nn@1"}', b'{"model": "x", "model": "tiny.ann@1"}',
        b'{"model": "tiny@1"}',
    )  # fmt: skip
    for body in foreign:
        assert ask(url, bearer(people.keys["bob"]), target=target, body=body).status == 404
    assert ask(url, bearer(people.keys["bob"]), target=target, body=b'{"model": "tiny.ann@1"').status == 400
    assert people.gateway.upstream.seen == []
    for name, body in (
        ("bob", b'{"model": "tiny.bob@1"}'),
        ("bob", b'{"model": "tiny"}'),
        ("boss", foreign[0]),
    ):
        assert ask(url, bearer(people.keys[name]), target=target, body=body).status == 207
    # a chat request that cannot be captured is forwarded as bytes, and is held to the same
    deep = b'{"model": "tiny.ann@1", "messages": [], "x": ' + b"[" * 300 + b"]" * 300 + b"}"
    assert ask(url, bearer(people.keys["bob"]), body=deep).status == 404
