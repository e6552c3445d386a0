"""CLaaS's paths, replayed from its plugin's calls: init, list, feedback in batches, export, delete; each key has its own."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.lora import zip_pieces
from store.lifecycle import DropReason
from store.values import StepReport
from tests.making import make_verdict
from tests.proxy.test_policies import People, people_at
from tests.proxy.upstream import Upstream
from tests.waiting import until

CALLS = Path(__file__).parent / "claas_calls.jsonl"


@pytest.fixture
def people(record_file: Path) -> Iterator[People]:
    with people_at(record_file, Upstream()) as made:
        yield made


def call(people: People, name: str, method: str, target: str, body: Any = None) -> httpx.Response:
    return httpx.request(
        method,
        people.gateway.url + target,
        json=body,
        headers={"authorization": f"Bearer {people.keys[name]}"},
        timeout=60,
    )


def talk(people: People, name: str, count: int = 4, *, question: str = "q{}", text: str = "a{}") -> list[str]:
    """Ask q0, q1, … and get a0, a1, …; returns the completion ids."""
    return [
        people.client(name)
        .chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": question.format(i)}],
            extra_body={"scripted": {"text": text.format(i)}},
        )
        .id
        for i in range(count)
    ]


def test_the_plugins_calls_get_claas_answers(people: People) -> None:
    talk(people, "ann")
    for line in CALLS.read_text().splitlines():
        recorded = json.loads(line)
        reply = call(people, "ann", recorded["method"], recorded["target"], recorded["body"])
        assert reply.status_code == recorded["status"], (recorded["name"], reply.text)
        if "answer" in recorded and recorded["name"] != "list":
            assert reply.json() == recorded["answer"], recorded["name"]
        if recorded["name"] == "list":
            assert reply.json() == recorded["answer"]
        if "keys" in recorded:
            assert sorted(reply.json()) == recorded["keys"]
            assert (reply.json()["status"], reply.json()["batch_size"]) == ("queued", 4)
        if recorded["status"] >= 400:
            assert reply.json()["error"]["message"]
    rows = {row["messages"][0]["content"]: row for row in people.gateway.rows(4)}
    assert {row["stage"] for row in rows.values()} == {"answered"}


def test_a_plugin_names_an_exchange_by_what_it_shows_of_it(people: People) -> None:
    """CLaaS's plugin leaves out what the model thought, OpenClaw flattens lines; older plugins send tokens and a teacher beside it."""
    call(people, "ann", "POST", "/v1/lora/init", {"lora_id": "openclaw/assistant-latest"})
    talk(
        people,
        "ann",
        1,
        text="<think>\nHm.\n</think>\n\nParis.\n\n- On the Seine.",
        question="Capital of\nFrance?",
    )
    item = {
        "lora_id": "openclaw/assistant-latest", "prompt": "Capital of France?", "response": "Paris. - On the Seine.", "feedback": "Shorter.",
        "rollout_logprobs": [-0.5], "prompt_token_ids": None, "response_token_ids": None, "user_prompt": None,
        "training": {"teacher_mode": "self"},
    }  # fmt: skip
    reply = call(people, "ann", "POST", "/v1/feedback", {"requests": [item]})
    assert (reply.status_code, reply.json()["ignored"]) == (202, ["training.teacher_mode"])


@pytest.mark.parametrize("name", ["tiny.bob", "tiny", "tiny.none", "tiny.bob-latest", "tiny.team"])
def test_no_key_binds_the_name_of_another_policy_and_none_shows_whether_it_exists(
    people: People, name: str
) -> None:
    for who in ("ann", "boss", "cai"):
        reply = call(people, who, "POST", "/v1/lora/init", {"lora_id": name})
        is_own = (who, name) in {("cai", "tiny.team"), ("boss", "tiny")}
        if not is_own:
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "not_owner")
            assert name in reply.json()["error"]["message"]
    # One that was bound before this was refused means nothing.
    people.gateway.in_record(lambda record: record.bind_lora("ann", name, "tiny.ann", most=9))
    assert call(people, "ann", "GET", "/v1/lora").json()["loras"] == ["tiny.ann", "tiny.ann-latest"]


def test_a_batch_is_polled_by_its_id_and_the_same_batch_is_not_recorded_twice(people: People) -> None:
    ids = talk(people, "ann", 2)
    items = [{"lora_id": "tiny.ann", "response_id": one, "feedback": "Shorter."} for one in ids]
    call(people, "ann", "POST", "/v1/lora/init", {"lora_id": "tiny.ann"})
    first = call(people, "ann", "POST", "/v1/feedback", {"requests": items}).json()
    again = call(people, "ann", "POST", "/v1/feedback", {"requests": items}).json()
    assert first == again
    target = f"/v1/feedback/{first['request_id']}"
    polled = call(people, "ann", "GET", target).json()
    assert (polled["status"], polled["batch_size"]) == ("queued", 2)
    assert [one["stage"] for one in polled["turns"]] == ["answered", "answered"]
    assert call(people, "bob", "GET", target).status_code == 404
    assert call(people, "boss", "GET", target).status_code == 200
    assert call(people, "ann", "GET", "/v1/feedback/req_0").status_code == 404

    async def train(record: Any) -> None:
        for one in polled["turns"]:
            await record.add_verdict(make_verdict(one["turn_id"], hint="Shorter."))
        (claimed, other) = await record.claim("tiny.ann", 8, worker="w", lease_s=60)
        await record.drop([other.turn_id], DropReason.NO_SIGNAL, worker="w")
        now = time.time()
        from tests.proxy.test_adapters import make_adapter

        adapter = make_adapter("tiny.ann", 1, Path("/nowhere"), created_at=now)
        step = StepReport(
            step_id="s", policy="tiny.ann", method="combine", started_at=now - 2, finished_at=now, version=1, error=None,
            metrics={"loss": 0.5, "turns": 1, "gradient_norm": 2.0, "live_tokens": 7.0, "teach_s": 0.5, "train_s": 1.0},
        )  # fmt: skip
        await record.publish(adapter, [claimed.turn_id], step, worker="w")

    people.gateway.in_record(train)
    done = call(people, "ann", "GET", target).json()
    assert (done["status"], done["version"]) == ("ok", 1)
    metadata = done["distill_result"]["metadata"]
    assert (metadata["total_loss"], metadata["tokens_processed"]) == (0.5, 7.0)
    assert done["timing_ms"] == {
        "sleep": 0, "distill": 1000, "save": 0, "wake": 0, "logprobs": 500, "total": 2000,
    }  # fmt: skip
    # No version learns from a thumb for a trained turn.
    trained = next(one["turn_id"] for one in done["turns"] if one["stage"] == "trained")
    more = {"requests": [{"lora_id": "tiny.ann", "turn_id": trained, "thumbs": "up"}]}
    noted = call(people, "ann", "POST", "/v1/feedback?wait=true", more)
    assert (noted.status_code, noted.json()["status"], noted.json()["why"]) == (202, "noted", ["trained"])


@pytest.mark.parametrize("modules", ["q_proj", {"q_proj": 1}, [1], 7])
def test_target_modules_that_are_no_names_are_refused(people: People, modules: Any) -> None:
    reply = call(people, "ann", "POST", "/v1/lora/init", {"lora_id": "ann/new", "target_modules": modules})
    assert reply.status_code == 422
    assert reply.json()["error"]["param"] == "target_modules"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"requests": []}, "1 to 64 items"),
        ({"requests": [{"lora_id": "a", "turn_id": "t", "feedback": "x"}] * 65}, "1 to 64 items"),
        ({"requests": ["x"]}, "lora_id"),
        ({"requests": [{"lora_id": "a/../b", "turn_id": "t", "feedback": "x"}]}, "lora_id"),
        ({"requests": [{"lora_id": "a", "turn_id": "t", "feedback": "x" * 8_001}]}, "8001 characters"),
        ({"requests": [{"lora_id": "a", "feedback": "x"}]}, "name the turn"),
        ({"requests": [{"lora_id": "a", "turn_id": "t", "feedback": "x", "training": {"alpha": 2}}]}, "alpha"),
        ({"requests": [{"lora_id": "a", "turn_id": "t", "feedback": "x", "training": {"rate": 2}}]}, "no setting"),
        ({"requests": [{"lora_id": "a", "turn_id": "t", "feedback": "x"}], "orchestration": {"sleep_level": 3}}, "sleep_level"),
        ({"requests": [{"lora_id": "a", "turn_id": "t", "feedback": "x"}], "orchestration": []}, "orchestration is an object"),
    ],
)  # fmt: skip
def test_a_batch_out_of_bounds_is_refused_with_a_sentence(people: People, body: Any, what: str) -> None:
    reply = call(people, "ann", "POST", "/v1/feedback", body)
    assert reply.status_code == 422
    assert what in reply.json()["error"]["message"]


def test_a_key_lists_deletes_and_exports_only_what_is_its_own(people: People, tmp_path: Path) -> None:
    for name in ("ann", "bob", "eve"):
        call(people, name, "POST", "/v1/lora/init", {"lora_id": f"{name}/assistant"})
        people.publish(f"tiny.{name}" if name != "eve" else "tiny", 1, tmp_path)
    listed = {
        name: call(people, name, "GET", "/v1/lora").json()["loras"]
        for name in ("ann", "bob", "eve", "boss", "default")
    }
    assert not [one for one in listed["ann"] if "bob" in one or "eve" in one]
    assert {"ann/assistant", "tiny.ann"} <= set(listed["ann"])
    assert {"ann/assistant", "bob/assistant", "eve/assistant"} <= set(listed["boss"]) & set(listed["default"])
    export = "/v1/lora/export?lora_id="
    assert call(people, "bob", "GET", f"{export}ann/assistant").status_code == 404
    # Others train the shared policy too.
    assert call(people, "eve", "GET", f"{export}eve/assistant").status_code == 403
    for name in ("ann", "boss"):
        reply = call(people, name, "GET", f"{export}ann/assistant-latest")
        assert reply.status_code == 200
        assert reply.headers["content-disposition"] == 'attachment; filename="ann-assistant-latest.zip"'
        with zipfile.ZipFile(io.BytesIO(reply.content)) as archive:
            assert archive.testzip() is None
            assert archive.namelist() == ["adapter_config.json", "adapter_model.safetensors", "metrics.json"]
            published = tmp_path / "tiny.ann@1" / "adapter_model.safetensors"
            assert archive.read("adapter_model.safetensors") == published.read_bytes()
    with_optimizer = f"{export}ann/assistant&optimizer=1"
    for is_there in (False, True):
        reply = call(people, "ann", "GET", with_optimizer)
        with zipfile.ZipFile(io.BytesIO(reply.content)) as archive:
            assert ("patina/trainer_state.safetensors" in archive.namelist()) is is_there
        (tmp_path / "tiny.ann@1" / "patina").mkdir(exist_ok=True)
        (tmp_path / "tiny.ann@1" / "patina" / "trainer_state.safetensors").write_bytes(b"moments")
    assert call(people, "ann", "GET", f"{export}ann/assistant&version=9").status_code == 404
    assert call(people, "ann", "GET", f"{export}ann/assistant&version=x").status_code == 422
    delete = "/v1/lora?lora_id=ann/assistant"
    assert call(people, "bob", "DELETE", delete).json() == {"deleted": False}
    assert people.live("tiny.ann") == 1
    assert call(people, "ann", "DELETE", "/v1/lora?lora_id=ann").json() == {"deleted": False}  # no prefix
    assert call(people, "ann", "DELETE", delete).json() == {"deleted": True}
    until(lambda: people.live("tiny.ann") == 0, "the base model is live")
    assert people.served("ann") == "tiny"
    # The shared policy stays as it is.
    assert call(people, "eve", "DELETE", "/v1/lora?lora_id=eve/assistant").json() == {"deleted": True}
    assert people.live("tiny") == 1


def test_peft_loads_an_export(tmp_path: Path) -> None:
    import peft
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def base() -> Any:
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        return LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes))

    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    made = peft.get_peft_model(base(), config).eval()
    made.save_pretrained(tmp_path / "made")
    body = b"".join(zip_pieces(tmp_path / "made", {"metrics.json": b"{}"}))
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        archive.extractall(tmp_path / "export")
    loaded = peft.PeftModel.from_pretrained(base(), tmp_path / "export").eval()
    ids = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, made(ids).logits)
        with loaded.disable_adapter():
            assert not torch.equal(loaded(ids).logits, made(ids).logits)
